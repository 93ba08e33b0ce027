"""Figure of the confirmed test scores with their intervals."""

from __future__ import annotations

import numpy as np
import pandas as pd

from study.analyses.findings import StudyFindings
from study.analyses.leaderboard import UNTRAINED_BACKBONE_LABEL
from study.report.charts.spec import (
    ACCENT_COLOR,
    BAD_COLOR,
    MUTED_COLOR,
    Chart,
    ChartAxis,
    ChartMark,
    ChartPanel,
    LineMark,
    ReferenceLine,
    ScatterMark,
)
from study.report.formatting import metric_label


def build_confirmed_scores_chart(findings: StudyFindings) -> Chart | None:
    """Plot mean and 95 % interval of tuned and published points; None before `study confirm`."""
    rows = findings.confirmed_scores
    losses = [n for n in dict.fromkeys(rows["loss"]) if n != UNTRAINED_BACKBONE_LABEL]
    if not losses:
        return None
    marks: list[ChartMark] = []
    for kind, color, shift in (("tuned", ACCENT_COLOR, 0.12), ("published", BAD_COLOR, -0.12)):
        part = rows[(rows["point"] == kind) & rows["loss"].isin(losses)]
        y = [len(losses) - 1 - losses.index(n) + shift for n in part["loss"]]
        for place, low, high in zip(y, part["low"], part["high"], strict=True):
            if np.isfinite(low):
                marks.append(LineMark([low, high], [place, place], "", color))
        texts = [
            f"{n}, {kind}: {m:.4f} ({a:.4f} to {b:.4f}), {s} seeds"
            for n, m, a, b, s in zip(
                part["loss"], part["mean"], part["low"], part["high"], part["seeds"], strict=True
            )
        ]
        symbol = "circle" if kind == "tuned" else "diamond"
        marks.append(
            ScatterMark(list(part["mean"]), y, kind, color, symbol, texts, size=8, opacity=1.0)  # type: ignore[arg-type]
        )
    untrained = rows.loc[rows["loss"] == UNTRAINED_BACKBONE_LABEL, "mean"]
    if len(untrained):
        marks.append(
            ReferenceLine(float(untrained.iloc[0]), UNTRAINED_BACKBONE_LABEL, color=MUTED_COLOR)
        )
    objective = metric_label(str(findings.table.protocol.get("objective", "score")))
    ticks = tuple((float(len(losses) - 1 - i), n) for i, n in enumerate(losses))
    panel = ChartPanel(
        "",
        ChartAxis(f"{objective} on test classes", limits=_interval_axis_limits(rows)),
        ChartAxis("", ticks=ticks, limits=(-0.6, len(losses) - 0.4)),
        tuple(marks),
    )
    return Chart(
        "confirmed",
        "Confirmed on test classes",
        "Fresh seeds, last epoch, classes that the search never uses; 95 % intervals over seeds.",
        (panel,),
        wide=True,
    )


def _interval_axis_limits(rows: pd.DataFrame) -> tuple[float, float]:
    values = rows[["mean", "low", "high"]].to_numpy(dtype=float)
    low, high = float(np.nanmin(values)), float(np.nanmax(values))
    pad = 0.04 * max(high - low, 1e-3)
    return low - pad, high + pad
