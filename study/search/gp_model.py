"""Gaussian-process regression of scores: the model behind `GPEISampler`.

One Matern-5/2 kernel over the unit cube with one length scale per hyperparameter, fitted by maximum
a posteriori to scores of unit variance.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cho_factor, cho_solve, solve_triangular
from scipy.optimize import minimize
from scipy.special import erfc

Array = NDArray[np.float64]
_SQRT_5 = 5.0**0.5
_KERNEL_JITTER = 1e-8
# Priors (mean, standard deviation) of the logarithms of the length scales, the signal variance and
# the noise variance, for scores of unit variance. A quarter of a hyperparameter's range is a short
# length scale, the full range a long one.
_LENGTH_PRIOR, _SIGNAL_PRIOR, _NOISE_PRIOR = (np.log(0.5), 0.7), (0.0, 0.7), (np.log(0.02), 1.0)
_LOG_BOUNDS = {"length": (np.log(0.05), np.log(10.0)), "signal": (-3.0, 3.0), "noise": (-9.0, 0.0)}


def describe_priors() -> dict[str, Any]:
    """Return the priors and bounds of the kernel's parameters, for the study record."""
    by_name = {"length": _LENGTH_PRIOR, "signal": _SIGNAL_PRIOR, "noise": _NOISE_PRIOR}
    priors = {f"log_{k}": {"mean": float(m), "std": float(s)} for k, (m, s) in by_name.items()}
    bounds = {k: [float(low), float(high)] for k, (low, high) in _LOG_BOUNDS.items()}
    return {"priors": priors, "log_bounds": bounds}


class GPModel:
    """Posterior of a Gaussian process with fixed kernel parameters.

    Args:
        units: Observed points in the unit cube.
        scores: Their scores, on the model's own scale.
        noise: Noise variance of each score.
        choices: Which hyperparameters are categorical.
        lengths: Length scale of each hyperparameter.
        signal: Signal variance.
    """

    def __init__(
        self,
        units: Array,
        scores: Array,
        noise: Array,
        *,
        choices: NDArray[np.bool_],
        lengths: Array,
        signal: float,
    ) -> None:
        self.unit_points, self._scores, self._noise = units, scores, noise
        self._choices, self._lengths, self._signal = choices, lengths, signal
        kernel = signal * _matern_kernel(_squared_differences(units, units, choices), lengths)[0]
        self._factor = cho_factor(kernel + np.diag(noise + _KERNEL_JITTER), lower=True)
        self._weights = cho_solve(self._factor, scores)
        self.denoised_scores = self.predict_moments(units)[0]
        """Posterior means at the observed points: the scores without their noise."""

    def predict_moments(self, units: Array) -> tuple[Array, Array]:
        """Return posterior mean and standard deviation at points, without noise."""
        gaps = _squared_differences(units, self.unit_points, self._choices)
        cross = self._signal * _matern_kernel(gaps, self._lengths)[0]
        inside = solve_triangular(self._factor[0], cross.T, lower=True)
        variance = self._signal - (inside**2).sum(axis=0)
        return cross @ self._weights, np.sqrt(np.maximum(variance, 1e-12))

    def condition_on_fantasies(self, units: Array) -> GPModel:
        """Return the model conditioned on points that score exactly their posterior mean."""
        if not len(units):
            return self
        return GPModel(
            np.concatenate([self.unit_points, units]),
            np.concatenate([self._scores, self.predict_moments(units)[0]]),
            np.concatenate([self._noise, np.zeros(len(units))]),
            choices=self._choices,
            lengths=self._lengths,
            signal=self._signal,
        )

    def log_expected_improvement(self, units: Array) -> Array:
        """Return the log expected improvement over the best posterior mean so far."""
        mean, spread = self.predict_moments(units)
        z = (mean - self.denoised_scores.max()) / spread
        density = -0.5 * z * z - 0.5 * np.log(2.0 * np.pi)
        with np.errstate(divide="ignore", invalid="ignore"):
            close = np.log(np.exp(density) + 0.5 * z * erfc(-z / 2.0**0.5))
            far = density - 2.0 * np.log(np.abs(z))  # where `close` underflows
        return np.asarray(np.log(spread) + np.where(z > -5.0, close, far))


def fit_posterior(units: Array, scores: Array, choices: Sequence[bool]) -> GPModel:
    """Return the model of these scores with kernel parameters of maximum posterior density.

    Args:
        units: Observed points in the unit cube.
        scores: Their scores, higher is better.
        choices: Which hyperparameters are categorical.
    """
    is_choice = np.array(choices, dtype=bool)
    values = compress_low_tail(scores)
    gaps = _squared_differences(units, units, is_choice)
    n_params = units.shape[1]
    centre = np.array([*[_LENGTH_PRIOR[0]] * n_params, _SIGNAL_PRIOR[0], _NOISE_PRIOR[0]])
    width = np.array([*[_LENGTH_PRIOR[1]] * n_params, _SIGNAL_PRIOR[1], _NOISE_PRIOR[1]])
    bounds = [*[_LOG_BOUNDS["length"]] * n_params, _LOG_BOUNDS["signal"], _LOG_BOUNDS["noise"]]

    def negative_log_posterior(logs: Array) -> tuple[float, Array]:
        value, slope = _negative_log_likelihood(logs, gaps, values)
        off = (logs - centre) / width
        return value + 0.5 * float(off @ off), slope + off / width

    options = {"maxiter": 40}
    optimum = minimize(
        negative_log_posterior, centre, jac=True, method="L-BFGS-B", bounds=bounds, options=options
    )
    *lengths, signal, noise = np.exp(optimum.x)
    return GPModel(
        units,
        values,
        np.full(len(units), noise),
        choices=is_choice,
        lengths=np.array(lengths),
        signal=float(signal),
    )


def compress_low_tail(scores: Array) -> Array:
    """Return scores of unit variance whose low tail is compressed logarithmically.

    A few very low scores would otherwise set the scale. Below the median only the order of
    magnitude of the distance to it counts.
    """
    middle = float(np.median(scores))
    scale = float(np.quantile(scores, 0.9)) - middle
    below = np.maximum(middle - scores, 0.0)
    if scale > 0:
        scores = np.where(scores < middle, middle - scale * np.log1p(below / scale), scores)
    spread = float(scores.std())
    return np.asarray((scores - scores.mean()) / (spread if spread > 1e-12 else 1.0))


def _squared_differences(a: Array, b: Array, choices: NDArray[np.bool_]) -> Array:
    """Return squared differences per hyperparameter (params, a, b); 0 or 1 for choices."""
    differences = a.T[:, :, None] - b.T[:, None, :]
    squares = differences**2
    squares[choices] = np.abs(differences[choices]) > 1e-9
    return np.asarray(squares)


def _matern_kernel(gaps: Array, lengths: Array) -> tuple[Array, Array]:
    """Return the Matern-5/2 kernel and the factor common to its length-scale derivatives."""
    distance = _SQRT_5 * np.sqrt(np.tensordot(lengths**-2.0, gaps, axes=1))
    fall = np.exp(-distance)
    return (1.0 + distance + distance**2 / 3.0) * fall, (5.0 / 3.0) * (1.0 + distance) * fall


def _negative_log_likelihood(logs: Array, gaps: Array, values: Array) -> tuple[float, Array]:
    """Return the negative log likelihood and its gradient in the log parameters."""
    lengths, (signal, noise) = np.exp(logs[:-2]), np.exp(logs[-2:])
    kernel, shared = _matern_kernel(gaps, lengths)
    count = len(values)
    factor = cho_factor(signal * kernel + (noise + _KERNEL_JITTER) * np.eye(count), lower=True)
    weights = cho_solve(factor, values)
    value = 0.5 * float(values @ weights) + float(np.log(np.diag(factor[0])).sum())
    # d cost / d K = (K^-1 - w w') / 2
    change = 0.5 * (cho_solve(factor, np.eye(count)) - np.outer(weights, weights))
    by_length = [
        float((change * (signal * shared * gap)).sum()) / length**2
        for gap, length in zip(gaps, lengths, strict=True)
    ]
    by_signal = float((change * (signal * kernel)).sum())
    by_noise = noise * float(np.trace(change))
    return value, np.array([*by_length, by_signal, by_noise])
