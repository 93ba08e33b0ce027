"""Is tuning worth it: what does it gain, by which hyperparameter, and which need no tuning?"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd
from scipy.stats import qmc

from search_spaces.unit_scale import from_unit
from study.analyses.range_cost import compute_range_cost
from study.analyses.response_curves import CONFIDENCE_LEVEL, has_nearby_trials, make_param_grid
from study.analyses.surrogate.observations import FloatArray, point_to_unit_cube, snap_to_levels
from study.analyses.surrogate.surrogate import SurrogateModel
from study.trials.selection import get_published_params
from study.trials.table import TrialTable


@dataclass(frozen=True)
class TuningEndpoints:
    """Where tuning starts and ends: positions of the published and of the best known point."""

    published_point: FloatArray
    tuned_point: FloatArray


def find_tuning_endpoints(table: TrialTable, surrogate: SurrogateModel) -> TuningEndpoints | None:
    """Return the published and the tuned point; None without a published point.

    The tuned point is the trial of highest *modelled* score, which depends less on luck than the
    trial of highest measured score.
    """
    observations = surrogate.observations
    values = get_published_params(table, observations.loss)
    if values is None:
        return None
    published = point_to_unit_cube(values, observations.params, observations.distributions)
    return TuningEndpoints(published, find_tuned_point(surrogate))


def find_tuned_point(surrogate: SurrogateModel) -> FloatArray:
    """Return the position of the trial of highest modelled score."""
    observations = surrogate.observations
    tried = observations.units[observations.last & ~observations.diverged]
    return np.asarray(tried[int(surrogate.predict_mean(tried).argmax())])


def estimate_tuning_gain(
    surrogate: SurrogateModel, endpoints: TuningEndpoints
) -> tuple[float, float, float]:
    """Return tuned minus published score: mean and 90 % band."""
    pair = surrogate.draw_scores(np.stack([endpoints.published_point, endpoints.tuned_point]))
    return _mean_band(pair[:, 1] - pair[:, 0])


def analyse_tunability(surrogate: SurrogateModel, endpoints: TuningEndpoints) -> pd.DataFrame:
    """Return what tuning one hyperparameter alone gains over the published point.

    Tunability of Probst et al., JMLR 2019.

    Returns:
        `knob`, `published`, `to` (the best value with all else published), `gain`, `low`, `high`;
        largest first.
    """
    observations = surrogate.observations
    rows = []
    for j, (param, distribution) in enumerate(
        zip(observations.params, observations.distributions, strict=True)
    ):
        grid = make_param_grid(surrogate, param, size=33)
        units = np.repeat(endpoints.published_point[None], len(grid) + 1, axis=0)
        units[1:, j] = grid
        draws = surrogate.draw_scores(units)
        top = int(draws[:, 1:].mean(axis=0).argmax())
        mean, low, high = _mean_band(draws[:, 1 + top] - draws[:, 0])
        start = from_unit(distribution, endpoints.published_point[j])
        rows.append((param, start, from_unit(distribution, grid[top]), mean, low, high))
    frame = pd.DataFrame(rows, columns=["knob", "published", "to", "gain", "low", "high"])
    return frame.sort_values("gain", ascending=False, ignore_index=True)


def assess_keeping_published(
    surrogate: SurrogateModel, endpoints: TuningEndpoints, *, tolerance: float, seed: int = 0
) -> pd.DataFrame:
    """Which hyperparameters can keep their published value while all others are tuned?

    The question of Weerts et al. 2020. For each value of the hyperparameter, the others are set to
    what scores best there; the published value is then compared with the other values. Values
    without trials are ignored.

    Returns:
        `knob`, `risk` (score lost by not tuning it), `low`, `high` (see `RangeCost`), `probability`
        (that the loss is at most `tolerance`), `verdict`: `may stay` (`high` is within the
        tolerance), `set it` (`low` is beyond it), or `cannot tell`.
    """
    candidates = _tuner_candidates(surrogate, seed)
    rows = []
    for j, param in enumerate(surrogate.observations.params):
        profile = _profile_param(surrogate, candidates, j, float(endpoints.published_point[j]))
        if profile is None or not np.isfinite(tolerance):
            rows.append((param, *[float("nan")] * 4, "cannot tell"))
            continue
        cost = compute_range_cost(profile, profile[:, :1], tolerance)
        verdict = (
            "may stay"
            if cost.probability_within >= CONFIDENCE_LEVEL
            else "set it"
            if cost.probability_beyond >= CONFIDENCE_LEVEL
            else "cannot tell"
        )
        rows.append(
            (param, cost.mean, max(cost.low, 0.0), cost.high, cost.probability_within, verdict)
        )
    columns = ["knob", "risk", "low", "high", "probability", "verdict"]
    return pd.DataFrame(rows, columns=columns)


def _profile_param(
    surrogate: SurrogateModel, candidates: FloatArray, j: int, published: float
) -> FloatArray | None:
    """Return draws x values, the published value first: the score with the others at their best.

    None if the published value or all others have no trials. The best setting of the others is
    chosen by the mean, as a tuner would, from the settings that are best with the hyperparameter
    published and with it free.
    """
    param = surrogate.observations.params[j]
    grid = make_param_grid(surrogate, param)
    values = np.concatenate([[published], grid[np.abs(grid - published) > 1e-9]])
    supported = has_nearby_trials(surrogate.observations, param, values)
    if not supported[0] or supported.sum() < 2:
        return None
    values = values[supported]
    at_published = candidates.copy()
    at_published[:, j] = published
    orders = (
        np.argsort(-surrogate.predict_mean(units), kind="stable")
        for units in (at_published, candidates)
    )
    others = np.unique(at_published[np.concatenate([order[:12] for order in orders])], axis=0)
    units = np.repeat(others[None], len(values), axis=0)
    units[:, :, j] = values[:, None]
    draws = surrogate.draw_scores(units.reshape(-1, units.shape[-1]))
    draws = draws.reshape(len(draws), *units.shape[:2])
    best = draws.mean(axis=0).argmax(axis=1)
    return np.asarray(draws[:, np.arange(len(values)), best])


def compute_ablation_path(surrogate: SurrogateModel, endpoints: TuningEndpoints) -> pd.DataFrame:
    """Return the path from published to tuned, one hyperparameter at a time, the most useful first.

    Ablation of Biedenkapp et al. 2017. The order is greedy and not the only one.

    Returns:
        `step`, `knob`, `to`, `score`, `gain`, `low`, `high`; step 0 is the published point.
    """
    observations = surrogate.observations
    current = endpoints.published_point.copy()
    remaining = [
        j for j in range(len(observations.params)) if current[j] != endpoints.tuned_point[j]
    ]
    start = surrogate.draw_scores(current)[:, 0]
    rows: list[tuple[object, ...]] = [(0, "published", "", float(start.mean()), 0.0, 0.0, 0.0)]
    while remaining:
        options = np.repeat(current[None], len(remaining) + 1, axis=0)
        for row, j in enumerate(remaining):
            options[row + 1, j] = endpoints.tuned_point[j]
        draws = surrogate.draw_scores(options)
        pick = int(draws[:, 1:].mean(axis=0).argmax())
        j = remaining.pop(pick)
        mean, low, high = _mean_band(draws[:, pick + 1] - draws[:, 0])
        current = options[pick + 1]
        value = from_unit(observations.distributions[j], current[j])
        score = float(draws[:, pick + 1].mean())
        rows.append((len(rows), observations.params[j], value, score, mean, low, high))
    return pd.DataFrame(rows, columns=["step", "knob", "to", "score", "gain", "low", "high"])


def _tuner_candidates(surrogate: SurrogateModel, seed: int) -> FloatArray:
    """Return candidates for the end of tuning: the best trials, their neighbours, Sobol points."""
    observations = surrogate.observations
    rng = np.random.default_rng(seed)
    tried = observations.units[observations.last & ~observations.diverged]
    best = tried[np.argsort(-surrogate.predict_mean(tried), kind="stable")[:12]]
    near = np.repeat(best, 8, axis=0)
    near = np.clip(near + 0.07 * rng.standard_normal(near.shape), 0.0, 1.0)
    wide = qmc.Sobol(len(observations.params), seed=seed).random(128)
    return snap_to_levels(observations.distributions, np.concatenate([best, near, wide]))


def _mean_band(values: FloatArray) -> tuple[float, float, float]:
    low, high = np.quantile(values, [0.05, 0.95])
    return float(values.mean()), float(low), float(high)
