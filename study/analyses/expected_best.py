"""How good a score can one expect after tuning with n trials?

Only trials that were chosen without looking at results can answer (the Sobol part); the order of a
Bayesian search carries no such information. The bands follow from a simultaneous confidence band
for the distribution of scores (Lourie et al. 2023, arXiv:2311.09480): they hold for all n at once,
assume nothing but independence, and are open above where n asks for scores rarer than the trials
can show.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import pandas as pd
from scipy.special import gammaln
from scipy.stats import beta

from study.analyses.surrogate.observations import FloatArray
from study.trials.selection import get_full_epochs, select_validation_trials
from study.trials.table import TrialTable

MIN_SOBOL_TRIALS = 8


def analyse_expected_best(table: TrialTable, loss: str, *, max_trials: int = 100) -> pd.DataFrame:
    """Return the expected best score of n = 1 ... `max_trials` trials.

    Diverged trials count as the worst score. Empty with fewer than eight full-length Sobol trials.

    Returns:
        `n`, `expected` (unbiased; NaN where n exceeds the number of trials), `median`, and the 90 %
        band `low`, `high` of the median.
    """
    trials = select_validation_trials(table, loss)
    sobol = trials[trials["origin"] == "sobol"]
    full = (sobol["epochs"] >= get_full_epochs(table, loss)) & sobol["score"].notna()
    scores = sobol.loc[full, "score"].to_numpy(dtype=float)
    n_diverged = int((sobol["state"] == "diverged").sum())
    if len(scores) < MIN_SOBOL_TRIALS:
        return pd.DataFrame(columns=["n", "expected", "median", "low", "high"])
    scores = np.concatenate([np.full(n_diverged, scores.min()), scores])
    return compute_tuning_curve(scores, max_trials=max_trials)


def compute_tuning_curve(scores: FloatArray, *, max_trials: int = 100) -> pd.DataFrame:
    """Return the tuning curve of independent scores (see `analyse_expected_best`)."""
    y = np.sort(np.asarray(scores, dtype=np.float64))
    n = np.arange(1, max_trials + 1)
    lower, upper = compute_cdf_band(len(y))
    rank = 0.5 ** (1.0 / n)
    return pd.DataFrame(
        {
            "n": n,
            "expected": [_expected_maximum(y, int(k)) if k <= len(y) else np.nan for k in n],
            "median": [_quantile_score(y, np.arange(1, len(y) + 1) / len(y), q) for q in rank],
            "low": [_lower_quantile_score(y, upper, q) for q in rank],
            "high": [_quantile_score(y, lower, q) for q in rank],
        }
    )


def _quantile_score(y: FloatArray, distribution: FloatArray, q: float) -> float:
    """Return the smallest score at which the distribution function reaches q, or infinity."""
    reached = np.flatnonzero(distribution >= q - 1e-12)
    return float(y[reached[0]]) if len(reached) else float("inf")


def _lower_quantile_score(y: FloatArray, upper: FloatArray, q: float) -> float:
    """Return the same for an upper bound, which already holds just below each score."""
    reached = np.flatnonzero(upper >= q)
    first = int(reached[0]) if len(reached) else len(y)
    return float(y[first - 1]) if first > 0 else float("-inf")


def _expected_maximum(y: FloatArray, n: int) -> float:
    """Return the mean best of n drawn without replacement: sum of y_(i) C(i-1, n-1) / C(N, n)."""
    size = len(y)
    i = np.arange(n, size + 1, dtype=np.float64)
    logs = gammaln(i) - gammaln(n) - gammaln(i - n + 1)
    logs -= gammaln(size + 1) - gammaln(n + 1) - gammaln(size - n + 1)
    return float(np.exp(logs) @ y[n - 1 :])


@lru_cache(maxsize=64)
def compute_cdf_band(size: int, *, level: float = 0.9) -> tuple[FloatArray, FloatArray]:
    """Return simultaneous bounds of the distribution function at the order statistics."""
    i = np.arange(1, size + 1)
    ranks = np.sort(np.random.default_rng(0).random((4000, size)), axis=1)
    tails = beta.cdf(ranks, i, size + 1 - i)
    extreme = np.minimum(tails, 1.0 - tails).min(axis=1)
    tail = float(np.quantile(extreme, 1.0 - level))
    return beta.ppf(tail, i, size + 1 - i), beta.ppf(1.0 - tail, i, size + 1 - i)
