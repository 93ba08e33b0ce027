"""How fast did the search get there: best score so far against epochs spent?"""

from __future__ import annotations

import numpy as np
import pandas as pd

from study.analyses.samples import full_epochs, searching
from study.table import TrialTable


def analyse(table: TrialTable) -> pd.DataFrame:
    """One row per search trial in order of asking: `loss`, `trial`, `spent`, `score`, `best`.

    `spent` counts the epochs of all trials of the loss up to and including this one; only
    full-length scores move `best`. Sweeps and repeats are no search and do not count.
    """
    frames = []
    for loss in table.spaces:
        trials = searching(table, loss)
        trials = trials[trials["origin"].isin(["published", "sobol", "bayes"])]
        trials = trials.sort_values("number")
        if trials.empty:
            continue
        full = trials["epochs"] >= full_epochs(table, loss)
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
