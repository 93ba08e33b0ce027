"""A Gaussian process over knobs and epoch, and functions drawn from its posterior.

Matern-5/2 with one length per knob on the sampling scale and one for log(epoch); a choice is
one-hot with one length. Noise has two parts: what a seed does to a whole trial, and what is left
at an epoch. Draws use pathwise conditioning (Wilson et al., ICML 2020): each draw is a function
that can be evaluated anywhere, so every analysis looks at the same draws.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from optuna.distributions import BaseDistribution, CategoricalDistribution
from scipy.linalg import cho_solve, cholesky, solve_triangular
from scipy.optimize import minimize

from study.analyses.samples import Array, Samples
from study.analyses.warp import Standard

_JITTER = 1e-8
_FEATURES = 512


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

    @property
    def group_of(self) -> np.ndarray:
        """Length-scale group of each column."""
        return np.array([*self.columns, self.groups - 1], dtype=np.int64)


@dataclass(frozen=True)
class Fitted:
    """Hyperparameters: logs of the lengths, of the signal's, seed's and epoch's variance."""

    theta: Array
    groups: int

    @property
    def lengths(self) -> Array:
        """One per group."""
        return np.asarray(np.exp(self.theta[: self.groups]))

    @property
    def variances(self) -> tuple[float, float, float]:
        """Signal, trial (seed) and residual variance, in units of the scores' variance."""
        signal, trial, noise = np.exp(self.theta[self.groups :])
        return float(signal), float(trial), float(noise)


def _matern(r2: Array) -> Array:
    r = np.sqrt(5.0 * np.maximum(r2, 0.0))
    return np.asarray((1.0 + r + r * r / 3.0) * np.exp(-r))


def _scaled(inputs: Array, lengths: Array, group_of: np.ndarray) -> Array:
    return np.asarray(inputs / lengths[group_of])


def _r2(a: Array, b: Array) -> Array:
    return np.asarray((a * a).sum(1)[:, None] + (b * b).sum(1)[None, :] - 2.0 * a @ b.T)


class _Evidence:
    """Negative log posterior of the hyperparameters and its gradient."""

    def __init__(self, inputs: Array, scores: Array, trial: np.ndarray, encoding: Encoding) -> None:
        self.y, self.groups = scores, encoding.groups
        n = len(scores)
        flat = np.zeros((n * n, encoding.groups))
        for column, group in enumerate(encoding.group_of):
            gap = inputs[:, column, None] - inputs[None, :, column]
            flat[:, group] += (gap * gap).ravel()
        self.squares = flat
        self.same = (trial[:, None] == trial[None, :]).astype(np.float64)
        self.paired = bool(self.same.sum() > n)
        d = encoding.groups - 1
        # Lengths near the width of the cube, longer where there are more knobs to tell apart.
        self.prior_mean = np.concatenate(
            [np.full(d, np.log(0.6) + 0.25 * np.log(max(d, 1))), [np.log(0.8)], [0.3, -3.5, -4.0]]
        )
        self.prior_sd = np.concatenate([np.full(d, 1.1), [0.8], [1.0, 1.5, 1.7]])

    def __call__(self, theta: Array) -> tuple[float, Array]:
        n, g = len(self.y), self.groups
        inverse = np.exp(-2.0 * theta[:g])
        signal, trial, noise = np.exp(theta[g:])
        r2 = (self.squares @ inverse).reshape(n, n)
        r = np.sqrt(5.0 * r2)
        decay = np.exp(-r)
        shape = (1.0 + r + r * r / 3.0) * decay
        covariance = signal * shape + trial * self.same + 1.0
        covariance.flat[:: n + 1] += noise + _JITTER
        try:
            factor = cholesky(covariance, lower=True, check_finite=False)
        except np.linalg.LinAlgError:
            return 1e10, np.zeros_like(theta)
        inverse_k = cho_solve((factor, True), np.eye(n), check_finite=False)
        alpha = inverse_k @ self.y
        value = 0.5 * self.y @ alpha + np.log(np.diag(factor)).sum()
        weight = 0.5 * (inverse_k - np.outer(alpha, alpha))
        # d shape / d r2 = -5/6 (1 + r) exp(-r), and d r2 / d log l = -2 squares / l^2.
        slope = (weight * (signal * (5.0 / 3.0) * (1.0 + r) * decay)).ravel()
        gradient = np.empty_like(theta)
        gradient[:g] = (slope @ self.squares) * inverse
        gradient[g] = signal * float((weight * shape).sum())
        gradient[g + 1] = trial * float((weight * self.same).sum())
        gradient[g + 2] = noise * float(np.trace(weight))
        pull = (theta - self.prior_mean) / self.prior_sd
        return float(value + 0.5 * pull @ pull), gradient + pull / self.prior_sd


def _maximise(evidence: _Evidence, start: Array, steps: int) -> Array:
    bounds = [(np.log(0.03), np.log(30.0))] * evidence.groups
    bounds += [(np.log(1e-3), np.log(50.0)), (np.log(1e-7), 1.0), (np.log(1e-6), 1.0)]
    if not evidence.paired:
        # With one row per trial the two noises are one: keep the seed's at nothing.
        start = start.copy()
        start[evidence.groups + 1] = np.log(1e-7)
        bounds[evidence.groups + 1] = (np.log(1e-7), np.log(1e-7))
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
    most: int = 220,
    steps: int = 60,
) -> Fitted:
    """Hyperparameters of highest posterior, on at most `most` rows."""
    thin = _thin(samples, most, seed)
    encoding = Encoding.of(samples.distributions)
    inputs = encoding(thin.units, thin.epochs, samples.full_epochs)
    y = standard.latent(thin.scores)
    evidence = _Evidence(inputs, y, thin.trial, encoding)
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
        signal, trial, noise = fitted.variances
        self.inputs = self._inputs(samples.units, samples.epochs)
        covariance = signal * _matern(_r2(self.inputs, self.inputs)) + 1.0
        covariance += trial * (samples.trial[:, None] == samples.trial[None, :])
        covariance.flat[:: len(samples) + 1] += noise + _JITTER
        self.factor = cholesky(covariance, lower=True, check_finite=False)
        self.y = standard.latent(samples.scores)
        self.alpha = cho_solve((self.factor, True), self.y, check_finite=False)

    def _inputs(self, units: Array, epochs: Array) -> Array:
        raw = self.encoding(units, epochs, self.samples.full_epochs)
        return _scaled(raw, self.fitted.lengths, self.encoding.group_of)

    def _cross(self, inputs: Array) -> Array:
        return self.fitted.variances[0] * _matern(_r2(inputs, self.inputs)) + 1.0

    def predict(self, units: Array, epochs: Array) -> tuple[Array, Array]:
        """Latent mean and deviation of a new trial's score, seed and epoch noise included."""
        cross = self._cross(self._inputs(units, epochs))
        signal, trial, noise = self.fitted.variances
        back = solve_triangular(self.factor, cross.T, lower=True, check_finite=False)
        variance = signal + 1.0 - (back * back).sum(0) + trial + noise
        return np.asarray(cross @ self.alpha), np.sqrt(np.maximum(variance, 1e-12))

    @property
    def noise(self) -> float:
        """Spread of repeated good trials at one point, in units of the score."""
        good = float(np.quantile(self.samples.scores, 0.9))
        return float(np.sqrt(sum(self.fitted.variances[1:])) / self.standard.slope(good))

    def paths(self, count: int, seed: int) -> Paths:
        """`count` functions from the posterior."""
        rng = np.random.default_rng(seed)
        signal, trial, noise = self.fitted.variances
        width = self.inputs.shape[1]
        # The spectrum of Matern-5/2 is a multivariate t with 5 degrees of freedom.
        waves = rng.standard_normal((width, _FEATURES)) / np.sqrt(
            rng.chisquare(5.0, _FEATURES) / 5.0
        )
        phases = rng.uniform(0.0, 2.0 * np.pi, _FEATURES)
        weights = rng.standard_normal((_FEATURES, count)) * np.sqrt(2.0 * signal / _FEATURES)
        offset = rng.standard_normal(count)
        prior = np.cos(self.inputs @ waves + phases) @ weights + offset
        codes = np.unique(self.samples.trial, return_inverse=True)[1]
        shocks = np.sqrt(trial) * rng.standard_normal((codes.max() + 1, count))[codes]
        shocks += np.sqrt(noise) * rng.standard_normal((len(self.y), count))
        gap = self.y[:, None] - prior - shocks
        update = cho_solve((self.factor, True), gap, check_finite=False)
        return Paths(self, waves, phases, weights, offset, update)


@dataclass(frozen=True)
class Paths:
    """Functions drawn from a posterior; call them at any points."""

    posterior: Posterior
    waves: Array
    phases: Array
    weights: Array
    offset: Array
    update: Array

    def __call__(self, units: Array, epochs: Array) -> Array:
        """Draws x points, in units of the score, without noise."""
        inputs = self.posterior._inputs(units, epochs)
        # Single precision is far finer than the draws differ, and four times as fast.
        waves = (inputs @ self.waves + self.phases).astype(np.float32)
        values = np.cos(waves, out=waves) @ self.weights.astype(np.float32)
        r = np.sqrt(5.0 * np.maximum(_r2(inputs, self.posterior.inputs), 0.0)).astype(np.float32)
        kernel = np.exp(-r)
        r *= r / 3.0 + 1.0
        r += 1.0
        kernel *= r
        signal = self.posterior.fitted.variances[0]
        values = values + kernel @ (signal * self.update).astype(np.float32)
        values = values + (self.offset + self.update.sum(axis=0))
        return self.posterior.standard.score(values.T)
