"""Which 10 to 20 further trials would narrow the answers most?

The answers are response curves, so the value of a trial is the variance it would remove from them,
above all where a stable range is still undetermined. Draws of curves and of candidate trials come
from the same functions, so the reduction follows from a covariance. Trials are chosen one by one,
each conditional on the ones before it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
from scipy.stats import qmc

from search_spaces.unit_scale import from_unit
from study.analyses.claims.settling_trials import POINT_COLUMNS
from study.analyses.loss_model import LossModel
from study.analyses.response_curves import (
    draw_curves,
    has_nearby_trials,
    make_param_grid,
    select_background_points,
)
from study.analyses.surrogate.observations import FloatArray, snap_to_levels
from study.analyses.surrogate.seed_noise import estimate_seed_noise
from study.analyses.surrogate.surrogate import Refusal, SurrogateModel, min_trials_to_fit
from study.analyses.tunability import find_tuned_point
from study.trials.selection import select_validation_trials
from study.trials.table import PARAM_PREFIX, TrialTable


@dataclass
class CandidatePool:
    """Candidate trials of one loss and their covariance with its response curves.

    Args:
        units: Positions of the candidates.
        covariance: Of curve points and candidates, in units of the tolerance.
        weights: Importance of each curve point.
        params: Hyperparameter of each curve point.
        noise_variance: Of a new trial, in units of the tolerance.
    """

    loss: str
    units: FloatArray
    covariance: FloatArray
    weights: FloatArray
    params: tuple[str, ...]
    noise_variance: float

    def copy(self) -> CandidatePool:
        """Return a pool that can be conditioned without changing this one."""
        return replace(self, covariance=self.covariance.copy())

    def compute_variance_reductions(self) -> FloatArray:
        """Return the variance of the weighted curve points that each candidate would remove."""
        n = len(self.weights)
        cross = self.covariance[:n, n:]
        return np.asarray(
            (self.weights[:, None] * cross**2).sum(0)
            / (np.diag(self.covariance)[n:] + self.noise_variance)
        )

    def find_narrowed_param(self, index: int) -> str:
        """Return the hyperparameter whose curve the candidate narrows most."""
        n = len(self.weights)
        parts = self.weights * self.covariance[:n, n + index] ** 2
        totals = {k: float(parts[np.array(self.params) == k].sum()) for k in self.params}
        return max(totals, key=lambda k: totals[k])

    def condition_on_candidate(self, index: int) -> None:
        """Condition the covariance on a trial at the candidate."""
        column = self.covariance[:, len(self.weights) + index].copy()
        scale = column[len(self.weights) + index] + self.noise_variance
        self.covariance -= np.outer(column, column) / scale


def prepare_candidate_pool(
    loss: str, model: SurrogateModel | Refusal, tolerance: float, *, seed: int = 0
) -> CandidatePool | None:
    """Build the candidate pool of one loss; None without a model or a tolerance.

    This takes about as long as the response curves of the loss and is independent of other losses.
    """
    if isinstance(model, Refusal) or not np.isfinite(tolerance):
        return None
    return _build_candidate_pool(loss, model, tolerance, seed)


def suggest_trials(
    table: TrialTable,
    models: Mapping[str, LossModel],
    *,
    n: int = 16,
    seed: int = 0,
    pools: Mapping[str, CandidatePool | None] | None = None,
) -> pd.DataFrame:
    """Suggest `n` points to run, most useful first.

    A study without repeated seeds first gets repeats of the best point of each loss; losses with
    too few trials for a model get Sobol points.

    Args:
        pools: Results of `prepare_candidate_pool`, if they exist already.

    Returns:
        `POINT_COLUMNS` (`why` in words), `worth` (share of the open variance that the trial
        removes) and one `knob.NAME` per hyperparameter.
    """
    rows = _suggest_repeats(table, models)[: max(n // 3, 1)]
    rows += _suggest_sobol_points(table, models, n - len(rows), seed)
    if pools is None:
        pools = {
            k: prepare_candidate_pool(k, m.surrogate, m.tolerance, seed=seed)
            for k, m in models.items()
        }
    open_pools = [p.copy() for p in pools.values() if p is not None]
    open_variance = sum(
        float(p.weights @ np.diag(p.covariance)[: len(p.weights)]) for p in open_pools
    )
    while len(rows) < n and open_pools and open_variance > 0:
        reductions = [pool.compute_variance_reductions() for pool in open_pools]
        best = int(np.argmax([r.max() for r in reductions]))
        pool, index = open_pools[best], int(reductions[best].argmax())
        share = float(reductions[best][index]) / open_variance
        why = f"narrows the curve of {pool.find_narrowed_param(index)}"
        pool.condition_on_candidate(index)
        model = models[pool.loss].surrogate
        assert isinstance(model, SurrogateModel)
        rows.append(_suggestion_row(model, pool.units[index], "bayes", 0, why) | {"worth": share})
    return pd.DataFrame(rows, columns=None if rows else [*POINT_COLUMNS, "worth"])


def _build_candidate_pool(
    loss: str, model: SurrogateModel, tolerance: float, seed: int
) -> CandidatePool:
    others = select_background_points(model, "good")
    curves, weights, params = [], [], []
    for param in model.observations.params:
        grid = make_param_grid(model, param, size=9)
        supported = has_nearby_trials(model.observations, param, grid)
        draws = draw_curves(model, param, grid, others)
        centred = draws - draws.mean(axis=1, keepdims=True)
        candidates = draws[:, supported] if supported.any() else draws
        best = candidates.max(axis=1, keepdims=True)
        safe = (draws >= best - tolerance).mean(axis=0)
        params += [param] * len(grid)
        curves.append(centred / max(tolerance, 1e-12))
        # Undecided values have the largest weight, decided ones hardly any.
        weights.append(4 * safe * (1 - safe) + 0.02 + 0.2 * ~supported)
    rng = np.random.default_rng(seed)
    wide = qmc.Sobol(len(model.observations.params), seed=seed).random(128)
    near = np.clip(others + 0.1 * rng.standard_normal(others.shape), 0.0, 1.0)
    units = snap_to_levels(model.observations.distributions, np.concatenate([wide, others, near]))
    trials = model.draw_scores(units) / max(tolerance, 1e-12)
    joint = np.concatenate([*curves, trials], axis=1)
    noise = (model.noise_sd / max(tolerance, 1e-12)) ** 2
    covariance = np.cov(joint, rowvar=False)
    return CandidatePool(loss, units, covariance, np.concatenate(weights), tuple(params), noise)


def _suggest_repeats(table: TrialTable, models: Mapping[str, LossModel]) -> list[dict[str, Any]]:
    if estimate_seed_noise(table).source == "repeats":
        return []
    rows = []
    for model in models.values():
        if isinstance(model.surrogate, SurrogateModel):
            for seed in (1, 2):
                why = "no seed was repeated, so the seed noise is unknown"
                unit = find_tuned_point(model.surrogate)
                rows.append(
                    _suggestion_row(model.surrogate, unit, "repeat", seed, why) | {"worth": np.nan}
                )
    return rows


def _suggest_sobol_points(
    table: TrialTable, models: Mapping[str, LossModel], max_points: int, seed: int
) -> list[dict[str, Any]]:
    """Suggest new Sobol points for losses without a model, shared evenly among them."""
    unmodelled = [loss for loss, m in models.items() if not isinstance(m.surrogate, SurrogateModel)]
    rows: list[dict[str, Any]] = []
    for loss in unmodelled:
        space = table.spaces[loss]
        d = len(space.distributions)
        scored = int(select_validation_trials(table, loss)["score"].notna().sum())
        share = max(max_points // len(unmodelled), 1)
        count = min(max(min_trials_to_fit(d) - scored, 0), share)
        if d == 0 or count == 0:
            continue
        why = "too few trials to model this loss"
        # A power of two, cut to size: scipy warns about unbalanced counts.
        length = max(count - 1, 0).bit_length()
        for unit in qmc.Sobol(d, seed=seed + 7919).random_base2(length)[:count]:
            values = {
                PARAM_PREFIX + k: from_unit(dist, u)
                for (k, dist), u in zip(space.distributions.items(), unit, strict=True)
            }
            rows.append(
                {
                    "loss": loss,
                    "origin": "sobol",
                    "anchor": "",
                    "swept": "",
                    "seed": 0,
                    "why": why,
                    "worth": np.nan,
                    **values,
                }
            )
    return rows[: max(max_points, 0)]


def _suggestion_row(
    model: SurrogateModel, unit: FloatArray, origin: str, seed: int, why: str
) -> dict[str, Any]:
    observations = model.observations
    values = {
        PARAM_PREFIX + k: from_unit(d, u)
        for k, d, u in zip(observations.params, observations.distributions, unit, strict=True)
    }
    point = {"loss": observations.loss, "origin": origin, "anchor": "", "swept": "", "seed": seed}
    return {**point, "why": why, **values}
