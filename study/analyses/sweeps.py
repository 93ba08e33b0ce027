"""What did one-at-a-time sweeps measure, as the papers print them?"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from scipy.stats import t as student

from search_spaces.scale import from_unit
from study.analyses.leaderboard import incumbent
from study.analyses.response import grid_of
from study.analyses.samples import full_epochs, point_position, published_values, searching
from study.analyses.surrogate import Surrogate
from study.table import KNOB, TrialTable


def analyse(table: TrialTable, loss: str) -> pd.DataFrame:
    """Mean over seeds at every swept value, with a 95 % interval (NaN for a single seed).

    Trials at the anchor itself count for the anchor's value; requested trials that vary no single
    knob are no sweep. Returns `swept`, `anchor`, `value`, `mean`, `low`, `high`, `seeds`.
    """
    trials = searching(table, loss)
    done = trials[(trials["epochs"] >= full_epochs(table, loss)) & trials["score"].notna()]
    sweeps = done[(done["origin"] == "sweep") & done["swept"].isin(table.knobs(loss))]
    rows = []
    for (swept, anchor), group in sweeps.groupby(["swept", "anchor"], sort=True):
        column = KNOB + str(swept)
        for point, at in group.groupby("point", sort=False):
            here = done[done["point"] == point]
            scores = here.groupby("seed")["score"].mean().to_numpy(dtype=float)
            half = float("nan")
            if len(scores) > 1:
                spread = scores.std(ddof=1) / np.sqrt(len(scores))
                half = float(student.ppf(0.975, len(scores) - 1) * spread)
            mean = float(scores.mean())
            value = at[column].iloc[0]
            rows.append((swept, anchor, value, mean, mean - half, mean + half, len(scores)))
    names = ["swept", "anchor", "value", "mean", "low", "high", "seeds"]
    return pd.DataFrame(rows, columns=names)


def model(table: TrialTable, surrogate: Surrogate, *, swept: str, anchor: str) -> pd.DataFrame:
    """The surrogate's curve through the same anchor: `value`, `mean`, `low`, `high` (90 %)."""
    samples = surrogate.samples
    values = anchor_values(table, samples.loss, anchor)
    if values is None:
        return pd.DataFrame(columns=["value", "mean", "low", "high"])
    base = point_position(values, samples.knobs, samples.distributions)
    grid = grid_of(surrogate, swept, size=41)
    j = samples.knobs.index(swept)
    units = np.repeat(base[None], len(grid), axis=0)
    units[:, j] = grid
    draws = surrogate.draws(units)
    low, high = np.quantile(draws, [0.05, 0.95], axis=0)
    places = pd.Series([from_unit(samples.distributions[j], u) for u in grid], dtype=object)
    return pd.DataFrame({"value": places, "mean": draws.mean(axis=0), "low": low, "high": high})


def anchor_values(table: TrialTable, loss: str, anchor: str) -> dict[str, Any] | None:
    """The point a sweep varies around: the published one, or the best found."""
    if anchor == "published":
        return published_values(table, loss)
    best = incumbent(table, loss)
    if best is None:
        return None
    return {k: best[KNOB + k] for k in table.knobs(loss)}
