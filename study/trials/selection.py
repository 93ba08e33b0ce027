"""Selections from a trial table that several analyses share."""

from __future__ import annotations

from typing import Any

import pandas as pd

from search_spaces.space import in_range
from study.trials.table import TrialTable


def get_full_epochs(table: TrialTable, loss: str) -> float:
    """Return the epochs of a full trial: of the longest finished one, else of the protocol."""
    trials = table.trials_of(loss)
    finished = trials.loc[trials["state"] == "finished", "epochs"]
    if len(finished):
        return float(max(finished.max(), 1.0))
    stated = table.protocol.get("epochs")
    longest = trials["epochs"].max() if len(trials) else 1.0
    return float(stated if stated else max(longest, 1.0))


def select_validation_trials(table: TrialTable, loss: str) -> pd.DataFrame:
    """Return the trials of a loss on validation classes, i.e. all but confirmations."""
    trials = table.trials_of(loss)
    return trials[(trials["split"] != "test") & (trials["origin"] != "confirm")]


def get_published_params(table: TrialTable, loss: str) -> dict[str, Any] | None:
    """Return the first published point of a loss within the searched ranges, or None."""
    space = table.spaces[loss]
    for point in space.published:
        if all(in_range(d, point.values[k]) for k, d in space.distributions.items()):
            return dict(point.values)
    return None
