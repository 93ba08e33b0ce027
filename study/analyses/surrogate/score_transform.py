"""Score transforms: the scale of the score on which a smooth model fits best."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy.stats import skew

from study.analyses.surrogate.observations import FloatArray


@dataclass(frozen=True)
class ScoreTransform:
    """Centred and scaled scores, or centred and scaled logarithms of their distance to a ceiling.

    Scores of a wide search have a long lower tail: most settings are close to the best, a few are
    far below. A single smoothness cannot fit both; -log(ceiling - score) stretches the good
    settings and compresses the bad ones.

    Args:
        centre, scale: Mean and standard deviation of the (transformed) scores.
        ceiling: A value just above the best score; None for untransformed scores.
    """

    centre: float
    scale: float
    ceiling: float | None = None

    @classmethod
    def from_scores(cls, scores: FloatArray, *, ceiling: float | None = None) -> ScoreTransform:
        """Fit the transform to scores; the scale of constant scores is one."""
        values = scores if ceiling is None else -np.log(ceiling - scores)
        spread = float(np.std(values))
        return cls(float(np.mean(values)), spread if spread > 1e-12 else 1.0, ceiling)

    def to_latent(self, scores: FloatArray) -> FloatArray:
        """Convert scores to the scale of the model."""
        values = scores if self.ceiling is None else -np.log(self.ceiling - scores)
        return np.asarray((values - self.centre) / self.scale, dtype=np.float64)

    def to_score(self, latent: FloatArray) -> FloatArray:
        """Convert latent values back to scores (the inverse of `to_latent`)."""
        values = self.centre + self.scale * np.asarray(latent, dtype=np.float64)
        if self.ceiling is None:
            return values
        return np.asarray(self.ceiling - np.exp(-np.clip(values, -60.0, 60.0)))

    def latent_slope(self, scores: ArrayLike) -> FloatArray:
        """Return the derivative of `to_latent`."""
        y = np.asarray(scores, dtype=np.float64)
        if self.ceiling is None:
            return np.full_like(y, 1.0 / self.scale)
        return np.asarray(1.0 / (self.scale * (self.ceiling - y)))

    def score_moments(self, mean: FloatArray, spread: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return the mean and standard deviation of the score whose latent value is normal."""
        if self.ceiling is None:
            return self.to_score(mean), self.scale * spread
        mu, var = -(self.centre + self.scale * mean), (self.scale * spread) ** 2
        middle = np.exp(np.clip(mu + 0.5 * var, -60.0, 60.0))
        return self.ceiling - middle, middle * np.sqrt(np.expm1(np.minimum(var, 50.0)))


def estimate_ceiling(scores: FloatArray) -> float | None:
    """Return the ceiling that leaves the least skew; None if the lower tail is not long."""
    if float(skew(scores)) > -0.7:
        return None
    top, width = float(scores.max()), float(np.ptp(scores))
    margins = width * np.array([0.03, 0.06, 0.12, 0.25, 0.5])
    skews = [abs(float(skew(-np.log(top + m - scores)))) for m in margins]
    return top + float(margins[int(np.argmin(skews))])
