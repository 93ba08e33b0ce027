"""How good a score should one expect after tuning with n trials?

Only trials drawn without looking at results may answer (the Sobol part); the order of a Bayesian
search means nothing here. Bands follow from a simultaneous band for the distribution of scores
(the idea of Lourie et al. 2023, arXiv:2311.09480): they hold for all n at once, with no assumption
but independence, and are open above once n asks for scores rarer than the trials can show.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import pandas as pd
from scipy.special import gammaln
from scipy.stats import beta

from study.analyses.samples import Array, full_epochs, searching
from study.table import TrialTable

LEAST = 8


def analyse(table: TrialTable, loss: str, *, most: int = 100) -> pd.DataFrame:
    """Best of n = 1 ... `most` trials: `n`, `expected`, `median`, `low`, `high` (90 %, median).

    `expected` (unbiased) ends where n exceeds the number of trials. Diverged trials count as the
    worst score. Empty with fewer than eight full-length Sobol trials.
    """
    trials = searching(table, loss)
    part = trials[trials["origin"] == "sobol"]
    full = (part["epochs"] >= full_epochs(table, loss)) & part["score"].notna()
    scores = part.loc[full, "score"].to_numpy(dtype=float)
    lost = int((part["state"] == "diverged").sum())
    if len(scores) < LEAST:
        return pd.DataFrame(columns=["n", "expected", "median", "low", "high"])
    return curve(np.concatenate([np.full(lost, scores.min()), scores]), most=most)


def curve(scores: Array, *, most: int = 100) -> pd.DataFrame:
    """The tuning curve of independent scores."""
    y = np.sort(np.asarray(scores, dtype=np.float64))
    n = np.arange(1, most + 1)
    lower, upper = cdf_band(len(y))
    rank = 0.5 ** (1.0 / n)
    return pd.DataFrame(
        {
            "n": n,
            "expected": [_expected(y, int(k)) if k <= len(y) else np.nan for k in n],
            "median": [_at(y, np.arange(1, len(y) + 1) / len(y), q) for q in rank],
            "low": [_below(y, upper, q) for q in rank],
            "high": [_at(y, lower, q) for q in rank],
        }
    )


def _at(y: Array, distribution: Array, q: float) -> float:
    """The smallest score whose distribution function reaches q; infinite when none does."""
    reached = np.flatnonzero(distribution >= q - 1e-12)
    return float(y[reached[0]]) if len(reached) else float("inf")


def _below(y: Array, upper: Array, q: float) -> float:
    """The same for an upper bound, which already holds just below each score."""
    reached = np.flatnonzero(upper >= q)
    first = int(reached[0]) if len(reached) else len(y)
    return float(y[first - 1]) if first > 0 else float("-inf")


def _expected(y: Array, n: int) -> float:
    """Mean of the best of n drawn without replacement: sum of y_(i) C(i-1, n-1) / C(N, n)."""
    size = len(y)
    i = np.arange(n, size + 1, dtype=np.float64)
    logs = gammaln(i) - gammaln(n) - gammaln(i - n + 1)
    logs -= gammaln(size + 1) - gammaln(n + 1) - gammaln(size - n + 1)
    return float(np.exp(logs) @ y[n - 1 :])


@lru_cache(maxsize=64)
def cdf_band(size: int, *, level: float = 0.9) -> tuple[Array, Array]:
    """Bounds of the distribution function at the order statistics, holding together."""
    i = np.arange(1, size + 1)
    ranks = np.sort(np.random.default_rng(0).random((4000, size)), axis=1)
    tails = beta.cdf(ranks, i, size + 1 - i)
    extreme = np.minimum(tails, 1.0 - tails).min(axis=1)
    tail = float(np.quantile(extreme, 1.0 - level))
    return beta.ppf(tail, i, size + 1 - i), beta.ppf(1.0 - tail, i, size + 1 - i)
