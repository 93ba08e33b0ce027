"""What does a Gaussian process believe of points it has not seen?"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cho_factor, cho_solve, solve_triangular
from scipy.optimize import minimize
from scipy.special import erfc

Array = NDArray[np.float64]
_ROOT5 = 5.0**0.5
_JITTER = 1e-8
# Logarithms of the lengths, the signal's variance and the noise's: what is likely beforehand, for
# scores of unit variance. A quarter of a knob's range is a short length, all of it a long one.
_LENGTH, _SIGNAL, _NOISE = (np.log(0.5), 0.7), (0.0, 0.7), (np.log(0.02), 1.0)
_BOUNDS = {"length": (np.log(0.05), np.log(10.0)), "signal": (-3.0, 3.0), "noise": (-9.0, 0.0)}


def priors() -> dict[str, Any]:
    """What is believed of the kernel before any score, for a study's record."""
    known = {"length": _LENGTH, "signal": _SIGNAL, "noise": _NOISE}
    said = {f"log_{k}": {"mean": float(m), "std": float(s)} for k, (m, s) in known.items()}
    bounds = {k: [float(low), float(high)] for k, (low, high) in _BOUNDS.items()}
    return {"priors": said, "log_bounds": bounds}


class Posterior:
    """A Gaussian process given scores, with its lengths and variances.

    Args:
        units: Points it was given, in the unit cube.
        scores: Their scores, on the model's own scale.
        noise: Variance of the noise in each of them.
        choices: Which knobs have values without an order.
        lengths, signal: Of the kernel.
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
        self.units, self._scores, self._noise = units, scores, noise
        self._choices, self._lengths, self._signal = choices, lengths, signal
        kernel = signal * _matern(_gaps(units, units, choices), lengths)[0]
        self._factor = cho_factor(kernel + np.diag(noise + _JITTER), lower=True)
        self._weights = cho_solve(self._factor, scores)
        self.believed = self.moments(units)[0]
        """The scores without their noise."""

    def moments(self, units: Array) -> tuple[Array, Array]:
        """Mean and standard deviation at points, without noise."""
        gaps = _gaps(units, self.units, self._choices)
        cross = self._signal * _matern(gaps, self._lengths)[0]
        inside = solve_triangular(self._factor[0], cross.T, lower=True)
        variance = self._signal - (inside**2).sum(axis=0)
        return cross @ self._weights, np.sqrt(np.maximum(variance, 1e-12))

    def believing(self, units: Array) -> Posterior:
        """This one when points end as it expects of them."""
        if not len(units):
            return self
        return Posterior(
            np.concatenate([self.units, units]),
            np.concatenate([self._scores, self.moments(units)[0]]),
            np.concatenate([self._noise, np.zeros(len(units))]),
            choices=self._choices,
            lengths=self._lengths,
            signal=self._signal,
        )

    def log_improvement(self, units: Array) -> Array:
        """Logarithm of the improvement to be expected over the best that is believed."""
        mean, spread = self.moments(units)
        z = (mean - self.believed.max()) / spread
        density = -0.5 * z * z - 0.5 * np.log(2.0 * np.pi)
        with np.errstate(divide="ignore", invalid="ignore"):
            close = np.log(np.exp(density) + 0.5 * z * erfc(-z / 2.0**0.5))
            far = density - 2.0 * np.log(np.abs(z))  # where the difference above is lost
        return np.asarray(np.log(spread) + np.where(z > -5.0, close, far))


def fit_posterior(units: Array, scores: Array, choices: Sequence[bool]) -> Posterior:
    """The most likely process of these scores, by maximum a posteriori."""
    kinds = np.array(choices, dtype=bool)
    values = tempered(scores)
    gaps = _gaps(units, units, kinds)
    knobs = units.shape[1]
    centre = np.array([*[_LENGTH[0]] * knobs, _SIGNAL[0], _NOISE[0]])
    width = np.array([*[_LENGTH[1]] * knobs, _SIGNAL[1], _NOISE[1]])
    bounds = [*[_BOUNDS["length"]] * knobs, _BOUNDS["signal"], _BOUNDS["noise"]]

    def cost(logs: Array) -> tuple[float, Array]:
        value, slope = _unlikeliness(logs, gaps, values)
        off = (logs - centre) / width
        return value + 0.5 * float(off @ off), slope + off / width

    options = {"maxiter": 40}
    found = minimize(cost, centre, jac=True, method="L-BFGS-B", bounds=bounds, options=options)
    *lengths, signal, noise = np.exp(found.x)
    return Posterior(
        units,
        values,
        np.full(len(units), noise),
        choices=kinds,
        lengths=np.array(lengths),
        signal=float(signal),
    )


def tempered(scores: Array) -> Array:
    """Scores with unit variance and without a long tail of bad ones, which would set the scale.

    Below the median only the order of magnitude of a score's distance counts.
    """
    middle = float(np.median(scores))
    scale = float(np.quantile(scores, 0.9)) - middle
    below = np.maximum(middle - scores, 0.0)
    if scale > 0:
        scores = np.where(scores < middle, middle - scale * np.log1p(below / scale), scores)
    spread = float(scores.std())
    return np.asarray((scores - scores.mean()) / (spread if spread > 1e-12 else 1.0))


def _gaps(a: Array, b: Array, choices: NDArray[np.bool_]) -> Array:
    """Squared differences of each knob (knobs, a, b); of choices only whether they differ."""
    differences = a.T[:, :, None] - b.T[:, None, :]
    squares = differences**2
    squares[choices] = np.abs(differences[choices]) > 1e-9
    return np.asarray(squares)


def _matern(gaps: Array, lengths: Array) -> tuple[Array, Array]:
    """The kernel with smoothness 5/2, and the factor that its slopes share."""
    distance = _ROOT5 * np.sqrt(np.tensordot(lengths**-2.0, gaps, axes=1))
    fall = np.exp(-distance)
    return (1.0 + distance + distance**2 / 3.0) * fall, (5.0 / 3.0) * (1.0 + distance) * fall


def _unlikeliness(logs: Array, gaps: Array, values: Array) -> tuple[float, Array]:
    """Negative logarithm of the likelihood and its slope."""
    lengths, (signal, noise) = np.exp(logs[:-2]), np.exp(logs[-2:])
    kernel, shared = _matern(gaps, lengths)
    count = len(values)
    factor = cho_factor(signal * kernel + (noise + _JITTER) * np.eye(count), lower=True)
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
