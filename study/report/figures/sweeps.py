"""Figure of the sweeps: one hyperparameter at a time as papers plot it, and the model's curve."""

from __future__ import annotations

import numpy as np

from study.analyses.findings import StudyFindings
from study.analyses.surrogate.observations import FloatArray
from study.report.charts.spec import (
    ACCENT_COLOR,
    BAD_COLOR,
    PALETTE,
    BandMark,
    Chart,
    ChartAxis,
    ChartMark,
    ChartPanel,
    LineMark,
    ScatterMark,
)
from study.report.formatting import axis_positions, metric_label, param_axis, param_label


def build_sweep_chart(findings: StudyFindings, loss: str) -> Chart | None:
    """Plot one panel per swept hyperparameter and anchor; None without sweeps."""
    found, space = findings.losses[loss], findings.table.spaces[loss]
    objective = metric_label(str(findings.table.protocol.get("objective", "score")))
    panels = []
    for (swept, anchor), rows in found.sweeps.groupby(["swept", "anchor"], sort=True):
        param = str(swept)
        distribution = space.distributions[param]
        x = np.array(axis_positions(distribution, rows["value"]))
        order = np.argsort(x)
        mean = rows["mean"].to_numpy(dtype=float)[order]
        half = np.nan_to_num(rows["high"].to_numpy(dtype=float)[order] - mean)
        marks: list[ChartMark] = []
        curve = found.sweep_predictions.get((param, str(anchor)))
        if curve is not None and len(curve):
            at = axis_positions(distribution, curve["value"])
            marks.append(
                BandMark(at, list(curve["low"]), list(curve["high"]), "model, 90 %", ACCENT_COLOR)
            )
            marks.append(LineMark(at, list(curve["mean"]), "model", ACCENT_COLOR, dash=True))
        seeds = int(rows["seeds"].min())
        marks.append(LineMark(list(x[order]), list(mean), "", PALETTE[1]))
        marks.append(
            ScatterMark(
                list(x[order]),
                list(mean),
                f"measured, {seeds} seeds, 95 %",
                PALETTE[1],
                errors=list(half),
                size=6,
                opacity=1.0,
            )
        )
        n_diverged = rows["diverged"].to_numpy(dtype=int)[order]
        if n_diverged.any():
            n_scored = rows["seeds"].to_numpy(dtype=int)[order]
            marks.append(_diverged_marks(x[order], n_diverged, n_scored, mean))
        title = f"{param_label(space, param)} from the {anchor} point"
        panels.append(
            ChartPanel(title, param_axis(space, param), ChartAxis(objective), tuple(marks))
        )
    if not panels:
        return None
    return Chart(
        f"sweeps-{loss}",
        f"One hyperparameter at a time: {loss}",
        "Measured by training at each value with all other hyperparameters at the anchor; "
        "intervals over seeds.",
        tuple(panels),
    )


def _diverged_marks(
    x: FloatArray, n_diverged: np.ndarray, n_scored: np.ndarray, mean: FloatArray
) -> ScatterMark:
    """Return crosses where seeds diverged: at the mean of the others, else at the lowest mean."""
    lowest = float(np.nanmin(mean)) if np.isfinite(mean).any() else 0.0
    at = n_diverged > 0
    texts = [
        f"{k} of {k + n} seeds diverged" for k, n in zip(n_diverged[at], n_scored[at], strict=True)
    ]
    y = np.where(np.isfinite(mean), mean, lowest)[at]
    return ScatterMark(
        list(x[at]), list(y), "diverged", BAD_COLOR, "cross", texts, size=7, opacity=1.0
    )
