"""Seed noise: how much the score varies between seeds at one point."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd
from scipy.stats import chi2

from study.trials.selection import get_full_epochs, select_validation_trials
from study.trials.table import TrialTable

MIN_RELIABLE_DEGREES_OF_FREEDOM = 4
"""Minimum degrees of freedom of a deviation that other quantities are compared with."""


@dataclass(frozen=True)
class SeedNoise:
    """Standard deviation of a trial's score between seeds at one point.

    With several seeds inside each trial, a score is their mean, and this is the deviation of the
    mean.

    Args:
        sigma: Estimate; NaN if no seed was repeated.
        low, high: Its 90 % interval.
        degrees_of_freedom: Number of seeds minus number of points.
        source: `repeats` of trials, `seeds inside trials`, or `none`.
    """

    sigma: float
    low: float
    high: float
    degrees_of_freedom: int
    source: str

    @property
    def is_measured(self) -> bool:
        """Whether there is an estimate."""
        return bool(np.isfinite(self.sigma))

    @property
    def is_reliable(self) -> bool:
        """Whether enough seeds were repeated to compare other quantities with the estimate."""
        return self.is_measured and self.degrees_of_freedom >= MIN_RELIABLE_DEGREES_OF_FREEDOM


def estimate_seed_noise(table: TrialTable, loss: str | None = None) -> SeedNoise:
    """Pool the deviation within points of full-length validation trials.

    Args:
        loss: Loss; None pools all losses.


    Trials with the same point and the same seed are not repeats: they count once, with their mean.
    """
    losses = [loss] if loss else sorted(table.spaces)
    squares, freedom = 0.0, 0
    inside: list[float] = []
    for name in losses:
        trials = select_validation_trials(table, name)
        done = trials[(trials["epochs"] >= get_full_epochs(table, name)) & trials["score"].notna()]
        once = done.groupby(["point", "seed"], sort=False)["score"].mean().reset_index()
        scores, point = once["score"].to_numpy(dtype=float), pd.factorize(once["point"])[0]
        counts = np.bincount(point)
        means = np.bincount(point, weights=scores) / np.maximum(counts, 1)
        squares += float(((scores - means[point]) ** 2)[counts[point] > 1].sum())
        freedom += len(scores) - len(counts)
        if "score_std" in done:
            inside += [float(v) for v in done["score_std"].dropna()]
    if freedom > 0:
        return SeedNoise(*_sigma_interval(squares, freedom), freedom, "repeats")
    if inside:
        seeds = max(int(table.protocol.get("seeds_per_point") or 2), 2)
        freedom = len(inside) * (seeds - 1)
        squares = float(np.square(inside).sum()) * (seeds - 1) / seeds
        return SeedNoise(*_sigma_interval(squares, freedom), freedom, "seeds inside trials")
    return SeedNoise(float("nan"), float("nan"), float("nan"), 0, "none")


def _sigma_interval(squares: float, freedom: int) -> tuple[float, float, float]:
    low, high = chi2.ppf([0.95, 0.05], freedom)
    return (
        float(np.sqrt(squares / freedom)),
        float(np.sqrt(squares / low)),
        float(np.sqrt(squares / high)),
    )
