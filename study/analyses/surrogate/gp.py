"""A Gaussian process over knobs and epoch, and functions drawn from its posterior.

One length per knob and one for log(epoch) on the sampling scale in a sum of one-dimensional terms,
and others in one term over all inputs together, so that knobs which act alone are not taken to
interact for want of data. A choice is one-hot with one length. Noise has two parts:
what a seed does to a whole trial, and what is left at an epoch. Draws use pathwise conditioning
(Wilson et al., ICML 2020): each is a function that can be evaluated anywhere, so every analysis
looks at the same ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from optuna.distributions import BaseDistribution
from scipy.linalg import cho_solve, cholesky, solve_triangular

from study.analyses import cliff
from study.analyses.encoding import Encoding
from study.analyses.evidence import JITTER, Evidence, Fitted, best_shape
from study.analyses.kernel import Waves, correlation, squared_distances
from study.analyses.samples import Array, Samples, unit_levels
from study.analyses.warp import Standard

_FEATURES = 448
_ALONE_FEATURES = 64
_TABLE = 129


def learn(
    samples: Samples,
    standard: Standard,
    *,
    seed: int,
    like: Fitted | None = None,
    most: int = 180,
    steps: int = 50,
) -> Fitted:
    """Smoothness, hyperparameters and perhaps a cliff of highest posterior.

    `like` is a fit on another scale of the score, to start from.
    """
    evidence = Evidence(samples, standard, most=most, seed=seed)
    starts = [evidence.prior_mean]
    if like is None:
        # A second start, with short lengths and little noise, for wiggly responses.
        wiggly = evidence.prior_mean.copy()
        wiggly[: len(samples.knobs)] -= 1.0
        wiggly[-1] -= 2.0
        starts.append(wiggly)
    elif like.cliff is None:
        starts = [like.theta]
    lowest, fitted = best_shape(evidence, starts, steps=steps)
    found = cliff.find(samples, standard, fitted, lowest=lowest, most=most, seed=seed)
    # Two sides that meet are a kink, which is no cliff.
    if found is None or _height(Posterior(samples, found, standard)) < cliff.LEAST_HEIGHT:
        return fitted
    return found


def relearn(
    samples: Samples, standard: Standard, start: Fitted, *, seed: int, most: int, steps: int
) -> Fitted:
    """The hyperparameters on other rows, from a start; shape and knob of the cliff are kept."""
    evidence = Evidence(
        samples, standard, smoothness=start.smoothness, cliff=start.cliff, most=most, seed=seed
    )
    return Fitted(evidence.maximise(start.theta, steps)[1], start.smoothness, start.cliff)


def _height(posterior: Posterior) -> float:
    """How far apart the two sides of the cliff are, in standard deviations of the scores."""
    samples, at = posterior.samples, posterior.fitted.cliff
    assert at is not None
    units = np.unique(samples.units, axis=0)
    epochs = np.full(len(units), samples.full_epochs)
    sides = []
    for step in (-1e-6, 1e-6):
        units[:, at.knob] = at.place + step
        sides.append(float(posterior.predict(units, epochs)[0].mean()))
    return abs(sides[1] - sides[0])


class Posterior:
    """The process conditioned on all rows, for one set of hyperparameters."""

    def __init__(self, samples: Samples, fitted: Fitted, standard: Standard) -> None:
        self.samples, self.fitted, self.standard = samples, fitted, standard
        self.encoding = Encoding.of(samples.distributions, fitted.cliff)
        self.inputs = self.raw(samples.units, samples.epochs)
        self.lengths = fitted.lengths[self.encoding.group_of]
        self.joint_lengths = fitted.joint_lengths[self.encoding.group_of]
        covariance = self.cross(self.inputs)
        covariance += fitted.trial * (samples.trial[:, None] == samples.trial[None, :])
        covariance.flat[:: len(samples) + 1] += fitted.noise + JITTER
        self.factor = cholesky(covariance, lower=True, check_finite=False)
        self.y = standard.latent(samples.scores)
        self.alpha = cho_solve((self.factor, True), self.y, check_finite=False)

    def raw(self, units: Array, epochs: Array) -> Array:
        """Inputs of the process."""
        return self.encoding(units, epochs, self.samples.full_epochs)

    def alone(self, inputs: Array, group: int) -> Array:
        """One-dimensional term between inputs and data."""
        columns = self.encoding.columns_of(group)
        lengths = self.lengths[columns]
        r2 = squared_distances(inputs[:, columns] / lengths, self.inputs[:, columns] / lengths)
        return self.fitted.alone * correlation(r2, self.fitted.smoothness)

    def cross(self, inputs: Array) -> Array:
        """Covariance between inputs and data; the 1 is an unknown level."""
        r2 = squared_distances(inputs / self.joint_lengths, self.inputs / self.joint_lengths)
        total = self.fitted.joint * correlation(r2, self.fitted.smoothness) + 1.0
        for group in range(self.encoding.groups):
            total += self.alone(inputs, group)
        return total

    def predict(self, units: Array, epochs: Array) -> tuple[Array, Array]:
        """Latent mean and deviation of a new trial's score, seed and epoch noise included."""
        cross = self.cross(self.raw(units, epochs))
        fitted = self.fitted
        back = solve_triangular(self.factor, cross.T, lower=True, check_finite=False)
        prior = fitted.joint + fitted.alone * fitted.groups + 1.0
        variance = prior - (back * back).sum(0) + fitted.trial + fitted.noise
        return np.asarray(cross @ self.alpha), np.sqrt(np.maximum(variance, 1e-12))

    @property
    def noise(self) -> float:
        """Spread of repeated good trials at one point, in units of the score."""
        good = float(np.quantile(self.samples.scores, 0.9))
        spread = np.sqrt(self.fitted.trial + self.fitted.noise)
        return float(spread / self.standard.slope(good))

    def paths(self, count: int, seed: int) -> Paths:
        """`count` functions from the posterior."""
        rng = np.random.default_rng(seed)
        fitted = self.fitted
        offset = rng.standard_normal(count)
        joint = self._waves(rng, self.inputs.shape[1], _FEATURES, count, fitted.joint)
        alone = [
            self._waves(rng, len(self.encoding.columns_of(g)), _ALONE_FEATURES, count, fitted.alone)
            for g in range(fitted.groups)
        ]
        prior = joint(self.inputs / self.joint_lengths) + offset
        for g, waves in enumerate(alone):
            prior += self._part(waves, self.inputs, g)
        codes = np.unique(self.samples.trial, return_inverse=True)[1]
        shocks = np.sqrt(fitted.trial) * rng.standard_normal((codes.max() + 1, count))[codes]
        shocks += np.sqrt(fitted.noise) * rng.standard_normal((len(self.y), count))
        gap = self.y[:, None] - prior - shocks
        update = cho_solve((self.factor, True), gap, check_finite=False)
        tables = [self._table(g, alone[g], update) for g in range(fitted.groups)]
        # The epoch is the last one wherever paths are read: its term is a number.
        d = len(self.samples.knobs)
        level = offset + update.sum(axis=0) + tables[d][0]
        sides = tables[d + 1] if fitted.cliff else None
        return Paths(self, joint, tuple(tables[:d]), sides, level, update)

    def _waves(
        self, rng: np.random.Generator, width: int, features: int, count: int, variance: float
    ) -> Waves:
        return Waves.draw(
            rng,
            self.fitted.smoothness,
            width=width,
            features=features,
            count=count,
            variance=variance,
        )

    def _table(self, group: int, waves: Waves, update: Array) -> Array:
        """A one-dimensional term of every draw: along a knob, at the last epoch, on both sides."""
        d = len(self.samples.knobs)
        knob, grid = group, np.zeros(1)
        if group < d:
            levels = unit_levels(self.samples.distributions[group])
            grid = np.linspace(0.0, 1.0, _TABLE) if levels is None else levels
        elif group > d:
            assert self.fitted.cliff is not None
            knob, grid = self.fitted.cliff.knob, np.array([-1.0, 2.0])
        units = np.full((len(grid), d), 0.5)
        if knob < d:
            units[:, knob] = grid
        inputs = self.raw(units, np.full(len(units), self.samples.full_epochs))
        return np.asarray(self._part(waves, inputs, group) + self.alone(inputs, group) @ update)

    def _part(self, waves: Waves, inputs: Array, group: int) -> Array:
        """A one-dimensional term's functions from the prior."""
        columns = self.encoding.columns_of(group)
        return waves(inputs[:, columns] / self.lengths[columns])


@dataclass(frozen=True)
class Paths:
    """Functions drawn from a posterior, at the last epoch; call them at any points."""

    posterior: Posterior
    joint: Waves
    tables: tuple[Array, ...]
    sides: Array | None
    level: Array
    update: Array

    def __call__(self, units: Array) -> Array:
        """Draws x points, in units of the score, without noise."""
        posterior, fitted = self.posterior, self.posterior.fitted
        epochs = np.full(len(units), posterior.samples.full_epochs)
        lengths = posterior.joint_lengths
        inputs = posterior.raw(units, epochs) / lengths
        r2 = squared_distances(inputs, posterior.inputs / lengths).astype(np.float32)
        kernel = correlation(r2, fitted.smoothness)
        values = kernel @ (fitted.joint * self.update).astype(np.float32)
        values = values + self.joint(inputs) + self.level
        for j, table in enumerate(self.tables):
            values += _look_up(table, units[:, j], posterior.samples.distributions[j])
        if fitted.cliff is not None and self.sides is not None:
            beyond = units[:, fitted.cliff.knob] > fitted.cliff.place
            values += self.sides[beyond.astype(np.int64)]
        return posterior.standard.score(values.T)


def _look_up(table: Array, places: Array, distribution: BaseDistribution) -> Array:
    """Rows of a table at positions: the level itself, or linear between grid points."""
    levels = unit_levels(distribution)
    if levels is not None:
        return np.asarray(table[np.abs(places[:, None] - levels[None, :]).argmin(axis=1)])
    at = np.clip(places, 0.0, 1.0) * (_TABLE - 1)
    left = np.minimum(at.astype(np.int64), _TABLE - 2)
    share = (at - left)[:, None]
    return np.asarray(table[left] * (1.0 - share) + table[left + 1] * share)


def mixture(posteriors: Sequence[Posterior], units: Array, epochs: Array) -> tuple[Array, Array]:
    """Latent mean and deviation of equally likely posteriors together."""
    parts = [p.predict(units, epochs) for p in posteriors]
    mean = np.mean([m for m, _ in parts], axis=0)
    variance = np.mean([s**2 + (m - mean) ** 2 for m, s in parts], axis=0)
    return mean, np.sqrt(variance)
