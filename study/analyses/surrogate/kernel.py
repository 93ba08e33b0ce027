"""Kernels of the Gaussian process, in three smoothnesses, and random features of them.

The smoothness of a response is not known in advance: a parabola is far smoother than Matern-5/2, a
kink far rougher, and bands from the wrong kernel miss the truth. The evidence therefore selects one
of three kernels. All are functions of the squared distance in units of the length scales.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from study.analyses.surrogate.observations import FloatArray

KernelSmoothness = Literal["rough", "smooth", "analytic"]
KERNEL_SMOOTHNESSES: tuple[KernelSmoothness, ...] = ("rough", "smooth", "analytic")
"""Matern-3/2 (kinks), Matern-5/2 and the squared exponential."""

_MATERN_DEGREES_OF_FREEDOM: dict[KernelSmoothness, float] = {
    "rough": 3.0,
    "smooth": 5.0,
    "analytic": np.inf,
}


def evaluate_kernel(r2: NDArray[Any], smoothness: KernelSmoothness) -> NDArray[Any]:
    """Return the correlation at squared distance `r2`, in the precision of `r2`."""
    r2 = np.maximum(r2, 0)
    if smoothness == "analytic":
        return np.asarray(np.exp(-0.5 * r2))
    r = np.sqrt(_MATERN_DEGREES_OF_FREEDOM[smoothness] * r2)
    grow = 1 + r if smoothness == "rough" else 1 + r * (1 + r / 3)
    return np.asarray(grow * np.exp(-r))


def evaluate_kernel_and_slope(
    r2: FloatArray, smoothness: KernelSmoothness
) -> tuple[FloatArray, FloatArray]:
    """Return the correlation and -2 times its derivative by `r2`.

    The derivative is what gradients by log length scales need.
    """
    if smoothness == "analytic":
        value = np.exp(-0.5 * r2)
        return value, value
    r = np.sqrt(_MATERN_DEGREES_OF_FREEDOM[smoothness] * r2)
    decay = np.exp(-r)
    if smoothness == "rough":
        return (1.0 + r) * decay, 3.0 * decay
    return (1.0 + r + r * r / 3.0) * decay, (5.0 / 3.0) * (1.0 + r) * decay


def compute_squared_distances(a: FloatArray, b: FloatArray) -> FloatArray:
    """Return squared distances between the rows of `a` and the rows of `b`."""
    return np.asarray((a * a).sum(1)[:, None] + (b * b).sum(1)[None, :] - 2.0 * a @ b.T)


@dataclass(frozen=True)
class FourierFeatures:
    """Random Fourier features: functions drawn from the prior of one term."""

    frequencies: FloatArray
    phases: FloatArray
    weights: FloatArray

    @classmethod
    def draw_prior_functions(
        cls,
        rng: np.random.Generator,
        smoothness: KernelSmoothness,
        *,
        width: int,
        features: int,
        count: int,
        variance: float,
    ) -> FourierFeatures:
        """Draw `count` functions of `width` inputs."""
        # The spectral density of a Matern kernel is a multivariate t, that of the squared
        # exponential a normal distribution.
        freedom = _MATERN_DEGREES_OF_FREEDOM[smoothness]
        waves = rng.standard_normal((width, features))
        if np.isfinite(freedom):
            waves = waves / np.sqrt(rng.chisquare(freedom, features) / freedom)
        phases = rng.uniform(0.0, 2.0 * np.pi, features)
        weights = rng.standard_normal((features, count)) * np.sqrt(2.0 * variance / features)
        return cls(waves, phases, weights)

    def __call__(self, inputs: FloatArray) -> FloatArray:
        """Evaluate the functions: rows x functions."""
        # Single precision is four times as fast, and its error is far below the draws' spread.
        angles = (inputs @ self.frequencies + self.phases).astype(np.float32)
        values = np.cos(angles, out=angles) @ self.weights.astype(np.float32)
        return np.asarray(values, dtype=np.float64)
