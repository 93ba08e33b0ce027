"""Figure of the responses: score along each hyperparameter, with trials, model and ranges."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
from optuna.distributions import CategoricalDistribution

from search_spaces.claims import GoodValue, StableRange
from search_spaces.space import SearchSpace
from study.analyses.findings import StudyFindings
from study.analyses.surrogate.surrogate import Refusal
from study.report.charts.spec import (
    ACCENT_COLOR,
    BAD_COLOR,
    GOOD_COLOR,
    MUTED_COLOR,
    PALETTE,
    BandMark,
    Chart,
    ChartAxis,
    ChartMark,
    ChartPanel,
    LineMark,
    MarkerSymbol,
    ReferenceLine,
    ScatterMark,
    SpanMark,
)
from study.report.formatting import (
    axis_positions,
    format_value,
    metric_label,
    param_axis,
    param_label,
)
from study.trials.selection import get_published_params, select_validation_trials
from study.trials.table import PARAM_PREFIX

_BAND_LABELS = {"whole": "90 % band, whole space", "good": "90 % band, others good"}
_STATE_STYLES: tuple[tuple[str, str, str, MarkerSymbol], ...] = (
    ("finished", "full trial", MUTED_COLOR, "circle"),
    ("stopped", "stopped early", MUTED_COLOR, "open"),
    ("running", "still running", PALETTE[7], "open"),
    ("below", "below the axis", MUTED_COLOR, "triangle"),
    ("diverged", "diverged", BAD_COLOR, "cross"),
)


def build_response_chart(findings: StudyFindings, loss: str) -> Chart:
    """Plot one panel per searched hyperparameter."""
    table = findings.table
    panels = tuple(
        _response_panel(findings, loss, param) for param in table.searched_param_names(loss)
    )
    return Chart(
        f"response-{loss}",
        f"How the score responds: {loss}",
        "Lines: score of the model, averaged over settings whose other hyperparameters are good "
        "(solid) and over the whole space (dashed), with 90 % bands, only where there are trials. "
        "Trials below the axis are drawn at the lower edge of the panel.",
        panels,
    )


def _response_panel(findings: StudyFindings, loss: str, param: str) -> ChartPanel:
    table, found = findings.table, findings.losses[loss]
    space = table.spaces[loss]
    trials = select_validation_trials(table, loss)
    objective = metric_label(str(table.protocol.get("objective", "score")))
    marks: list[ChartMark] = [
        *_claim_marks(space, param),
        *_stable_range_marks(findings, loss, param),
    ]
    limits = _score_axis_limits(trials, found.response_curves, param)
    lower_edge = limits[0] + 0.025 * (limits[1] - limits[0]) if limits else 0.0
    dots = _trial_marks(trials, space, param, lower_edge=lower_edge)
    if isinstance(found.response_curves, pd.DataFrame):
        marks += _curve_marks(found.response_curves, space, param)
    marks += dots
    published = get_published_params(table, loss)
    if published is not None:
        at = axis_positions(space.distributions[param], [published[param]])[0]
        marks.append(ReferenceLine(at, "published", color=BAD_COLOR))
    axis = param_axis(space, param)
    note = "" if dots else "No trial of this loss has run yet."
    return ChartPanel(
        param_label(space, param),
        axis,
        ChartAxis(objective, limits=limits),
        tuple(marks),
        note=note,
    )


def _score_axis_limits(
    trials: pd.DataFrame, curves: pd.DataFrame | Refusal, param: str
) -> tuple[float, float] | None:
    """Return the range of scores to show: the curves and the best three quarters of the trials."""
    scores = trials["score"].to_numpy(dtype=float)
    scores = scores[np.isfinite(scores)]
    if not len(scores):
        return None
    low, high = float(np.quantile(scores, 0.25)), float(scores.max())
    if isinstance(curves, pd.DataFrame):
        rows = curves[(curves["knob"] == param) & curves["supported"]]
        if len(rows):
            low = min(low, float(rows["mean"].min()))
    low = max(low, float(scores.min()))
    pad = 0.06 * max(high - low, 1e-6)
    return low - pad, high + pad


def _trial_marks(
    trials: pd.DataFrame, space: SearchSpace, param: str, *, lower_edge: float
) -> list[ChartMark]:
    """Return points by state; triangles (below the axis) and crosses (diverged) at the edge."""
    distribution = space.distributions[param]
    score = trials["score"].to_numpy(dtype=float)
    below = (score < lower_edge) & np.isfinite(score)
    marks: list[ChartMark] = []
    for state, name, color, symbol in _STATE_STYLES:
        if state == "below":
            mask = below
        elif state == "diverged":
            mask = (trials["state"] == state).to_numpy()
        else:
            mask = (trials["state"] == state).to_numpy() & np.isfinite(score) & ~below
        rows = trials[mask & trials[PARAM_PREFIX + param].notna().to_numpy()]
        if rows.empty:
            continue
        y = rows["score"].fillna(lower_edge).clip(lower=lower_edge).to_numpy(dtype=float)
        x = _jitter_choices(axis_positions(distribution, rows[PARAM_PREFIX + param]), distribution)
        texts = [
            f"{t}: {format_value(v)} → {'diverged' if s != s else f'{s:.4f}'} ({e} epochs)"
            for t, v, s, e in zip(
                rows["trial"],
                rows[PARAM_PREFIX + param],
                rows["score"],
                rows["epochs"],
                strict=True,
            )
        ]
        marks.append(ScatterMark(x, list(y), name, color, symbol, texts, size=4, opacity=0.75))
    return marks


def _jitter_choices(x: Sequence[float], distribution: object) -> list[float]:
    """Spread the points of a choice sideways; the offset depends only on their order."""
    if not isinstance(distribution, CategoricalDistribution):
        return list(x)
    return [v + 0.5 * ((i * 0.618034) % 1.0 - 0.5) for i, v in enumerate(x)]


def _curve_marks(curves: pd.DataFrame, space: SearchSpace, param: str) -> list[ChartMark]:
    distribution = space.distributions[param]
    marks: list[ChartMark] = []
    for region, name, color, dash in (
        ("whole", "average, whole space", PALETTE[6], True),
        ("good", "average, others good", ACCENT_COLOR, False),
    ):
        rows = curves[(curves["knob"] == param) & (curves["region"] == region)]
        is_supported = rows["supported"].to_numpy(dtype=bool)
        if not is_supported.any():
            continue
        x = axis_positions(distribution, rows["value"])
        mean, low, high = (
            np.where(is_supported, rows[c].to_numpy(dtype=float), np.nan)
            for c in ("mean", "low", "high")
        )
        if isinstance(distribution, CategoricalDistribution):
            half = (high - low) / 2
            marks.append(
                ScatterMark(
                    x, list(mean), name, color, "diamond", errors=list(half), size=7, opacity=1.0
                )
            )
            continue
        marks.append(BandMark(x, list(low), list(high), _BAND_LABELS[region], color))
        marks.append(LineMark(x, list(mean), name, color, dash=dash))
    return marks


def _stable_range_marks(findings: StudyFindings, loss: str, param: str) -> list[ChartMark]:
    ranges = findings.losses[loss].stable_ranges
    if isinstance(ranges, Refusal):
        return []
    row = ranges[ranges["knob"] == param].iloc[0]
    if row["status"] != "stable" or row["low"] is None or pd.isna(row["low"]):
        return []
    return [SpanMark(float(row["low"]), float(row["high"]), "stable range", GOOD_COLOR)]


def _claim_marks(space: SearchSpace, param: str) -> list[ChartMark]:
    """Return the ranges and values that the paper claims for the hyperparameter."""
    distribution = space.distributions[param]
    if isinstance(distribution, CategoricalDistribution):
        return []
    bounds = (float(distribution.low), float(distribution.high))  # type: ignore[attr-defined]
    marks: list[ChartMark] = []
    for claim in space.claims:
        test = claim.test
        if isinstance(test, StableRange) and test.knob == param:
            low = bounds[0] if test.low is None else max(test.low, bounds[0])
            high = bounds[1] if test.high is None else min(test.high, bounds[1])
            if low < high:
                marks.append(SpanMark(low, high, "claimed stable", PALETTE[1]))
        elif isinstance(test, GoodValue) and test.knob == param and not isinstance(test.value, str):
            marks.append(ReferenceLine(float(test.value), "claimed good", color=PALETTE[1]))
    return marks
