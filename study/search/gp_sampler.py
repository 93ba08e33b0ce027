"""Where would a Gaussian process look next?

A sampler for few knobs and expensive trials: it learns from every finished trial where TPE needs a
dozen to tell good from bad, and takes some ten milliseconds for a point. One Matern-5/2 kernel over
the unit cube of the sampling scale, with a length for each knob; the point with the most expected
improvement over the best score it believes in, which luck of one seed cannot raise.

Trials that run are believed to end as expected, so that points asked together differ. Diverged ones
count as the worst score seen, failed ones as a middling one: a region where training explodes, or
where memory never suffices, is not asked again and again, and one accident spoils no good region.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import optuna
from numpy.typing import NDArray
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution
from optuna.samplers import BaseSampler, RandomSampler
from optuna.trial import FrozenTrial, TrialState

from search_spaces.scale import from_unit, to_unit
from study.threads import one_thread
from study.tuning.posterior import Posterior, fit_posterior, priors

Array = NDArray[np.float64]
DIVERGED = "diverged"
"""User attribute of a failed trial whose settings are to blame."""
MOST_POINTS = 300
"""Trials the model is fitted to, at most: the better half, and the latest."""
ANYWHERE, AROUND, LEADERS = 1024, 96, 5
STEPS = (0.03, 0.1, 0.3)
REFINEMENTS = (0.1, 0.03, 0.01)


def settings() -> dict[str, Any]:
    """What shapes its choices besides the seed, for a study's record."""
    return {
        "model": "Gaussian process of dml-study",
        "kernel": "Matern 5/2, a length for each knob, maximum a posteriori",
        "acquisition": "logarithm of the expected improvement over the best posterior mean",
        "running": "believed to end as expected",
        "diverged": "as the worst score",
        "failed": "as the median score",
        "most_points": MOST_POINTS,
        "candidates": {"anywhere": ANYWHERE, "around": AROUND, "leaders": LEADERS},
        "steps": list(STEPS),
        "refinements": list(REFINEMENTS),
        **priors(),
    }


class GaussianSampler(BaseSampler):
    """Expected improvement under a Gaussian process.

    Args:
        seed: Of the candidates.
        n_startup_trials: Points drawn at random while fewer trials have a value.
    """

    def __init__(self, *, seed: int | None = None, n_startup_trials: int = 4) -> None:
        self._rng = np.random.default_rng(seed)
        self._startup = max(n_startup_trials, 2)
        self._random = RandomSampler(seed=seed)

    def infer_relative_search_space(
        self, study: optuna.Study, trial: FrozenTrial
    ) -> dict[str, BaseDistribution]:
        """All knobs of the trials so far."""
        return optuna.search_space.intersection_search_space(study.get_trials(deepcopy=False))

    def sample_independent(
        self,
        study: optuna.Study,
        trial: FrozenTrial,
        param_name: str,
        param_distribution: BaseDistribution,
    ) -> Any:
        """At random: there is no model of a knob that was never set."""
        return self._random.sample_independent(study, trial, param_name, param_distribution)

    @one_thread
    def sample_relative(
        self,
        study: optuna.Study,
        trial: FrozenTrial,
        search_space: dict[str, BaseDistribution],
    ) -> dict[str, Any]:
        """The next point; nothing while too little is known."""
        trials = study.get_trials(deepcopy=False)
        done = [t for t in trials if t.state == TrialState.COMPLETE]
        if not search_space or len(done) < self._startup:
            return {}
        ended = [t for t in trials if t.state in (TrialState.COMPLETE, TrialState.FAIL)]
        known, scores = _units(ended, search_space), _scores(ended, done)
        kept = _telling(scores)
        running = [t for t in trials if t.state == TrialState.RUNNING and t.number != trial.number]
        kinds = [isinstance(d, CategoricalDistribution) for d in search_space.values()]
        model = fit_posterior(known[kept], scores[kept], kinds)
        model = model.believing(_units(running, search_space))
        unit = self._best(model, search_space)
        return {k: from_unit(d, u) for (k, d), u in zip(search_space.items(), unit, strict=True)}

    def _best(self, model: Posterior, space: Mapping[str, BaseDistribution]) -> Array:
        """The candidate with the most expected improvement, then the best of its neighbours."""
        leaders = model.units[np.argsort(-model.believed, kind="stable")[:LEADERS]]
        near = [self._around(point, step) for point in leaders for step in STEPS]
        pool = np.concatenate([self._rng.random((ANYWHERE, len(space))), *near])
        best: Array = leaders[0]
        most = -np.inf
        for step in (None, *REFINEMENTS):
            tried = _snapped(pool if step is None else self._around(best, step), space)
            gains = model.log_improvement(tried)
            if gains.max() > most:
                best, most = tried[int(gains.argmax())], float(gains.max())
        return best

    def _around(self, point: Array, step: float) -> Array:
        """Neighbours that differ in some knobs."""
        moves = step * self._rng.standard_normal((AROUND, len(point)))
        return np.clip(point + moves * (self._rng.random(moves.shape) < 0.7), 0.0, 1.0)


def _scores(ended: Sequence[FrozenTrial], done: Sequence[FrozenTrial]) -> Array:
    """What trials count, those without a score by what the others reached."""
    reached = np.array([t.value for t in done], dtype=np.float64)
    worst, middle = float(reached.min()), float(np.median(reached))
    instead = [worst if DIVERGED in t.user_attrs else middle for t in ended]
    pairs = zip(ended, instead, strict=True)
    return np.array([other if t.value is None else t.value for t, other in pairs])


def _units(trials: Sequence[FrozenTrial], space: Mapping[str, BaseDistribution]) -> Array:
    """Points as rows of the unit cube."""
    columns = [to_unit(d, [t.params[name] for t in trials]) for name, d in space.items()]
    return np.stack(columns, axis=1) if trials else np.zeros((0, len(space)))


def _snapped(units: Array, space: Mapping[str, BaseDistribution]) -> Array:
    """Positions of values that exist: whole numbers and choices have few."""
    out = units.copy()
    for i, distribution in enumerate(space.values()):
        if not isinstance(distribution, FloatDistribution) or distribution.step is not None:
            values = [from_unit(distribution, u) for u in units[:, i]]
            out[:, i] = to_unit(distribution, values)
    return out


def _telling(scores: Array) -> NDArray[np.intp]:
    """The trials to learn from, in the order they were asked."""
    if len(scores) <= MOST_POINTS:
        return np.arange(len(scores))
    half = MOST_POINTS // 2
    late = np.arange(len(scores) - half, len(scores))
    earlier = np.argsort(-scores[: len(scores) - half], kind="stable")[:half]
    return np.concatenate([np.sort(earlier), late])
