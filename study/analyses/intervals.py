"""Student-t interval of a mean over seeds."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.stats import t as student_t


class MeanInterval(NamedTuple):
    """Mean of some values, its 95 % interval, and their standard deviation."""

    mean: float
    low: float
    high: float
    sigma: float


def compute_mean_interval(values: NDArray[np.float64]) -> MeanInterval:
    """Return the mean and its 95 % Student-t interval; NaN where there are too few values."""
    n, nan = len(values), float("nan")
    if n == 0:
        return MeanInterval(nan, nan, nan, nan)
    mean = float(values.mean())
    if n == 1:
        return MeanInterval(mean, nan, nan, nan)
    sigma = float(values.std(ddof=1))
    half = float(student_t.ppf(0.975, n - 1)) * sigma / float(np.sqrt(n))
    return MeanInterval(mean, mean - half, mean + half, sigma)
