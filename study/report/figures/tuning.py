"""Figures of what tuning gains: best of n trials, gain per hyperparameter, path to the best."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from study.analyses.findings import StudyFindings
from study.analyses.surrogate.surrogate import Refusal
from study.report.charts.spec import (
    ACCENT_COLOR,
    PALETTE,
    BandMark,
    BarMark,
    Chart,
    ChartAxis,
    ChartMark,
    ChartPanel,
    LineMark,
)
from study.report.formatting import format_value, metric_label, param_label


def build_expected_best_chart(findings: StudyFindings) -> Chart | None:
    """Plot the median best of n trials per loss; None if no loss has enough Sobol trials."""
    objective = metric_label(str(findings.table.protocol.get("objective", "score")))
    panels = []
    for i, (loss, found) in enumerate(findings.losses.items()):
        rows = found.expected_best
        if rows.empty:
            continue
        color = PALETTE[i % len(PALETTE)]
        finite = rows["high"].replace(np.inf, np.nan)
        top = float(max(finite.max(), rows["median"].max()))
        bounded = rows[np.isfinite(rows["high"]) & np.isfinite(rows["low"])]
        marks: list[ChartMark] = []
        if len(bounded):
            n, ends = list(bounded["n"]), (list(bounded["low"]), list(bounded["high"]))
            marks.append(BandMark(n, *ends, "90 % band", color))
        marks += [
            LineMark(
                list(rows["n"]),
                list(rows["low"].replace(-np.inf, np.nan)),
                "at least",
                color,
                dash=True,
            ),
            LineMark(list(rows["n"]), list(rows["median"]), "median", color),
        ]
        low = float(rows["low"].replace(-np.inf, np.nan).min())
        y = ChartAxis(
            f"best {objective} of n", limits=(low - 0.05 * (top - low), top + 0.1 * (top - low))
        )
        panels.append(
            ChartPanel(loss, ChartAxis("n, number of random trials", log=True), y, tuple(marks))
        )
    if not panels:
        return None
    return Chart(
        "expected-best",
        "What a tuning budget gains",
        "Estimated from the Sobol trials only. The 90 % band holds for all n at once; it has no "
        "upper end where the best of n is rarer than these trials can show.",
        tuple(panels),
    )


def build_tuning_gain_chart(findings: StudyFindings, loss: str) -> Chart | None:
    """Plot the gain of each hyperparameter alone and the greedy path; None if refused."""
    tuned, space = findings.losses[loss].tuning, findings.table.spaces[loss]
    if isinstance(tuned, Refusal):
        return None
    alone = tuned.tunability
    labels = [
        f"{param_label(space, k)} → {format_value(v)}"
        for k, v in zip(alone["knob"], alone["to"], strict=True)
    ]
    title, axis = "Tuning one hyperparameter alone", ChartAxis("gain over published")
    panels = [ChartPanel(title, axis, ChartAxis(""), (_gain_bars(labels, alone, ACCENT_COLOR),))]
    steps = tuned.path[tuned.path["step"] > 0]
    if len(steps):
        labels = [
            f"{i}. {param_label(space, k)} → {format_value(v)}"
            for i, k, v in zip(steps["step"], steps["knob"], steps["to"], strict=True)
        ]
        title, axis = "From published to best, step by step", ChartAxis("gain of the step")
        panels.append(
            ChartPanel(title, axis, ChartAxis(""), (_gain_bars(labels, steps, PALETTE[1]),))
        )
    return Chart(
        f"tuning-{loss}",
        f"What tuning gains: {loss}",
        "Estimated by the model, with 90 % bands. The order of the steps is greedy; other orders "
        "are possible.",
        tuple(panels),
    )


def _gain_bars(labels: Sequence[str], rows: pd.DataFrame, color: str) -> BarMark:
    return BarMark(labels, list(rows["gain"]), list(rows["low"]), list(rows["high"]), "gain", color)
