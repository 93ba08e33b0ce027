"""How fast did the search improve: best score so far against epochs spent?"""

from __future__ import annotations

import numpy as np
import pandas as pd

from study.trials.selection import get_full_epochs, select_validation_trials
from study.trials.table import SEARCH_ORIGINS, TrialTable


def analyse_optimization_history(table: TrialTable) -> pd.DataFrame:
    """Return one row per search trial, in the order in which the sampler proposed them.

    `spent` counts the epochs of all trials of the loss up to and including this one; only
    full-length scores change `best`. Sweeps and repeats are not part of the search and do not
    count.

    Returns:
        `loss`, `trial`, `origin`, `spent`, `score`, `best`.
    """
    frames = []
    for loss in table.spaces:
        trials = select_validation_trials(table, loss)
        trials = trials[trials["origin"].isin(SEARCH_ORIGINS)]
        trials = trials.sort_values("number")
        if trials.empty:
            continue
        full = trials["epochs"] >= get_full_epochs(table, loss)
        score = trials["score"].where(full).astype(float)
        frames.append(
            pd.DataFrame(
                {
                    "loss": loss,
                    "trial": trials["trial"].to_numpy(),
                    "origin": trials["origin"].to_numpy(),
                    "spent": trials["epochs"].cumsum().to_numpy(),
                    "score": trials["score"].to_numpy(dtype=float),
                    "best": np.fmax.accumulate(score.to_numpy()),
                }
            )
        )
    columns = ["loss", "trial", "origin", "spent", "score", "best"]
    return pd.concat(frames, ignore_index=True) if frames else pd.DataFrame(columns=columns)
