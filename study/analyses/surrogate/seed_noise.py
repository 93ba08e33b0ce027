"""How much does the seed alone move the score?"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd
from scipy.stats import chi2

from study.analyses.samples import full_epochs, searching
from study.table import TrialTable

LEAST_FREEDOM = 4
"""Fewest degrees of freedom of a deviation that others are measured against."""


@dataclass(frozen=True)
class SeedNoise:
    """Standard deviation of a trial's score between seeds at one point.

    With several seeds inside each trial a score is their mean, and the deviation is that mean's.

    Args:
        sigma: Estimate; NaN when nothing was repeated.
        low, high: 90 % interval of it.
        freedom: Degrees of freedom (seeds less points).
        source: `repeats` of trials, the `seeds inside trials`, or `none`.
    """

    sigma: float
    low: float
    high: float
    freedom: int
    source: str

    @property
    def measured(self) -> bool:
        """Whether there is an estimate at all."""
        return bool(np.isfinite(self.sigma))

    @property
    def reliable(self) -> bool:
        """Whether enough seeds were repeated to measure other things against it."""
        return self.measured and self.freedom >= LEAST_FREEDOM


def seed_noise(table: TrialTable, loss: str | None = None) -> SeedNoise:
    """Pooled within-point deviation over full-length validation trials (all losses for None).

    The same seed again is no repeat: such trials count once, with their mean.
    """
    losses = [loss] if loss else sorted(table.spaces)
    squares, freedom = 0.0, 0
    inside: list[float] = []
    for name in losses:
        trials = searching(table, name)
        done = trials[(trials["epochs"] >= full_epochs(table, name)) & trials["score"].notna()]
        once = done.groupby(["point", "seed"], sort=False)["score"].mean().reset_index()
        scores, point = once["score"].to_numpy(dtype=float), pd.factorize(once["point"])[0]
        counts = np.bincount(point)
        means = np.bincount(point, weights=scores) / np.maximum(counts, 1)
        squares += float(((scores - means[point]) ** 2)[counts[point] > 1].sum())
        freedom += len(scores) - len(counts)
        if "score_std" in done:
            inside += [float(v) for v in done["score_std"].dropna()]
    if freedom > 0:
        return SeedNoise(*_interval(squares, freedom), freedom, "repeats")
    if inside:
        seeds = max(int(table.protocol.get("seeds_per_point") or 2), 2)
        freedom = len(inside) * (seeds - 1)
        squares = float(np.square(inside).sum()) * (seeds - 1) / seeds
        return SeedNoise(*_interval(squares, freedom), freedom, "seeds inside trials")
    return SeedNoise(float("nan"), float("nan"), float("nan"), 0, "none")


def _interval(squares: float, freedom: int) -> tuple[float, float, float]:
    low, high = chi2.ppf([0.95, 0.05], freedom)
    return (
        float(np.sqrt(squares / freedom)),
        float(np.sqrt(squares / low)),
        float(np.sqrt(squares / high)),
    )
