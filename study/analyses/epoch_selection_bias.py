"""How much would reporting the best test epoch inflate the score of each loss?

Official implementations in this field report the best epoch on the test classes. Confirmations here
report the last epoch; their learning curves show what the difference is.
"""

from __future__ import annotations

import pandas as pd

from study.analyses.intervals import compute_mean_interval
from study.analyses.loss_comparison import select_confirmed_trials
from study.trials.table import TrialTable

EPOCH_SELECTION_BIAS_COLUMNS = ("loss", "seeds", "last", "best_epoch", "inflation", "low", "high")


def analyse_epoch_selection_bias(table: TrialTable) -> pd.DataFrame:
    """Return best-epoch minus last-epoch test score of each tuned loss.

    The interval is a 95 % interval over seeds.

    Returns:
        One row per confirmed loss: `loss`, `seeds`, `last` and `best_epoch` (mean scores),
        `inflation`, `low`, `high` (NaN with one seed). Empty before `study confirm`.
    """
    best = table.curves.groupby("trial")["score"].max()
    rows = []
    for loss in table.spaces:
        trials = select_confirmed_trials(table, loss)
        trials = trials[trials["trial"].isin(best.index)]
        if trials.empty:
            continue
        last = trials["score"].to_numpy(dtype=float)
        gains = best.loc[trials["trial"]].to_numpy(dtype=float) - last
        gain = compute_mean_interval(gains)
        means = last.mean(), (last + gains).mean()
        rows.append((loss, len(gains), *means, gain.mean, gain.low, gain.high))
    return pd.DataFrame(rows, columns=list(EPOCH_SELECTION_BIAS_COLUMNS))
