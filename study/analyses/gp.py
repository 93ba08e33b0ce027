"""A Gaussian process over knobs and epoch, and functions drawn from its posterior.

Matern-5/2 on the sampling scale with one length per knob and one for log(epoch), twice: a sum of
one-dimensional terms and one term over all inputs together, so that knobs which act alone are not
taken to interact for want of data. A choice is one-hot with one length. Noise has two parts: what a
seed does to a whole trial, and what is left at an epoch. Draws use pathwise conditioning (Wilson et
al., ICML 2020): each is a function that can be evaluated anywhere, so every analysis looks at the
same ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from optuna.distributions import BaseDistribution, CategoricalDistribution
from scipy.linalg import cho_solve, cholesky, solve_triangular
from scipy.optimize import minimize

from study.analyses.samples import Array, Samples, unit_levels
from study.analyses.warp import Standard

_JITTER = 1e-8
_FEATURES = 448
_ALONE_FEATURES = 64
_TABLE = 129


@dataclass(frozen=True)
class Encoding:
    """Columns of the kernel: numbers as they are, a choice as one column per value."""

    columns: tuple[int, ...]
    levels: tuple[float | None, ...]
    groups: int

    @classmethod
    def of(cls, distributions: Sequence[BaseDistribution]) -> Encoding:
        """One group (one length scale) per knob, and the last for log(epoch)."""
        columns: list[int] = []
        levels: list[float | None] = []
        for j, d in enumerate(distributions):
            if isinstance(d, CategoricalDistribution) and len(d.choices) > 2:
                k = len(d.choices)
                columns += [j] * k
                levels += [(i + 0.5) / k for i in range(k)]
            else:
                columns.append(j)
                levels.append(None)
        return cls(tuple(columns), tuple(levels), len(distributions) + 1)

    def __call__(self, units: Array, epochs: Array, full: float) -> Array:
        """Inputs of the kernel, rows x columns, and log(epoch / full) last."""
        out = [
            units[:, j] if level is None else (np.abs(units[:, j] - level) < 1e-9) * np.sqrt(0.5)
            for j, level in zip(self.columns, self.levels, strict=True)
        ]
        # log(full) maps to 0; one unit of length is a factor e^2.5 of training.
        return np.stack([*out, np.log(np.maximum(epochs, 0.5) / full) / 2.5], axis=1)

    def columns_of(self, group: int) -> np.ndarray:
        """Columns of one length-scale group."""
        return np.flatnonzero(self.group_of == group)

    @property
    def group_of(self) -> np.ndarray:
        """Length-scale group of each column."""
        return np.array([*self.columns, self.groups - 1], dtype=np.int64)


@dataclass(frozen=True)
class Fitted:
    """Hyperparameters: logs of the lengths and of four variances."""

    theta: Array
    groups: int

    @property
    def lengths(self) -> Array:
        """One per group."""
        return np.asarray(np.exp(self.theta[: self.groups]))

    @property
    def alone(self) -> float:
        """Variance of each one-dimensional term."""
        return float(np.exp(self.theta[self.groups])) / self.groups

    @property
    def joint(self) -> float:
        """Variance of the term over all inputs."""
        return float(np.exp(self.theta[self.groups + 1]))

    @property
    def trial(self) -> float:
        """Variance that a seed gives to all epochs of a trial."""
        return float(np.exp(self.theta[self.groups + 2]))

    @property
    def noise(self) -> float:
        """Variance left at an epoch."""
        return float(np.exp(self.theta[self.groups + 3]))


def _matern(r2: Array) -> Array:
    r = np.sqrt(5.0 * np.maximum(r2, 0.0))
    return np.asarray((1.0 + r + r * r / 3.0) * np.exp(-r))


def _r2(a: Array, b: Array) -> Array:
    return np.asarray((a * a).sum(1)[:, None] + (b * b).sum(1)[None, :] - 2.0 * a @ b.T)


class _Evidence:
    """Negative log posterior of the hyperparameters and its gradient."""

    def __init__(self, inputs: Array, scores: Array, trial: np.ndarray, encoding: Encoding) -> None:
        self.y, self.groups = scores, encoding.groups
        n, g = len(scores), encoding.groups
        squares = np.zeros((g, n * n))
        for column, group in enumerate(encoding.group_of):
            gap = inputs[:, column, None] - inputs[None, :, column]
            squares[group] += (gap * gap).ravel()
        self.squares = squares
        self.same = (trial[:, None] == trial[None, :]).astype(np.float64)
        self.paired = bool(self.same.sum() > n)
        # Lengths near the width of the cube, longer where there are more knobs to tell apart.
        knobs = np.full(g - 1, np.log(0.6) + 0.25 * np.log(max(g - 1, 1)))
        self.prior_mean = np.concatenate([knobs, [np.log(0.8)], [0.0, -0.7, -3.5, -4.0]])
        self.prior_sd = np.concatenate([np.full(g - 1, 1.1), [0.8], [1.2, 1.5, 1.5, 1.7]])

    def __call__(self, theta: Array) -> tuple[float, Array]:
        n, g = len(self.y), self.groups
        inverse = np.exp(-2.0 * theta[:g])
        alone, joint, trial, noise = np.exp(theta[g:])
        scaled = self.squares * inverse[:, None]
        r = np.sqrt(5.0 * scaled)
        decay = np.exp(-r)
        terms = ((1.0 + r + r * r / 3.0) * decay).mean(axis=0).reshape(n, n)
        r_all = np.sqrt(5.0 * scaled.sum(axis=0))
        decay_all = np.exp(-r_all)
        shape = ((1.0 + r_all + r_all * r_all / 3.0) * decay_all).reshape(n, n)
        covariance = alone * terms + joint * shape + trial * self.same + 1.0
        covariance.flat[:: n + 1] += noise + _JITTER
        try:
            factor = cholesky(covariance, lower=True, check_finite=False)
        except np.linalg.LinAlgError:
            return 1e10, np.zeros_like(theta)
        inverse_k = cho_solve((factor, True), np.eye(n), check_finite=False)
        alpha = inverse_k @ self.y
        value = 0.5 * self.y @ alpha + np.log(np.diag(factor)).sum()
        weight = 0.5 * (inverse_k - np.outer(alpha, alpha))
        flat = weight.ravel()
        # d shape / d log l = 5/3 (1 + r) exp(-r) r2 for each term.
        slope = (joint * 5.0 / 3.0) * (1.0 + r_all) * decay_all
        slopes = (alone / g * 5.0 / 3.0) * (1.0 + r) * decay + slope
        gradient = np.empty_like(theta)
        gradient[:g] = (slopes * scaled) @ flat
        gradient[g] = alone * float((weight * terms).sum())
        gradient[g + 1] = joint * float((weight * shape).sum())
        gradient[g + 2] = trial * float((weight * self.same).sum())
        gradient[g + 3] = noise * float(np.trace(weight))
        pull = (theta - self.prior_mean) / self.prior_sd
        return float(value + 0.5 * pull @ pull), gradient + pull / self.prior_sd


def _maximise(evidence: _Evidence, start: Array, steps: int) -> Array:
    bounds = [(np.log(0.03), np.log(30.0))] * evidence.groups
    bounds += [(np.log(1e-4), np.log(50.0))] * 2 + [(np.log(1e-7), 1.0), (np.log(1e-6), 1.0)]
    if not evidence.paired:
        # With one row per trial the two noises are one: keep the seed's at nothing.
        start = start.copy()
        start[evidence.groups + 2] = np.log(1e-7)
        bounds[evidence.groups + 2] = (np.log(1e-7), np.log(1e-7))
    found = minimize(
        evidence, start, jac=True, method="L-BFGS-B", bounds=bounds, options={"maxiter": steps}
    )
    return np.asarray(found.x)


def _thin(samples: Samples, most: int, seed: int) -> Samples:
    """At most `most` rows, whole trials, drawn without order."""
    if len(samples) <= most:
        return samples
    order = np.random.default_rng(seed).permutation(np.unique(samples.trial))
    counts = np.bincount(samples.trial)[order]
    keep = order[np.cumsum(counts) <= most]
    return samples.rows(np.isin(samples.trial, keep))


def learn(
    samples: Samples,
    standard: Standard,
    *,
    seed: int,
    start: Array | None = None,
    most: int = 180,
    steps: int = 50,
) -> Fitted:
    """Hyperparameters of highest posterior, on at most `most` rows."""
    thin = _thin(samples, most, seed)
    encoding = Encoding.of(samples.distributions)
    inputs = encoding(thin.units, thin.epochs, samples.full_epochs)
    evidence = _Evidence(inputs, standard.latent(thin.scores), thin.trial, encoding)
    first = evidence.prior_mean if start is None else start
    theta = _maximise(evidence, first, steps)
    if start is None:
        # A second start, with short lengths and little noise, for wiggly responses.
        other = evidence.prior_mean.copy()
        other[: encoding.groups - 1] -= 1.0
        other[-1] -= 2.0
        second = _maximise(evidence, other, steps)
        if evidence(second)[0] < evidence(theta)[0]:
            theta = second
    return Fitted(theta, encoding.groups)


class Posterior:
    """The process conditioned on all rows, for one set of hyperparameters."""

    def __init__(self, samples: Samples, fitted: Fitted, standard: Standard) -> None:
        self.samples, self.fitted, self.standard = samples, fitted, standard
        self.encoding = Encoding.of(samples.distributions)
        self.inputs = self.scaled(samples.units, samples.epochs)
        covariance = self.cross(self.inputs)
        covariance += fitted.trial * (samples.trial[:, None] == samples.trial[None, :])
        covariance.flat[:: len(samples) + 1] += fitted.noise + _JITTER
        self.factor = cholesky(covariance, lower=True, check_finite=False)
        self.y = standard.latent(samples.scores)
        self.alpha = cho_solve((self.factor, True), self.y, check_finite=False)

    def scaled(self, units: Array, epochs: Array) -> Array:
        """Inputs in units of their lengths."""
        raw = self.encoding(units, epochs, self.samples.full_epochs)
        return np.asarray(raw / self.fitted.lengths[self.encoding.group_of])

    def alone(self, inputs: Array, group: int) -> Array:
        """One-dimensional term between inputs and data."""
        columns = self.encoding.columns_of(group)
        r2 = _r2(inputs[:, columns], self.inputs[:, columns])
        return self.fitted.alone * _matern(r2)

    def cross(self, inputs: Array) -> Array:
        """Covariance between inputs and data; the 1 is an unknown level."""
        total = self.fitted.joint * _matern(_r2(inputs, self.inputs)) + 1.0
        for group in range(self.encoding.groups):
            total += self.alone(inputs, group)
        return total

    def predict(self, units: Array, epochs: Array) -> tuple[Array, Array]:
        """Latent mean and deviation of a new trial's score, seed and epoch noise included."""
        cross = self.cross(self.scaled(units, epochs))
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
        joint = _Waves.draw(rng, self.inputs.shape[1], _FEATURES, count, fitted.joint)
        alone = [
            _Waves.draw(rng, len(self.encoding.columns_of(g)), _ALONE_FEATURES, count, fitted.alone)
            for g in range(fitted.groups)
        ]
        prior = joint(self.inputs) + offset
        for g, waves in enumerate(alone):
            prior += waves(self.inputs[:, self.encoding.columns_of(g)])
        codes = np.unique(self.samples.trial, return_inverse=True)[1]
        shocks = np.sqrt(fitted.trial) * rng.standard_normal((codes.max() + 1, count))[codes]
        shocks += np.sqrt(fitted.noise) * rng.standard_normal((len(self.y), count))
        gap = self.y[:, None] - prior - shocks
        update = cho_solve((self.factor, True), gap, check_finite=False)
        tables, level = self._tables(alone, update)
        return Paths(self, joint, tables, offset + update.sum(axis=0) + level, update)

    def _tables(self, alone: Sequence[_Waves], update: Array) -> tuple[tuple[Array, ...], Array]:
        """The one-dimensional terms of every draw along each knob, and at the last epoch."""
        full = self.samples.full_epochs
        d = len(self.samples.knobs)
        tables = []
        for g in range(d + 1):
            grid = np.linspace(0.0, 1.0, _TABLE)
            levels = unit_levels(self.samples.distributions[g]) if g < d else None
            if levels is not None:
                grid = levels
            units = np.full((len(grid) if g < d else 1, d), 0.5)
            if g < d:
                units[:, g] = grid
            inputs = self.scaled(units, np.full(len(units), full))
            part = alone[g](inputs[:, self.encoding.columns_of(g)])
            tables.append(part + self.alone(inputs, g) @ update)
        return tuple(tables[:d]), np.asarray(tables[d][0])


@dataclass(frozen=True)
class _Waves:
    """Random Fourier features: functions from the prior of one term."""

    waves: Array
    phases: Array
    weights: Array

    @classmethod
    def draw(
        cls, rng: np.random.Generator, width: int, features: int, count: int, variance: float
    ) -> _Waves:
        # The spectrum of Matern-5/2 is a multivariate t with 5 degrees of freedom.
        waves = rng.standard_normal((width, features)) / np.sqrt(rng.chisquare(5.0, features) / 5.0)
        phases = rng.uniform(0.0, 2.0 * np.pi, features)
        weights = rng.standard_normal((features, count)) * np.sqrt(2.0 * variance / features)
        return cls(waves, phases, weights)

    def __call__(self, inputs: Array) -> Array:
        # Single precision is far finer than the draws differ, and four times as fast.
        angles = (inputs @ self.waves + self.phases).astype(np.float32)
        values = np.cos(angles, out=angles) @ self.weights.astype(np.float32)
        return np.asarray(values, dtype=np.float64)


@dataclass(frozen=True)
class Paths:
    """Functions drawn from a posterior, at the last epoch; call them at any points."""

    posterior: Posterior
    joint: _Waves
    tables: tuple[Array, ...]
    level: Array
    update: Array

    def __call__(self, units: Array) -> Array:
        """Draws x points, in units of the score, without noise."""
        posterior = self.posterior
        epochs = np.full(len(units), posterior.samples.full_epochs)
        inputs = posterior.scaled(units, epochs)
        r = np.sqrt(5.0 * np.maximum(_r2(inputs, posterior.inputs), 0.0)).astype(np.float32)
        kernel = np.exp(-r)
        r *= r / 3.0 + 1.0
        r += 1.0
        kernel *= r
        values = kernel @ (posterior.fitted.joint * self.update).astype(np.float32)
        values = values + self.joint(inputs) + self.level
        for j, table in enumerate(self.tables):
            values += _look_up(table, units[:, j], posterior.samples.distributions[j])
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
