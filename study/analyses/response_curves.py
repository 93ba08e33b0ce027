"""How does the score respond to one hyperparameter, and which values are safe?

Partial dependence of every draw (Moosbauer et al., NeurIPS 2021, on what the bands mean), averaged
once over the complete space and once over settings whose other hyperparameters are good: the first
shows what untuned settings score, the second what tuned ones score.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
import pandas as pd
from optuna.distributions import CategoricalDistribution
from scipy.interpolate import PchipInterpolator
from scipy.stats import qmc

from search_spaces.unit_scale import from_unit
from study.analyses.surrogate.observations import (
    FloatArray,
    LossObservations,
    get_unit_levels,
    snap_to_levels,
)
from study.analyses.surrogate.surrogate import SurrogateModel

CurveRegion = Literal["whole", "good"]
"""Settings of the other hyperparameters: the complete space, or good settings only."""

CONFIDENCE_LEVEL = 0.95
"""Probability at which values are called safe or costly, and claims get a verdict."""


def make_param_grid(surrogate: SurrogateModel, param: str, *, size: int = 21) -> FloatArray:
    """Return the positions of a curve: the levels of a discrete hyperparameter, or a grid."""
    distribution = surrogate.observations.distributions[surrogate.observations.params.index(param)]
    levels = get_unit_levels(distribution, max_levels=size)
    return np.linspace(0.0, 1.0, size) if levels is None else levels


def select_background_points(surrogate: SurrogateModel, region: CurveRegion) -> FloatArray:
    """Return the settings of the other hyperparameters to average over."""
    if region == "good":
        return surrogate.good_settings
    observations = surrogate.observations
    return snap_to_levels(
        observations.distributions, qmc.Sobol(len(observations.params), seed=0).random(128)
    )


def draw_curves(
    surrogate: SurrogateModel, param: str, grid: FloatArray, others: FloatArray
) -> FloatArray:
    """Return draws x grid: the score at each position, averaged over `others`."""
    j = surrogate.observations.params.index(param)
    units = np.repeat(others[None], len(grid), axis=0)
    units[:, :, j] = grid[:, None]
    values = surrogate.draw_scores(units.reshape(-1, others.shape[1]))
    return np.asarray(values.reshape(len(values), len(grid), len(others)).mean(axis=-1))


def has_nearby_trials(
    observations: LossObservations, param: str, grid: FloatArray, *, reach: float = 0.1
) -> np.ndarray:
    """Whether at least two trials lie within `reach` of each position (at it, for a choice).

    A position between two steps of a hyperparameter stands for the nearer one. The positions of
    `grid` may be in any order.
    """
    j = observations.params.index(param)
    distribution = observations.distributions[j]
    positions = observations.units[observations.last, j]
    grid = snap_to_levels((distribution,), grid[:, None])[:, 0]
    if isinstance(distribution, CategoricalDistribution):
        reach = 0.0
    near = (np.abs(positions[None, :] - grid[:, None]) <= reach + 1e-9).sum(axis=1) >= 2
    inside = (grid >= positions.min() - 0.025) & (grid <= positions.max() + 0.025)
    return np.asarray(near & inside)


def analyse_response_curves(
    surrogate: SurrogateModel,
    *,
    tolerance: float,
    regions: tuple[CurveRegion, ...] = ("whole", "good"),
) -> pd.DataFrame:
    """Return the response curves, one row per region, hyperparameter and position.

    Returns:
        `region`, `knob`, `unit`, `value`, `mean`, `low`, `high` (90 %), `supported`, `probability`
        (that the value costs at most `tolerance` compared with the best value) and `status`: `safe`
        (that probability is at least 95 %), `costly` (it costs more than `tolerance` compared with
        the best of the mean curve, with 95 %), `undetermined`, or `no data`.
    """
    frames = []
    for region in regions:
        others = select_background_points(surrogate, region)
        frames += [
            analyse_param_curve(surrogate, region, k, others, tolerance)
            for k in surrogate.observations.params
        ]
    return pd.concat(frames, ignore_index=True)


def _draw_fine_curves(
    surrogate: SurrogateModel, param: str, others: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Return curves on a fine grid; smooth draws are interpolated, which is cheap."""
    grid = make_param_grid(surrogate, param)
    draws = draw_curves(surrogate, param, grid, others)
    distribution = surrogate.observations.distributions[surrogate.observations.params.index(param)]
    if get_unit_levels(distribution, max_levels=len(grid)) is not None:
        return grid, draws
    fine = np.linspace(0.0, 1.0, 81)
    if not surrogate.has_jumps:
        return fine, np.asarray(PchipInterpolator(grid, draws, axis=1)(fine))
    return fine, np.stack([np.interp(fine, grid, draw) for draw in draws])


def analyse_param_curve(
    surrogate: SurrogateModel, region: CurveRegion, param: str, others: FloatArray, tolerance: float
) -> pd.DataFrame:
    """Return the rows of one hyperparameter (see `analyse_response_curves`)."""
    grid, draws = _draw_fine_curves(surrogate, param, others)
    supported = has_nearby_trials(surrogate.observations, param, grid)
    if supported.any() and np.isfinite(tolerance):
        best = draws[:, supported].max(axis=1, keepdims=True)
        probability = (draws >= best - tolerance).mean(axis=0)
        # The maximum of each draw is at another position, which makes every value look costly in
        # some draws: a costly value must be worse than one fixed value.
        fixed = int(np.where(supported, draws.mean(axis=0), -np.inf).argmax())
        costly = (draws[:, [fixed]] - draws > tolerance).mean(axis=0) >= CONFIDENCE_LEVEL
    else:
        probability, costly = np.full(len(grid), np.nan), np.zeros(len(grid), dtype=bool)
    status = np.select(
        [~supported, probability >= CONFIDENCE_LEVEL, costly],
        ["no data", "safe", "costly"],
        default="undetermined",
    )
    low, high = np.quantile(draws, [0.05, 0.95], axis=0)
    distribution = surrogate.observations.distributions[surrogate.observations.params.index(param)]
    return pd.DataFrame(
        {
            "region": region,
            "knob": param,
            "unit": grid,
            "value": pd.Series([from_unit(distribution, u) for u in grid], dtype=object),
            "mean": draws.mean(axis=0),
            "low": low,
            "high": high,
            "supported": supported,
            "probability": probability,
            "status": status,
        }
    )
