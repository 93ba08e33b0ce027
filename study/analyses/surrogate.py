"""Which model describes a loss's trials, how well, and may it be asked at all?"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from scipy.stats import norm, qmc

from study.analyses import cliff, forest, gp
from study.analyses.divergence import Risk, risk_of
from study.analyses.evidence import Fitted, plausible
from study.analyses.noise import SeedNoise
from study.analyses.samples import Array, Samples, snap
from study.analyses.warp import Standard, ceiling_of

Kind = Literal["gp", "log_gp", "forest"]
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
class Quality:
    """How well a model predicts points it has not seen (5 folds over points, Sobol points asked).

    Args:
        r2: Share of the held-out variance explained beyond what the epoch alone explains.
        coverage: Share of held-out scores inside the model's 90 % interval.
        log_density: Mean log density of the held-out scores; the better model has more.
        stretch: Held-out errors in units of the model's own (1 when it is neither too sure nor too
            careful); draws are spread by it where it exceeds 1.
    """

    kind: Kind
    r2: float
    coverage: float
    log_density: float
    stretch: float = 1.0


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
            values = np.stack([trees.mean(units, epochs) for trees in self._forests])
        stretch = min(max(self.best.stretch, 1.0), 2.0)
        if stretch > 1.0:
            middle = values.mean(axis=0)
            values = middle + stretch * (values - middle)
        if self.kind == "log_gp":
            # The inverse of a logarithm runs away where there are no trials.
            seen = self.samples.scores
            values = np.maximum(values, float(seen.min()) - 0.25 * float(np.ptp(seen)))
        if self.risk is None:
            return values
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
        cliffs = any(p.posterior.fitted.cliff is not None for p in self._paths)
        return not self._paths or cliffs or self.risk is not None

    @cached_property
    def good(self) -> Array:
        """The 32 settings of highest modelled score: where a tuner ends.

        Of 1,024 settings over the whole space and all that were tried.
        """
        samples = self.samples
        wide = qmc.Sobol(len(samples.knobs), seed=0).random(1024)
        tried = np.unique(samples.units[~samples.diverged], axis=0)
        many = np.concatenate([snap(samples.distributions, wide), tried])
        order = np.argsort(-self.mean(many), kind="stable")
        return np.asarray(many[order[:32]])

    @property
    def best(self) -> Quality:
        """Quality of the chosen model."""
        return self.quality[0]


@dataclass(frozen=True)
class Refusal:
    """Why a question is not answered, in one sentence."""

    reason: str


def least_trials(knobs: int) -> int:
    """Fewest scored trials a model is fitted to."""
    return max(12, 3 * knobs)


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
    from each; the forest draws one function per bootstrap of the points.
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
    quality = [_validate_gp(samples, k, scales[k], fits[k], seed) for k in scales]
    quality.append(_validate_forest(samples, seed))
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
        forest.grow(forest.resample(samples, rng), seed=seed + 1 + b, trees=16)
        for b in range(max(n_draws // 2, 32))
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
    """Curves may be read when the model is good, or when only seed noise is left to explain."""
    if surrogate.best.r2 >= MIN_R2:
        return None
    if noise.measured and surrogate.noise <= 1.5 * noise.high:
        return None
    return Refusal(
        f"The model explains {max(surrogate.best.r2, 0.0):.0%} of what unseen settings score, and "
        "what it leaves is more than seed noise: its curves would mislead."
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


def _folds(samples: Samples, seed: int, folds: int = 5) -> Iterator[tuple[Samples, Samples]]:
    """Training rows and held-out last rows; the trials of a point stay together.

    Held-out rows are Sobol points where there are enough: shares and curves speak of the whole
    space, and a search that crowds around its best would vouch for that corner alone.
    """
    points = np.random.default_rng(seed).permutation(np.unique(samples.point))
    fold_of = np.zeros(int(points.max()) + 1, dtype=np.int64)
    fold_of[points] = np.arange(len(points)) % folds
    fold = fold_of[samples.point]
    asked = samples.last & samples.blind
    if len(np.unique(samples.point[asked])) < 12:
        asked = samples.last
    for k in range(folds):
        train, test = samples.rows(fold != k), samples.rows((fold == k) & asked)
        if len(test) and len(train) >= 4:
            yield train, test


def _validate_gp(
    samples: Samples, kind: Kind, standard: Standard, fitted: Fitted, seed: int
) -> Quality:
    parts = []
    for train, test in _folds(samples, seed):
        # Start away from the fit on all rows, or the held-out rows would have a say.
        start = replace(fitted, theta=np.round(fitted.theta))
        learned = gp.relearn(train, standard, start, seed=seed, most=130, steps=12)
        located = cliff.locate(train, standard, learned, count=5, seed=seed)
        posteriors = [gp.Posterior(train, each, standard) for each in located]
        m, s = gp.mixture(posteriors, test.units, test.epochs)
        density = norm.logpdf(standard.latent(test.scores), m, s)
        density += np.log(standard.slope(test.scores))
        error = np.abs(standard.latent(test.scores) - m) / s
        mean = standard.moments(m, s)[0]
        parts.append((test.scores, mean, _by_epoch(train, test.epochs), density, error))
    return _quality(kind, parts)


def _validate_forest(samples: Samples, seed: int) -> Quality:
    parts = []
    for train, test in _folds(samples, seed):
        m, s = forest.grow(train, seed=seed, trees=60).predict(test.units, test.epochs)
        s = np.maximum(s, 1e-9)
        error = np.abs(test.scores - m) / s
        density = norm.logpdf(test.scores, m, s)
        parts.append((test.scores, m, _by_epoch(train, test.epochs), density, error))
    return _quality("forest", parts)


def _quality(kind: Kind, parts: Sequence[tuple[NDArray[Any], ...]]) -> Quality:
    y, mean, base, density, error = (np.concatenate(column) for column in zip(*parts, strict=True))
    left = float(((y - mean) ** 2).sum())
    r2 = 1.0 - left / max(float(((y - base) ** 2).sum()), 1e-300)
    edge = float(norm.ppf(0.95))
    stretch = float(np.quantile(error, 0.9)) / edge
    return Quality(kind, r2, float((error <= edge).mean()), float(density.mean()), stretch)


def _by_epoch(train: Samples, epochs: Array) -> Array:
    """What the epoch alone predicts: a line in log(epoch) through the last (blind) rows."""
    blind = train.last & train.blind
    rows = train.rows(blind if blind.sum() >= 8 else train.last)
    x = np.log(rows.epochs)
    if float(np.ptp(x)) < 1e-9:
        return np.full(len(epochs), float(rows.scores.mean()))
    slope, level = np.polyfit(x, rows.scores, 1)
    return np.asarray(level + slope * np.log(epochs))
