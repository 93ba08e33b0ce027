"""One-at-a-time sweeps as the papers print them, beside the model's curve."""

from __future__ import annotations

import numpy as np

from study.analyses.findings import Findings
from study.analyses.samples import Array
from study.report.chart import ACCENT, BAD, PALETTE, Axis, Band, Chart, Dots, Line, Mark, Panel
from study.report.words import knob_axis, knob_label, metric_label, places


def chart(findings: Findings, loss: str) -> Chart | None:
    """One panel per swept knob and anchor; None without sweeps."""
    found, space = findings.losses[loss], findings.table.spaces[loss]
    objective = metric_label(str(findings.table.protocol.get("objective", "score")))
    panels = []
    for (swept, anchor), rows in found.sweeps.groupby(["swept", "anchor"], sort=True):
        knob = str(swept)
        distribution = space.distributions[knob]
        x = np.array(places(distribution, rows["value"]))
        order = np.argsort(x)
        mean = rows["mean"].to_numpy(dtype=float)[order]
        half = np.nan_to_num(rows["high"].to_numpy(dtype=float)[order] - mean)
        marks: list[Mark] = []
        curve = found.sweep_models.get((knob, str(anchor)))
        if curve is not None and len(curve):
            at = places(distribution, curve["value"])
            marks.append(Band(at, list(curve["low"]), list(curve["high"]), "model, 90 %", ACCENT))
            marks.append(Line(at, list(curve["mean"]), "model", ACCENT, dash=True))
        seeds = int(rows["seeds"].min())
        marks.append(Line(list(x[order]), list(mean), "", PALETTE[1]))
        marks.append(
            Dots(
                list(x[order]),
                list(mean),
                f"measured, {seeds} seeds, 95 %",
                PALETTE[1],
                errors=list(half),
                size=6,
                opacity=1.0,
            )
        )
        lost = rows["diverged"].to_numpy(dtype=int)[order]
        if lost.any():
            marks.append(_diverged(x[order], lost, rows["seeds"].to_numpy(dtype=int)[order], mean))
        title = f"{knob_label(space, knob)} from the {anchor} point"
        panels.append(Panel(title, knob_axis(space, knob), Axis(objective), tuple(marks)))
    if not panels:
        return None
    return Chart(
        f"sweeps-{loss}",
        f"One knob at a time: {loss}",
        "Measured by training at each value, all other knobs at the anchor; intervals over seeds.",
        tuple(panels),
    )


def _diverged(x: Array, lost: np.ndarray, scored: np.ndarray, mean: Array) -> Dots:
    """Crosses where seeds diverged: at the mean of the others, at the foot without others."""
    foot = float(np.nanmin(mean)) if np.isfinite(mean).any() else 0.0
    at = lost > 0
    texts = [f"{k} of {k + n} seeds diverged" for k, n in zip(lost[at], scored[at], strict=True)]
    y = np.where(np.isfinite(mean), mean, foot)[at]
    return Dots(list(x[at]), list(y), "diverged", BAD, "cross", texts, size=7, opacity=1.0)
