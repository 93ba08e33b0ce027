"""On which scale of the score is a smooth model at home?"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy.stats import skew

from study.analyses.samples import Array


@dataclass(frozen=True)
class Standard:
    """The scale a model works in: centred and scaled scores, or the log of their shortfall.

    Scores of a wide search have a long lower tail: most settings are close to the best, some are
    far below. One smoothness cannot fit both; -log(ceiling - score) gives the good settings room
    and draws the bad ones together.

    Args:
        centre, scale: Of the (transformed) scores.
        ceiling: Just above the best score; None for plain scores.
    """

    centre: float
    scale: float
    ceiling: float | None = None

    @classmethod
    def of(cls, scores: Array, *, ceiling: float | None = None) -> Standard:
        """Mean and spread; a constant column has scale one."""
        values = scores if ceiling is None else -np.log(ceiling - scores)
        spread = float(np.std(values))
        return cls(float(np.mean(values)), spread if spread > 1e-12 else 1.0, ceiling)

    def latent(self, scores: Array) -> Array:
        """Scores on the model's scale."""
        values = scores if self.ceiling is None else -np.log(self.ceiling - scores)
        return np.asarray((values - self.centre) / self.scale, dtype=np.float64)

    def score(self, latent: Array) -> Array:
        """The inverse of `latent`."""
        values = self.centre + self.scale * np.asarray(latent, dtype=np.float64)
        if self.ceiling is None:
            return values
        return np.asarray(self.ceiling - np.exp(-np.clip(values, -60.0, 60.0)))

    def slope(self, scores: ArrayLike) -> Array:
        """Derivative of `latent`."""
        y = np.asarray(scores, dtype=np.float64)
        if self.ceiling is None:
            return np.full_like(y, 1.0 / self.scale)
        return np.asarray(1.0 / (self.scale * (self.ceiling - y)))

    def moments(self, mean: Array, spread: Array) -> tuple[Array, Array]:
        """Mean and deviation of the score whose latent value is normal."""
        if self.ceiling is None:
            return self.score(mean), self.scale * spread
        mu, var = -(self.centre + self.scale * mean), (self.scale * spread) ** 2
        middle = np.exp(np.clip(mu + 0.5 * var, -60.0, 60.0))
        return self.ceiling - middle, middle * np.sqrt(np.expm1(np.minimum(var, 50.0)))


def ceiling_of(scores: Array) -> float | None:
    """The ceiling that leaves the least skew; None when the lower tail is not long."""
    if float(skew(scores)) > -0.7:
        return None
    top, width = float(scores.max()), float(np.ptp(scores))
    margins = width * np.array([0.03, 0.06, 0.12, 0.25, 0.5])
    skews = [abs(float(skew(-np.log(top + m - scores)))) for m in margins]
    return top + float(margins[int(np.argmin(skews))])
