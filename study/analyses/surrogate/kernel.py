"""How alike are the scores of two settings, and how smooth is a response?

How smooth is not known beforehand: a parabola is far smoother than Matern-5/2, a kink far rougher,
and draws of the wrong smoothness give bands that miss. So there are three shapes, and the evidence
chooses. All are functions of the squared distance in units of the lengths.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from study.analyses.samples import Array

Smoothness = Literal["rough", "smooth", "analytic"]
SMOOTHNESSES: tuple[Smoothness, ...] = ("rough", "smooth", "analytic")
"""Matern-3/2 (kinks), Matern-5/2 and the squared exponential."""

_FREEDOM: dict[Smoothness, float] = {"rough": 3.0, "smooth": 5.0, "analytic": np.inf}


def correlation(r2: NDArray[Any], smoothness: Smoothness) -> NDArray[Any]:
    """Correlation at squared distance r2; keeps single precision single."""
    r2 = np.maximum(r2, 0)
    if smoothness == "analytic":
        return np.asarray(np.exp(-0.5 * r2))
    r = np.sqrt(_FREEDOM[smoothness] * r2)
    grow = 1 + r if smoothness == "rough" else 1 + r * (1 + r / 3)
    return np.asarray(grow * np.exp(-r))


def with_slope(r2: Array, smoothness: Smoothness) -> tuple[Array, Array]:
    """The correlation and -2 times its derivative by r2 (for gradients by the log lengths)."""
    if smoothness == "analytic":
        value = np.exp(-0.5 * r2)
        return value, value
    r = np.sqrt(_FREEDOM[smoothness] * r2)
    decay = np.exp(-r)
    if smoothness == "rough":
        return (1.0 + r) * decay, 3.0 * decay
    return (1.0 + r + r * r / 3.0) * decay, (5.0 / 3.0) * (1.0 + r) * decay


def squared_distances(a: Array, b: Array) -> Array:
    """Rows of a against rows of b."""
    return np.asarray((a * a).sum(1)[:, None] + (b * b).sum(1)[None, :] - 2.0 * a @ b.T)


@dataclass(frozen=True)
class Waves:
    """Random Fourier features: functions from the prior of one term."""

    waves: Array
    phases: Array
    weights: Array

    @classmethod
    def draw(
        cls,
        rng: np.random.Generator,
        smoothness: Smoothness,
        *,
        width: int,
        features: int,
        count: int,
        variance: float,
    ) -> Waves:
        """`count` functions of `width` inputs."""
        # The spectrum of a Matern is a multivariate t, that of the squared exponential normal.
        freedom = _FREEDOM[smoothness]
        waves = rng.standard_normal((width, features))
        if np.isfinite(freedom):
            waves = waves / np.sqrt(rng.chisquare(freedom, features) / freedom)
        phases = rng.uniform(0.0, 2.0 * np.pi, features)
        weights = rng.standard_normal((features, count)) * np.sqrt(2.0 * variance / features)
        return cls(waves, phases, weights)

    def __call__(self, inputs: Array) -> Array:
        """Rows x functions."""
        # Single precision is far finer than the draws differ, and four times as fast.
        angles = (inputs @ self.waves + self.phases).astype(np.float32)
        values = np.cos(angles, out=angles) @ self.weights.astype(np.float32)
        return np.asarray(values, dtype=np.float64)
