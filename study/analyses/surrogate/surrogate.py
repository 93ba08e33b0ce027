"""Which model describes a loss's trials, how well, and may it be asked at all?"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from scipy.stats import f as f_distribution
from scipy.stats import qmc

from search_spaces.scale import from_unit
from search_spaces.space import Value
from study.analyses import cliff, forest, gp
from study.analyses.divergence import Risk, risk_of
from study.analyses.evidence import Fitted, plausible
from study.analyses.noise import SeedNoise
from study.analyses.quality import Kind, Quality, of_forest, of_process
from study.analyses.samples import Array, Samples, snap
from study.analyses.warp import Standard, ceiling_of
from study.threads import one_thread

NAMES: dict[Kind, str] = {
    "gp": "Gaussian process",
    "log_gp": "Gaussian process of the log shortfall",
    "forest": "forest",
}

MIN_R2 = 0.5
"""Below this share of explained variance no importance is given."""

KEPT = 0.85
"""Share of the points each subset of the bootstrap keeps."""


@dataclass(frozen=True)
class Surrogate:
    """A model of the full-length score, as functions drawn from what the trials allow.

    Where trials diverged, the score is the expected one when a diverged trial counts as the worst
    score seen: chance of success times the score of trials that succeed, and the rest.

    Args:
        samples: What it was fitted on.
        kind: The model chosen by cross-validation.
        quality: Of both models, the chosen one first.
        noise: Spread of repeated trials at one point, by the model.
    """

    samples: Samples
    kind: Kind
    quality: tuple[Quality, ...]
    noise: float
    risk: Risk | None = field(default=None, repr=False)
    _paths: tuple[gp.Paths, ...] = field(default=(), repr=False)
    _forests: tuple[forest.Forest, ...] = field(default=(), repr=False)

    def draws(self, units: Array, *, chunk: int = 4096) -> Array:
        """Draws x points: plausible scores of full-length trials at these positions."""
        units = snap(self.samples.distributions, np.atleast_2d(units))
        parts = [self._draw(units[i : i + chunk]) for i in range(0, len(units), chunk)]
        return np.concatenate(parts, axis=1)

    def _draw(self, units: Array) -> Array:
        if self._paths:
            values = np.concatenate([path(units) for path in self._paths])
        else:
            epochs = np.full(len(units), self.samples.full_epochs)
            values = np.concatenate([trees.votes(units, epochs) for trees in self._forests])
        if self.kind == "log_gp":
            # The inverse of a logarithm runs away where there are no trials.
            seen = self.samples.scores
            values = np.maximum(values, float(seen.min()) - 0.25 * float(np.ptp(seen)))
        middle = values.mean(axis=0)
        values = middle + self.best.factor(middle) * (values - middle)
        if self.risk is None:
            return np.asarray(values)
        chance = self.risk(units)
        chance = chance[np.arange(len(values)) % len(chance)]
        worst = float(self.samples.scores.min())
        return np.asarray(values * (1 - chance) + worst * chance)

    def mean(self, units: Array) -> Array:
        """The average draw."""
        return np.asarray(self.draws(units).mean(axis=0))

    @property
    def jumps(self) -> bool:
        """Whether draws have steps, which must not be smoothed over."""
        return not self._paths or self.jump is not None or self.risk is not None

    @property
    def jump(self) -> tuple[str, Value, Value] | None:
        """The knob along which the score jumps, and between which values; None without a cliff."""
        found = [p.posterior.fitted.cliff for p in self._paths]
        places = [c.place for c in found if c is not None]
        if not places or found[0] is None:
            return None
        knob = found[0].knob
        distribution = self.samples.distributions[knob]
        low, high = (from_unit(distribution, u) for u in (min(places), max(places)))
        return self.samples.knobs[knob], low, high

    @cached_property
    def good(self) -> Array:
        """As good as the best; worked out once, since most analyses look there."""
        return good_settings(self.samples, self.mean, self.noise)

    @property
    def best(self) -> Quality:
        """Quality of the chosen model."""
        return self.quality[0]


@dataclass(frozen=True)
class Refusal:
    """Why a question is not answered, in one sentence."""

    reason: str


def good_settings(samples: Samples, mean: Callable[[Array], Array], noise: float) -> Array:
    """Where a tuner ends: 32 settings that nobody could tell from the best.

    Of 1,024 settings over the whole space and all tried ones, those whose modelled score is within
    one seed's noise of the best (32 at least): along a ridge they lie all along it.
    """
    wide = qmc.Sobol(len(samples.knobs), seed=0).random(1024)
    tried = np.unique(samples.units[~samples.diverged], axis=0)
    many = np.concatenate([snap(samples.distributions, wide), tried])
    scores = mean(many)
    order = np.argsort(-scores, kind="stable")
    near = max(int((scores >= scores.max() - noise).sum()), 32)
    return np.asarray(many[order[np.linspace(0, near - 1, 32).astype(int)]])


def least_trials(knobs: int) -> int:
    """Fewest scored trials a model is fitted to."""
    return max(12, 3 * knobs)


@one_thread
def fit(
    samples: Samples,
    *,
    seed: int = 0,
    kind: Kind | None = None,
    n_bootstrap: int = 8,
    n_draws: int = 128,
) -> Surrogate | Refusal:
    """Fit both models, keep the better by cross-validation (or `kind`).

    The Gaussian process is fitted to `n_bootstrap` random subsets of the points and draws functions
    from each; of the forest, trees grown on bootstraps of the points are the functions.
    """
    everything, samples = samples, samples.rows(~samples.diverged)
    knobs = len(samples.knobs)
    if knobs == 0:
        return Refusal("No knob was searched.")
    if not len(samples):
        return Refusal("Every trial diverged." if len(everything) else "No trial has a score yet.")
    needed = least_trials(knobs)
    points = len(np.unique(samples.point[samples.last]))
    if points < needed:
        return Refusal(
            f"{points} different settings have a score; {needed} are needed to model {knobs} knobs."
        )
    if float(np.ptp(samples.scores)) < 1e-12:
        return Refusal("All trials have the same score: nothing to explain.")
    ceiling = ceiling_of(samples.scores)
    scales: dict[Kind, Standard] = {"gp": Standard.of(samples.scores)}
    if ceiling is not None:
        scales["log_gp"] = Standard.of(samples.scores, ceiling=ceiling)
    fits: dict[Kind, Fitted] = {}
    for k, standard in scales.items():
        fits[k] = gp.learn(samples, standard, seed=seed, like=fits.get("gp"))
    quality = [of_process(samples, k, scales[k], fits[k], seed) for k in scales]
    quality.append(of_forest(samples, seed))
    quality.sort(key=lambda q: (q.kind != kind if kind else False, -q.log_density))
    risk = risk_of(everything, seed=seed)
    chosen = quality[0].kind
    process: Kind = chosen if chosen in fits else "gp"
    noise = gp.Posterior(samples, fits[process], scales[process]).noise
    if chosen in fits:
        paths = _gp_paths(samples, scales[chosen], fits[chosen], seed, n_bootstrap, n_draws)
        return Surrogate(everything, chosen, tuple(quality), noise, risk, _paths=paths)
    rng = np.random.default_rng(seed)
    forests = tuple(
        forest.grow(forest.resample(samples, rng), seed=seed + 1 + b, trees=max(n_draws // 32, 1))
        for b in range(32)
    )
    return Surrogate(everything, "forest", tuple(quality), noise, risk, _forests=forests)


def refuse_importance(surrogate: Surrogate) -> Refusal | None:
    """Importances are shares of explained variance; a poor model has none to share."""
    if surrogate.best.r2 >= MIN_R2:
        return None
    return Refusal(
        f"The model explains {max(surrogate.best.r2, 0.0):.0%} of what unseen settings score; "
        f"importances need {MIN_R2:.0%}."
    )


def refuse_response(surrogate: Surrogate, noise: SeedNoise) -> Refusal | None:
    """Curves may be read when the model is good, or when only seed noise is left to explain.

    The second is an F-test of the held-out errors against the repeats, at 10 %: with few repeats
    it would let everything pass, so those do not count.
    """
    if surrogate.best.r2 >= MIN_R2:
        return None
    if noise.reliable:
        points = len(np.unique(surrogate.samples.point))
        limit = float(f_distribution.ppf(0.9, points, noise.freedom))
        if surrogate.best.error**2 <= limit * noise.sigma**2:
            return None
    return Refusal(
        f"The model explains {max(surrogate.best.r2, 0.0):.0%} of what unseen settings score, and "
        "what it leaves may be more than seed noise: its curves would mislead."
    )


def _gp_paths(
    samples: Samples,
    standard: Standard,
    fitted: Fitted,
    seed: int,
    n_bootstrap: int,
    n_draws: int,
) -> tuple[gp.Paths, ...]:
    rng = np.random.default_rng(seed)
    points = np.unique(samples.point)
    places = 1 if fitted.cliff is None else 2
    share = max(n_draws // max(n_bootstrap * places, 1), 1)
    paths = []
    likely = plausible(samples, standard, fitted, count=n_bootstrap, seed=seed)
    for b, learned in enumerate(likely):
        # Without replacement: repeats of a row would pass for repeated trials.
        drawn = rng.choice(points, size=max(round(KEPT * len(points)), 3), replace=False)
        subset = samples.rows(np.isin(samples.point, drawn))
        for k, located in enumerate(
            cliff.locate(subset, standard, learned, count=places, seed=seed + b)
        ):
            posterior = gp.Posterior(subset, located, standard)
            paths.append(posterior.paths(share, seed=seed + 1000 + places * b + k))
    return tuple(paths)
