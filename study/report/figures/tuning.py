"""What tuning buys: expected best of n, gain per knob, and the way from published to best."""

from __future__ import annotations

import numpy as np

from study.analyses.findings import Findings
from study.analyses.surrogate import Refusal
from study.report.chart import ACCENT, PALETTE, Axis, Band, Bars, Chart, Line, Mark, Panel
from study.report.words import knob_label, metric_label, number


def expected(findings: Findings) -> Chart | None:
    """Median best of n trials per loss; None when no loss has enough Sobol trials."""
    objective = metric_label(str(findings.table.protocol.get("objective", "score")))
    panels = []
    for i, (loss, found) in enumerate(findings.losses.items()):
        rows = found.expected
        if rows.empty:
            continue
        color = PALETTE[i % len(PALETTE)]
        finite = rows["high"].replace(np.inf, np.nan)
        top = float(max(finite.max(), rows["median"].max()))
        closed = rows[np.isfinite(rows["high"]) & np.isfinite(rows["low"])]
        marks: list[Mark] = []
        if len(closed):
            marks.append(
                Band(
                    list(closed["n"]), list(closed["low"]), list(closed["high"]), "90 % band", color
                )
            )
        marks += [
            Line(
                list(rows["n"]),
                list(rows["low"].replace(-np.inf, np.nan)),
                "at least",
                color,
                dash=True,
            ),
            Line(list(rows["n"]), list(rows["median"]), "median", color),
        ]
        low = float(rows["low"].replace(-np.inf, np.nan).min())
        y = Axis(
            f"best {objective} of n", limits=(low - 0.05 * (top - low), top + 0.1 * (top - low))
        )
        panels.append(Panel(loss, Axis("n, trials drawn blindly", log=True), y, tuple(marks)))
    if not panels:
        return None
    return Chart(
        "expected-best",
        "What a tuning budget buys",
        "From the Sobol part alone. The band holds for all n at once with 90 %; it has no upper "
        "end where n asks for scores rarer than these trials can show.",
        tuple(panels),
    )


def chart(findings: Findings, loss: str) -> Chart | None:
    """Gain of each knob alone, and the greedy path; None without a published point."""
    tuned, space = findings.losses[loss].tuned, findings.table.spaces[loss]
    if isinstance(tuned, Refusal):
        return None
    alone = tuned.tunability
    labels = [
        f"{knob_label(space, k)} → {number(v)}"
        for k, v in zip(alone["knob"], alone["to"], strict=True)
    ]
    bars = Bars(
        labels, list(alone["gain"]), list(alone["low"]), list(alone["high"]), "gain", ACCENT
    )
    steps = tuned.path[tuned.path["step"] > 0]
    names = [
        f"{i}. {knob_label(space, k)} → {number(v)}"
        for i, k, v in zip(steps["step"], steps["knob"], steps["to"], strict=True)
    ]
    way = Bars(
        names, list(steps["gain"]), list(steps["low"]), list(steps["high"]), "gain", PALETTE[1]
    )
    gained = Axis("gain over published")
    panels = [Panel("Tuning one knob alone", gained, Axis(""), (bars,))]
    if len(steps):
        panels.append(
            Panel(
                "From published to best, step by step", Axis("gain of the step"), Axis(""), (way,)
            )
        )
    return Chart(
        f"tuning-{loss}",
        f"What tuning buys: {loss}",
        "By the model, with 90 % bands. The order of the steps is greedy and not the only one.",
        tuple(panels),
    )
