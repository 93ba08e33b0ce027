"""How does the score respond to one knob, and over which values is it safe?

Partial dependence of every draw (Moosbauer et al., NeurIPS 2021, give the bands' meaning), once
averaged over the whole space and once over settings whose other knobs are good: the first tells
what a blind user gets, the second what a careful one does.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
import pandas as pd
from optuna.distributions import CategoricalDistribution
from scipy.interpolate import PchipInterpolator
from scipy.stats import qmc

from search_spaces.scale import from_unit
from study.analyses.samples import Array, Samples, snap, unit_levels
from study.analyses.surrogate import Surrogate

Region = Literal["whole", "good"]
SURE = 0.95


def grid_of(surrogate: Surrogate, knob: str, *, size: int = 21) -> Array:
    """Positions a curve is drawn at: the values of a choice, a regular grid otherwise."""
    distribution = surrogate.samples.distributions[surrogate.samples.knobs.index(knob)]
    levels = unit_levels(distribution, most=size)
    return np.linspace(0.0, 1.0, size) if levels is None else levels


def background(surrogate: Surrogate, region: Region) -> Array:
    """Settings of the other knobs to average over."""
    if region == "good":
        return surrogate.good
    samples = surrogate.samples
    return snap(samples.distributions, qmc.Sobol(len(samples.knobs), seed=0).random(128))


def curve_draws(surrogate: Surrogate, knob: str, grid: Array, others: Array) -> Array:
    """Draws x grid: the score averaged over `others` with the knob set to each position."""
    j = surrogate.samples.knobs.index(knob)
    units = np.repeat(others[None], len(grid), axis=0)
    units[:, :, j] = grid[:, None]
    values = surrogate.draws(units.reshape(-1, others.shape[1]))
    return np.asarray(values.reshape(len(values), len(grid), len(others)).mean(axis=-1))


def supported(samples: Samples, knob: str, grid: Array, *, reach: float = 0.1) -> np.ndarray:
    """Whether at least two trials lie within `reach` of a position (at it, for a choice).

    A position between two steps of a knob stands for the nearer one; the order of `grid` is free.
    """
    j = samples.knobs.index(knob)
    distribution = samples.distributions[j]
    places = samples.units[samples.last, j]
    grid = snap((distribution,), grid[:, None])[:, 0]
    if isinstance(distribution, CategoricalDistribution):
        reach = 0.0
    near = (np.abs(places[None, :] - grid[:, None]) <= reach + 1e-9).sum(axis=1) >= 2
    inside = (grid >= places.min() - 0.025) & (grid <= places.max() + 0.025)
    return np.asarray(near & inside)


def analyse(
    surrogate: Surrogate, *, tolerance: float, regions: tuple[Region, ...] = ("whole", "good")
) -> pd.DataFrame:
    """One row per region, knob and position of the curves.

    Returns:
        `region`, `knob`, `unit`, `value`, `mean`, `low`, `high` (90 %), `supported`,
        `probability` (that the value costs at most `tolerance` against the best value of the knob)
        and `status`: `safe` (that is at least 95 %), `costly` (it costs more than `tolerance`
        against the best of the mean curve with 95 %), `undetermined`, or `no data`.
    """
    frames = []
    for region in regions:
        others = background(surrogate, region)
        frames += [curve(surrogate, region, k, others, tolerance) for k in surrogate.samples.knobs]
    return pd.concat(frames, ignore_index=True)


def _fine(surrogate: Surrogate, knob: str, others: Array) -> tuple[Array, Array]:
    """Curves on a fine grid: smooth draws are interpolated, which costs nothing."""
    grid = grid_of(surrogate, knob)
    draws = curve_draws(surrogate, knob, grid, others)
    distribution = surrogate.samples.distributions[surrogate.samples.knobs.index(knob)]
    if unit_levels(distribution, most=len(grid)) is not None:
        return grid, draws
    fine = np.linspace(0.0, 1.0, 81)
    if not surrogate.jumps:
        return fine, np.asarray(PchipInterpolator(grid, draws, axis=1)(fine))
    return fine, np.stack([np.interp(fine, grid, draw) for draw in draws])


def curve(
    surrogate: Surrogate, region: Region, knob: str, others: Array, tolerance: float
) -> pd.DataFrame:
    """One knob's rows of `analyse`."""
    grid, draws = _fine(surrogate, knob, others)
    known = supported(surrogate.samples, knob, grid)
    if known.any() and np.isfinite(tolerance):
        best = draws[:, known].max(axis=1, keepdims=True)
        probability = (draws >= best - tolerance).mean(axis=0)
        # A draw's own maximum wanders, which makes every value look costly in some draws: to call
        # a value costly it must lose against one fixed value.
        rival = int(np.where(known, draws.mean(axis=0), -np.inf).argmax())
        costly = (draws[:, [rival]] - draws > tolerance).mean(axis=0) >= SURE
    else:
        probability, costly = np.full(len(grid), np.nan), np.zeros(len(grid), dtype=bool)
    status = np.select(
        [~known, probability >= SURE, costly],
        ["no data", "safe", "costly"],
        default="undetermined",
    )
    low, high = np.quantile(draws, [0.05, 0.95], axis=0)
    distribution = surrogate.samples.distributions[surrogate.samples.knobs.index(knob)]
    return pd.DataFrame(
        {
            "region": region,
            "knob": knob,
            "unit": grid,
            "value": pd.Series([from_unit(distribution, u) for u in grid], dtype=object),
            "mean": draws.mean(axis=0),
            "low": low,
            "high": high,
            "supported": known,
            "probability": probability,
            "status": status,
        }
    )
