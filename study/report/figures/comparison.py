"""Confirmed test scores with their intervals."""

from __future__ import annotations

import numpy as np
import pandas as pd

from study.analyses.findings import Findings
from study.analyses.leaderboard import UNTRAINED
from study.report.chart import ACCENT, BAD, QUIET, Axis, Chart, Dots, Line, Mark, Panel, Rule
from study.report.words import metric_label


def chart(findings: Findings) -> Chart | None:
    """Mean and 95 % interval of tuned and published points; None before confirmation."""
    rows = findings.confirmed
    losses = [n for n in dict.fromkeys(rows["loss"]) if n != UNTRAINED]
    if not losses:
        return None
    marks: list[Mark] = []
    for kind, color, shift in (("tuned", ACCENT, 0.12), ("published", BAD, -0.12)):
        part = rows[(rows["point"] == kind) & rows["loss"].isin(losses)]
        y = [len(losses) - 1 - losses.index(n) + shift for n in part["loss"]]
        for place, low, high in zip(y, part["low"], part["high"], strict=True):
            if np.isfinite(low):
                marks.append(Line([low, high], [place, place], "", color))
        texts = [
            f"{n}, {kind}: {m:.4f} ({a:.4f} to {b:.4f}), {s} seeds"
            for n, m, a, b, s in zip(
                part["loss"], part["mean"], part["low"], part["high"], part["seeds"], strict=True
            )
        ]
        symbol = "circle" if kind == "tuned" else "diamond"
        marks.append(
            Dots(list(part["mean"]), y, kind, color, symbol, texts, size=8, opacity=1.0)  # type: ignore[arg-type]
        )
    untrained = rows.loc[rows["loss"] == UNTRAINED, "mean"]
    if len(untrained):
        marks.append(Rule(float(untrained.iloc[0]), UNTRAINED, color=QUIET))
    objective = metric_label(str(findings.table.protocol.get("objective", "score")))
    ticks = tuple((float(len(losses) - 1 - i), n) for i, n in enumerate(losses))
    panel = Panel(
        "",
        Axis(f"{objective} on test classes", limits=_limits(rows)),
        Axis("", ticks=ticks, limits=(-0.6, len(losses) - 0.4)),
        tuple(marks),
    )
    return Chart(
        "confirmed",
        "Confirmed on test classes",
        "Fresh seeds, last epoch, classes the search never saw; 95 % intervals over seeds.",
        (panel,),
        wide=True,
    )


def _limits(rows: pd.DataFrame) -> tuple[float, float]:
    values = rows[["mean", "low", "high"]].to_numpy(dtype=float)
    low, high = float(np.nanmin(values)), float(np.nanmax(values))
    pad = 0.04 * max(high - low, 1e-3)
    return low - pad, high + pad
