"""Figure of failed training: share of diverged trials per hyperparameter and over a pair."""

from __future__ import annotations

import numpy as np
from optuna.distributions import BaseDistribution, CategoricalDistribution

from search_spaces.unit_scale import from_unit
from study.analyses.divergence import find_riskiest_pair
from study.analyses.findings import StudyFindings
from study.analyses.interactions import has_nearby_trials_2d
from study.analyses.surrogate.observations import FloatArray, get_unit_levels, snap_to_levels
from study.analyses.surrogate.surrogate import SurrogateModel
from study.report.charts.spec import (
    ACCENT_COLOR,
    BAD_COLOR,
    MUTED_COLOR,
    Chart,
    ChartAxis,
    ChartMark,
    ChartPanel,
    HeatmapMark,
    LineMark,
    ScatterMark,
)
from study.report.formatting import axis_positions, param_axis, param_label
from study.trials.selection import select_validation_trials
from study.trials.table import PARAM_PREFIX


def build_divergence_chart(findings: StudyFindings, loss: str) -> Chart | None:
    """Plot the shares of diverged and collapsed trials; None if there are none."""
    found, space = findings.losses[loss], findings.table.spaces[loss]
    if found.divergence.empty:
        return None
    panels = []
    pair = _divergence_map_panel(findings, loss)
    if pair is not None:
        panels.append(pair)
    for param in findings.table.searched_param_names(loss):
        rows = found.divergence[found.divergence["knob"] == param]
        distribution = space.distributions[param]
        if isinstance(distribution, CategoricalDistribution):
            x = axis_positions(distribution, rows["low"])
        elif getattr(distribution, "log", False):
            x = [float(np.sqrt(a * b)) for a, b in zip(rows["low"], rows["high"], strict=True)]
        else:
            x = [(float(a) + float(b)) / 2 for a, b in zip(rows["low"], rows["high"], strict=True)]
        texts = [
            f"{k} of {n} diverged" for k, n in zip(rows["diverged"], rows["trials"], strict=True)
        ]
        marks: list[ChartMark] = []
        if found.divergence["diverged"].any():
            marks.append(
                ScatterMark(x, list(rows["rate"]), "diverged", BAD_COLOR, texts=texts, size=6)
            )
        if len(found.collapsed_trials):
            share = (rows["collapsed"] / rows["trials"]).clip(upper=1.0)
            marks.append(
                ScatterMark(x, list(share), "collapsed", ACCENT_COLOR, "open", size=6, opacity=1.0)
            )
        if rows["chance"].notna().any():
            marks.append(LineMark(x, list(rows["chance"]), "model", MUTED_COLOR))
        y = ChartAxis("share of trials", percent=True, limits=(-0.03, 1.03))
        panels.append(
            ChartPanel(param_label(space, param), param_axis(space, param), y, tuple(marks))
        )
    return Chart(
        f"divergence-{loss}",
        f"Where training fails: {loss}",
        "Share of trials that ended in NaN or infinity (diverged), or that ran to the end and "
        "score below the untrained backbone (collapsed), in equal parts of each range. The map "
        "shows the two hyperparameters that best separate diverged trials from the others.",
        tuple(panels),
    )


def _divergence_map_panel(findings: StudyFindings, loss: str) -> ChartPanel | None:
    model, space = findings.losses[loss].surrogate, findings.table.spaces[loss]
    if not isinstance(model, SurrogateModel) or model.divergence_model is None:
        return None
    pair = find_riskiest_pair(model.observations, model.divergence_model)
    if pair is None:
        return None
    observations = model.observations
    i, j = (observations.params.index(k) for k in pair)
    a, b = observations.distributions[i], observations.distributions[j]
    a_units, b_units = _unit_grid(a), _unit_grid(b)
    first, second = np.meshgrid(a_units, b_units, indexing="xy")
    cells = np.stack([first.ravel(), second.ravel()], axis=1)
    units = np.repeat(np.median(observations.units, axis=0)[None], len(cells), axis=0)
    units[:, i], units[:, j] = cells[:, 0], cells[:, 1]
    snapped = snap_to_levels(observations.distributions, units)
    probability = model.divergence_model(snapped).mean(axis=0)
    is_supported = has_nearby_trials_2d(observations, (i, j), cells)
    z = np.where(is_supported, probability, np.nan).reshape(first.shape)
    xs = axis_positions(a, [from_unit(a, u) for u in a_units])
    ys = axis_positions(b, [from_unit(b, u) for u in b_units])
    trials = select_validation_trials(findings.table, loss)
    diverged = trials[trials["state"] == "diverged"]
    rows = [[None if np.isnan(v) else float(v) for v in row] for row in z]
    dots = ScatterMark(
        axis_positions(a, diverged[PARAM_PREFIX + pair[0]]),
        axis_positions(b, diverged[PARAM_PREFIX + pair[1]]),
        "diverged",
        BAD_COLOR,
        "cross",
        size=5,
        opacity=1.0,
        texts=list(diverged["trial"]),
    )
    title = f"{param_label(space, pair[0])} × {param_label(space, pair[1])}"
    marks: list[ChartMark] = [HeatmapMark(xs, ys, rows, "probability of divergence"), dots]
    collapsed = findings.losses[loss].collapsed_trials
    if len(collapsed):
        x = axis_positions(a, collapsed[PARAM_PREFIX + pair[0]])
        y = axis_positions(b, collapsed[PARAM_PREFIX + pair[1]])
        names = list(collapsed["trial"])
        marks.append(
            ScatterMark(x, y, "collapsed", ACCENT_COLOR, "open", names, size=5, opacity=1.0)
        )
    return ChartPanel(title, param_axis(space, pair[0]), param_axis(space, pair[1]), tuple(marks))


def _unit_grid(distribution: BaseDistribution) -> FloatArray:
    """Return the cells of the map along one axis: all values if there are few, else fifteen."""
    levels = get_unit_levels(distribution, max_levels=15)
    return np.linspace(0.02, 0.98, 15) if levels is None else levels
