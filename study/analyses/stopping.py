"""Was it safe to stop trials early: do early scores rank trials as their last ones do?"""

from __future__ import annotations

import numpy as np
import pandas as pd
from scipy.stats import rankdata

from study.analyses.samples import Array, full_epochs, searching
from study.table import TrialTable

LEAST = 8
SAFE = 0.7


def analyse(table: TrialTable, loss: str, *, seed: int = 0) -> pd.DataFrame:
    """Rank correlation of the score at each rung with the final score.

    Only trials that no scheduler could have stopped count (Sobol and published ones, run to the
    end); among survivors the correlation would be flattered or hidden by the selection itself.

    Returns `epoch`, `trials`, `correlation`, `low`, `high` (90 %), `best_kept` (whether the final
    best was in the better third then) and `verdict`: `safe`, `unsafe` or `cannot tell`.
    """
    trials = searching(table, loss)
    full = full_epochs(table, loss)
    free = trials[trials["origin"].isin(["sobol", "published"])]
    free = free[(free["epochs"] >= full) & free["score"].notna()].set_index("trial")
    columns = ["epoch", "trials", "correlation", "low", "high", "best_kept", "verdict"]
    rows = []
    for epoch in _rungs(trials, full):
        at = table.curves[table.curves["epoch"] == epoch]
        early = at.set_index("trial")["score"].reindex(free.index).dropna()
        if len(early) < LEAST:
            continue
        last = free.loc[early.index, "score"].to_numpy(dtype=float)
        rho, low, high = _spearman(early.to_numpy(dtype=float), last, seed)
        third = np.quantile(early, 2 / 3)
        kept = bool(early.iloc[int(last.argmax())] >= third)
        verdict = "safe" if low >= SAFE else "unsafe" if high < SAFE else "cannot tell"
        rows.append((int(epoch), len(early), rho, low, high, kept, verdict))
    return pd.DataFrame(rows, columns=columns)


def _rungs(trials: pd.DataFrame, full: float) -> list[float]:
    """Epochs where trials were stopped; thirds of the way when none was."""
    stopped = trials.loc[trials["state"] == "stopped", "epochs"].value_counts()
    if len(stopped):
        return sorted(float(e) for e in stopped.index[:4])
    return sorted({float(max(round(full / k), 1)) for k in (9, 3)} - {full})


def _spearman(a: Array, b: Array, seed: int) -> tuple[float, float, float]:
    """The correlation and a bootstrap interval, all resamples at once."""
    draws = np.random.default_rng(seed).integers(len(a), size=(400, len(a)))
    x, y = (rankdata(np.concatenate([v[None], v[draws]]), axis=1) for v in (a, b))
    x, y = x - x.mean(axis=1, keepdims=True), y - y.mean(axis=1, keepdims=True)
    scale = np.sqrt((x * x).sum(axis=1) * (y * y).sum(axis=1))
    rho = (x * y).sum(axis=1) / np.maximum(scale, 1e-12)
    low, high = np.quantile(rho[1:], [0.05, 0.95])
    return float(rho[0]), float(low), float(high)
