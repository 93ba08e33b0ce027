"""How much would picking the best test epoch have flattered each loss?

Official codes of the field report the best epoch on the test classes. Confirmations here report
the last one; their curves say what the habit is worth.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
from scipy import stats

from study.analyses.comparison import confirmed_trials
from study.table import TrialTable

COLUMNS = ("loss", "seeds", "last", "best_epoch", "inflation", "low", "high")


def analyse(table: TrialTable) -> pd.DataFrame:
    """Best-epoch minus last-epoch test score of each tuned loss, mean and 95 % interval over seeds.

    Returns one row per confirmed loss: `loss`, `seeds`, `last` and `best_epoch` (mean scores),
    `inflation`, `low`, `high` (NaN with one seed). Empty before `study confirm`.
    """
    best = table.curves.groupby("trial")["score"].max()
    rows = []
    for loss in table.spaces:
        trials = confirmed_trials(table, loss)
        trials = trials[trials["trial"].isin(best.index)]
        if trials.empty:
            continue
        last = trials["score"].to_numpy(dtype=float)
        gains = best.loc[trials["trial"]].to_numpy(dtype=float) - last
        low, high = _interval(gains)
        rows.append((loss, len(gains), last.mean(), (last + gains).mean(), gains.mean(), low, high))
    return pd.DataFrame(rows, columns=list(COLUMNS))


def _interval(values: np.ndarray) -> tuple[float, float]:
    if len(values) < 2:
        return float("nan"), float("nan")
    half = stats.t.ppf(0.975, len(values) - 1) * values.std(ddof=1) / np.sqrt(len(values))
    return float(values.mean() - half), float(values.mean() + half)
