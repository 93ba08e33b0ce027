"""Which 10 to 20 trials would narrow the answer most?

The answer is made of response curves, so a trial is worth as much as it would shrink their
variance, most of all where a stable range is still undetermined. Draws of curves and of candidate
trials share their functions, so the shrinkage is a covariance, and trials are picked one by one,
each given the ones before it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
from scipy.stats import qmc

from search_spaces.scale import from_unit
from study.analyses.loss_model import LossModel
from study.analyses.noise import seed_noise
from study.analyses.response import background, curve_draws, grid_of, supported
from study.analyses.samples import Array, searching, snap
from study.analyses.settle import POINT_COLUMNS
from study.analyses.surrogate import Refusal, Surrogate, least_trials
from study.analyses.tuning import tuned_point
from study.table import KNOB, TrialTable


@dataclass
class Pool:
    """Candidates of one loss and what they would tell."""

    loss: str
    units: Array
    covariance: Array  # (curve points + candidates) squared, in tolerances
    weights: Array
    knobs: tuple[str, ...]  # of each curve point
    noise: float

    def copy(self) -> Pool:
        """One to take trials from."""
        return replace(self, covariance=self.covariance.copy())

    def worth(self) -> Array:
        """Variance of the weighted curve points that each candidate would remove."""
        n = len(self.weights)
        cross = self.covariance[:n, n:]
        return np.asarray(
            (self.weights[:, None] * cross**2).sum(0) / (np.diag(self.covariance)[n:] + self.noise)
        )

    def helps(self, index: int) -> str:
        """The knob whose curve the candidate narrows most."""
        n = len(self.weights)
        parts = self.weights * self.covariance[:n, n + index] ** 2
        totals = {k: float(parts[np.array(self.knobs) == k].sum()) for k in self.knobs}
        return max(totals, key=lambda k: totals[k])

    def take(self, index: int) -> None:
        """Condition everything on a trial at the candidate."""
        column = self.covariance[:, len(self.weights) + index].copy()
        scale = column[len(self.weights) + index] + self.noise
        self.covariance -= np.outer(column, column) / scale


def prepare(
    loss: str, model: Surrogate | Refusal, tolerance: float, *, seed: int = 0
) -> Pool | None:
    """What trials of one loss could tell; None without a model or a tolerance.

    It takes about as long as the loss's curves, and needs no other loss.
    """
    if isinstance(model, Refusal) or not np.isfinite(tolerance):
        return None
    return _pool(loss, model, tolerance, seed)


def advise(
    table: TrialTable,
    models: Mapping[str, LossModel],
    *,
    n: int = 16,
    seed: int = 0,
    pools: Mapping[str, Pool | None] | None = None,
) -> pd.DataFrame:
    """`n` points to run, most useful first.

    Losses too thinly sampled to be modelled first get Sobol points; a study without repeated
    seeds first gets repeats of each loss's best point. `pools` are those of `prepare`, if there
    are some already.

    Returns `POINT_COLUMNS` (`why` in words), `worth` (share of the open variance each removes)
    and one `knob.NAME` per knob.
    """
    rows = _repeats(table, models)[: max(n // 3, 1)]
    rows += _thin(table, models, n - len(rows), seed)
    if pools is None:
        pools = {k: prepare(k, m.surrogate, m.tolerance, seed=seed) for k, m in models.items()}
    known = [p.copy() for p in pools.values() if p is not None]
    open_variance = sum(float(p.weights @ np.diag(p.covariance)[: len(p.weights)]) for p in known)
    while len(rows) < n and known and open_variance > 0:
        worths = [pool.worth() for pool in known]
        best = int(np.argmax([w.max() for w in worths]))
        pool, index = known[best], int(worths[best].argmax())
        share = float(worths[best][index]) / open_variance
        why = f"narrows the curve of {pool.helps(index)}"
        pool.take(index)
        model = models[pool.loss].surrogate
        assert isinstance(model, Surrogate)
        rows.append(_row(model, pool.units[index], "bayes", 0, why) | {"worth": share})
    return pd.DataFrame(rows, columns=None if rows else [*POINT_COLUMNS, "worth"])


def _pool(loss: str, model: Surrogate, tolerance: float, seed: int) -> Pool:
    others = background(model, "good")
    curves, weights, knobs = [], [], []
    for knob in model.samples.knobs:
        grid = grid_of(model, knob, size=9)
        known = supported(model.samples, knob, grid)
        draws = curve_draws(model, knob, grid, others)
        centred = draws - draws.mean(axis=1, keepdims=True)
        best = draws[:, known].max(axis=1, keepdims=True) if known.any() else draws.max(1)[:, None]
        safe = (draws >= best - tolerance).mean(axis=0)
        knobs += [knob] * len(grid)
        curves.append(centred / max(tolerance, 1e-12))
        # An answer that could go either way weighs most; a settled one hardly.
        weights.append(4 * safe * (1 - safe) + 0.02 + 0.2 * ~known)
    rng = np.random.default_rng(seed)
    wide = qmc.Sobol(len(model.samples.knobs), seed=seed).random(128)
    near = np.clip(others + 0.1 * rng.standard_normal(others.shape), 0.0, 1.0)
    units = snap(model.samples.distributions, np.concatenate([wide, others, near]))
    trials = model.draws(units) / max(tolerance, 1e-12)
    joint = np.concatenate([*curves, trials], axis=1)
    noise = (model.noise / max(tolerance, 1e-12)) ** 2
    covariance = np.cov(joint, rowvar=False)
    return Pool(loss, units, covariance, np.concatenate(weights), tuple(knobs), noise)


def _repeats(table: TrialTable, models: Mapping[str, LossModel]) -> list[dict[str, Any]]:
    if seed_noise(table).source == "repeats":
        return []
    rows = []
    for model in models.values():
        if isinstance(model.surrogate, Surrogate):
            for seed in (1, 2):
                why = "no seed was repeated, so nothing says what a real difference is"
                unit = tuned_point(model.surrogate)
                rows.append(_row(model.surrogate, unit, "repeat", seed, why) | {"worth": np.nan})
    return rows


def _thin(
    table: TrialTable, models: Mapping[str, LossModel], room: int, seed: int
) -> list[dict[str, Any]]:
    """Sobol points for losses without a model, shared evenly; new ones, not those already run."""
    thin = [loss for loss, m in models.items() if not isinstance(m.surrogate, Surrogate)]
    rows: list[dict[str, Any]] = []
    for loss in thin:
        space = table.spaces[loss]
        d = len(space.distributions)
        scored = searching(table, loss)["score"].notna().sum()
        count = min(max(least_trials(d) - int(scored), 0), max(room // len(thin), 1))
        if d == 0 or count == 0:
            continue
        why = "too few trials to model this loss"
        # A power of two and a cut: other counts are unbalanced, and scipy says so.
        length = max(count - 1, 0).bit_length()
        for unit in qmc.Sobol(d, seed=seed + 7919).random_base2(length)[:count]:
            values = {
                KNOB + k: from_unit(dist, u)
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
    return rows[: max(room, 0)]


def _row(model: Surrogate, unit: Array, origin: str, seed: int, why: str) -> dict[str, Any]:
    samples = model.samples
    values = {
        KNOB + k: from_unit(d, u)
        for k, d, u in zip(samples.knobs, samples.distributions, unit, strict=True)
    }
    head = {"loss": samples.loss, "origin": origin, "anchor": "", "swept": "", "seed": seed}
    return {**head, "why": why, **values}
