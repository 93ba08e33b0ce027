"""Which model describes a loss's trials, how well, and may it be asked at all?"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from scipy.stats import norm

from study.analyses import forest, gp
from study.analyses.divergence import Risk, risk_of
from study.analyses.noise import SeedNoise
from study.analyses.samples import Array, Samples, snap

Kind = Literal["gp", "forest"]
NAMES: dict[Kind, str] = {"gp": "Gaussian process", "forest": "forest"}

MIN_R2 = 0.5
"""Below this share of explained variance no importance is given."""


@dataclass(frozen=True)
class Quality:
    """How well a model predicts points it has not seen (5 folds, grouped by point).

    Args:
        r2: Share of the held-out variance explained beyond what the epoch alone explains.
        coverage: Share of held-out scores inside the model's 90 % interval.
        log_density: Mean log density of the held-out scores; the better model has more.
    """

    kind: Kind
    r2: float
    coverage: float
    log_density: float


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
        epochs = np.full(len(units), self.samples.full_epochs)
        if self.kind == "gp":
            values = np.concatenate([path(units, epochs) for path in self._paths])
        else:
            values = np.stack([trees.mean(units, epochs) for trees in self._forests])
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

    The Gaussian process draws functions for each of `n_bootstrap` sets of hyperparameters, each
    learned on a bootstrap of the trials; the forest draws one per bootstrap.
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
    standard = gp.Standard.of(samples.scores)
    fitted = gp.learn(samples, standard, seed=seed)
    quality = sorted(
        (_validate(samples, k, fitted, seed) for k in ("gp", "forest")),
        key=lambda q: (q.kind != kind if kind else False, -q.log_density),
    )
    noise = gp.Posterior(samples, fitted, standard).noise
    risk = risk_of(everything, seed=seed)
    if quality[0].kind == "gp":
        paths = _gp_paths(samples, standard, fitted, seed, n_bootstrap, n_draws)
        return Surrogate(everything, "gp", tuple(quality), noise, risk, _paths=paths)
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
    standard: gp.Standard,
    fitted: gp.Fitted,
    seed: int,
    n_bootstrap: int,
    n_draws: int,
) -> tuple[gp.Paths, ...]:
    rng = np.random.default_rng(seed)
    share = max(n_draws // max(n_bootstrap, 1), 1)
    paths = []
    for b in range(n_bootstrap):
        # Repeats of a row would pass for repeated trials and shrink the noise: keep each once.
        drawn = np.unique(rng.choice(np.unique(samples.point), size=len(np.unique(samples.point))))
        subset = samples.rows(np.isin(samples.point, drawn))
        learned = gp.learn(subset, standard, seed=seed + b, start=fitted.theta, most=180, steps=25)
        posterior = gp.Posterior(samples, learned, standard)
        paths.append(posterior.paths(share, seed=seed + 1000 + b))
    return tuple(paths)


def _validate(
    samples: Samples, kind: Kind, fitted: gp.Fitted, seed: int, folds: int = 5
) -> Quality:
    rng = np.random.default_rng(seed)
    points = rng.permutation(np.unique(samples.point))
    fold_of = dict(zip(points.tolist(), (np.arange(len(points)) % folds).tolist(), strict=True))
    fold = np.array([fold_of[p] for p in samples.point.tolist()])
    truth, mean, spread, base = [], [], [], []
    for k in range(folds):
        train, test = samples.rows(fold != k), samples.rows((fold == k) & samples.last)
        if not len(test) or len(train) < 4:
            continue
        standard = gp.Standard.of(train.scores)
        if kind == "gp":
            # Start far from the fit on all rows, or the held-out rows would have a say.
            start = np.round(fitted.theta)
            learned = gp.learn(train, standard, seed=seed, start=start, most=160, steps=20)
            m, s = gp.Posterior(train, learned, standard).predict(test.units, test.epochs)
        else:
            m, s = forest.grow(train, seed=seed, trees=60).predict(test.units, test.epochs)
        truth.append(test.scores)
        mean.append(m)
        spread.append(s)
        base.append(_by_epoch(train, test.epochs))
    y, m, s, b = (np.concatenate(part) for part in (truth, mean, spread, base))
    s = np.maximum(s, 1e-9)
    r2 = 1.0 - float(((y - m) ** 2).sum()) / max(float(((y - b) ** 2).sum()), 1e-300)
    inside = np.abs(y - m) <= norm.ppf(0.95) * s
    return Quality(kind, r2, float(inside.mean()), float(norm.logpdf(y, m, s).mean()))


def _by_epoch(train: Samples, epochs: Array) -> Array:
    """What the epoch alone predicts: a line in log(epoch) through the last rows."""
    rows = train.rows(train.last)
    x = np.log(rows.epochs)
    if float(np.ptp(x)) < 1e-9:
        return np.full(len(epochs), float(rows.scores.mean()))
    slope, level = np.polyfit(x, rows.scores, 1)
    return np.asarray(level + slope * np.log(epochs))
