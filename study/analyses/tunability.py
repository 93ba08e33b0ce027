"""Is tuning worth it: what does it gain, through which knob, and which may be left alone?"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd
from scipy.stats import qmc

from search_spaces.scale import from_unit
from study.analyses.response import SURE, grid_of, supported
from study.analyses.samples import Array, point_position, published_values, snap
from study.analyses.surrogate import Surrogate
from study.analyses.verdicts import cost_of
from study.table import TrialTable


@dataclass(frozen=True)
class Ends:
    """Where tuning starts and ends: positions of the published and of the best known point."""

    published: Array
    tuned: Array


def ends(table: TrialTable, surrogate: Surrogate) -> Ends | None:
    """None without a published point. The tuned point is the trial of highest *modelled* score,
    which is less of a lucky draw than the trial of highest measured score."""
    samples = surrogate.samples
    values = published_values(table, samples.loss)
    if values is None:
        return None
    published = point_position(values, samples.knobs, samples.distributions)
    return Ends(published, tuned_point(surrogate))


def tuned_point(surrogate: Surrogate) -> Array:
    """Position of the trial of highest modelled score."""
    samples = surrogate.samples
    tried = samples.units[samples.last & ~samples.diverged]
    return np.asarray(tried[int(surrogate.mean(tried).argmax())])


def gain(surrogate: Surrogate, places: Ends) -> tuple[float, float, float]:
    """Tuned less published score: mean and 90 % band."""
    pair = surrogate.draws(np.stack([places.published, places.tuned]))
    return _band(pair[:, 1] - pair[:, 0])


def tunability(surrogate: Surrogate, places: Ends) -> pd.DataFrame:
    """What tuning one knob alone gains over the published point (Probst et al., JMLR 2019).

    Returns `knob`, `published`, `to` (the best value with all else published), `gain`, `low`,
    `high`; largest first.
    """
    samples = surrogate.samples
    rows = []
    for j, (knob, distribution) in enumerate(
        zip(samples.knobs, samples.distributions, strict=True)
    ):
        grid = grid_of(surrogate, knob, size=33)
        units = np.repeat(places.published[None], len(grid) + 1, axis=0)
        units[1:, j] = grid
        draws = surrogate.draws(units)
        top = int(draws[:, 1:].mean(axis=0).argmax())
        mean, low, high = _band(draws[:, 1 + top] - draws[:, 0])
        start = from_unit(distribution, places.published[j])
        rows.append((knob, start, from_unit(distribution, grid[top]), mean, low, high))
    frame = pd.DataFrame(rows, columns=["knob", "published", "to", "gain", "low", "high"])
    return frame.sort_values("gain", ascending=False, ignore_index=True)


def leave(surrogate: Surrogate, places: Ends, *, tolerance: float, seed: int = 0) -> pd.DataFrame:
    """Which knobs may stay published while all others are tuned (Weerts et al. 2020)?

    For each value of the knob the other knobs are set to what scores best there; the published
    value then stands against the others. Values without trials say nothing.

    Returns `knob`, `risk` (score lost by not tuning it), `low`, `high` (see `Cost`), `probability`
    (that the loss is at most `tolerance`), `verdict`: `may stay` (`high` is within the tolerance),
    `set it` (`low` is beyond it), or `cannot tell`.
    """
    candidates = _candidates(surrogate, seed)
    rows = []
    for j, knob in enumerate(surrogate.samples.knobs):
        found = _profile(surrogate, candidates, j, float(places.published[j]))
        if found is None or not np.isfinite(tolerance):
            rows.append((knob, *[float("nan")] * 4, "cannot tell"))
            continue
        cost = cost_of(found, found[:, :1], tolerance)
        verdict = (
            "may stay"
            if cost.within >= SURE
            else "set it"
            if cost.beyond >= SURE
            else "cannot tell"
        )
        rows.append((knob, cost.mean, max(cost.low, 0.0), cost.high, cost.within, verdict))
    columns = ["knob", "risk", "low", "high", "probability", "verdict"]
    return pd.DataFrame(rows, columns=columns)


def _profile(surrogate: Surrogate, candidates: Array, j: int, published: float) -> Array | None:
    """Draws x values of a knob, the published one first: the score with the others at their best.

    None if it or all others have no trials. The others' best is by the mean, as a tuner would
    choose it, out of the settings that are best with the knob published and with it free.
    """
    knob = surrogate.samples.knobs[j]
    grid = grid_of(surrogate, knob)
    values = np.concatenate([[published], grid[np.abs(grid - published) > 1e-9]])
    known = supported(surrogate.samples, knob, values)
    if not known[0] or known.sum() < 2:
        return None
    values = values[known]
    held = candidates.copy()
    held[:, j] = published
    order = (np.argsort(-surrogate.mean(units), kind="stable") for units in (held, candidates))
    others = np.unique(held[np.concatenate([rank[:12] for rank in order])], axis=0)
    units = np.repeat(others[None], len(values), axis=0)
    units[:, :, j] = values[:, None]
    draws = surrogate.draws(units.reshape(-1, units.shape[-1]))
    draws = draws.reshape(len(draws), *units.shape[:2])
    best = draws.mean(axis=0).argmax(axis=1)
    return np.asarray(draws[:, np.arange(len(values)), best])


def path(surrogate: Surrogate, places: Ends) -> pd.DataFrame:
    """From published to tuned, one knob at a time, the most useful first (Biedenkapp et al. 2017).

    The order is greedy and not the only one. Returns `step`, `knob`, `to`, `score`, `gain`, `low`,
    `high`; step 0 is the published point.
    """
    samples = surrogate.samples
    here = places.published.copy()
    left = [j for j in range(len(samples.knobs)) if here[j] != places.tuned[j]]
    start = surrogate.draws(here)[:, 0]
    rows: list[tuple[object, ...]] = [(0, "published", "", float(start.mean()), 0.0, 0.0, 0.0)]
    while left:
        options = np.repeat(here[None], len(left) + 1, axis=0)
        for row, j in enumerate(left):
            options[row + 1, j] = places.tuned[j]
        draws = surrogate.draws(options)
        pick = int(draws[:, 1:].mean(axis=0).argmax())
        j = left.pop(pick)
        mean, low, high = _band(draws[:, pick + 1] - draws[:, 0])
        here = options[pick + 1]
        value = from_unit(samples.distributions[j], here[j])
        score = float(draws[:, pick + 1].mean())
        rows.append((len(rows), samples.knobs[j], value, score, mean, low, high))
    return pd.DataFrame(rows, columns=["step", "knob", "to", "score", "gain", "low", "high"])


def _candidates(surrogate: Surrogate, seed: int) -> Array:
    """Settings a tuner might end at: the best tried, steps around them, and the whole space."""
    samples = surrogate.samples
    rng = np.random.default_rng(seed)
    tried = samples.units[samples.last & ~samples.diverged]
    best = tried[np.argsort(-surrogate.mean(tried), kind="stable")[:12]]
    near = np.repeat(best, 8, axis=0)
    near = np.clip(near + 0.07 * rng.standard_normal(near.shape), 0.0, 1.0)
    wide = qmc.Sobol(len(samples.knobs), seed=seed).random(128)
    return snap(samples.distributions, np.concatenate([best, near, wide]))


def _band(values: Array) -> tuple[float, float, float]:
    low, high = np.quantile(values, [0.05, 0.95])
    return float(values.mean()), float(low), float(high)
