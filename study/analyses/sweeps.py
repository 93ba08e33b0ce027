"""What did one-at-a-time sweeps measure, as the papers print them?"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from scipy.stats import t as student

from search_spaces.scale import from_unit
from study.analyses.leaderboard import incumbent
from study.analyses.response import grid_of
from study.analyses.samples import (
    Array,
    full_epochs,
    point_position,
    positions,
    published_values,
    searching,
)
from study.analyses.surrogate import Surrogate
from study.table import KNOB, TrialTable


@dataclass(frozen=True)
class Sweep:
    """Trials that differ in one knob and in their seeds, and in nothing else.

    Args:
        knob: The one that varies.
        anchor: What it varies around: `published` or `incumbent`. A search that went on has another
            incumbent: the newest keeps the name, the others are `earlier incumbent`.
        base: One of its points; but for `knob` its values hold everywhere.
        values: The knob's values in the order of its scale.
        units: Their positions on it.
        scores: For each value the scores by seed; NaN where training diverged.
    """

    knob: str
    anchor: str
    base: Mapping[str, Any]
    values: tuple[Any, ...]
    units: Array
    scores: tuple[Mapping[int, float], ...]

    @property
    def size(self) -> str:
        """How much was measured, in words."""
        least = min(len(by_seed) for by_seed in self.scores)
        return f"{len(self.values)} values x {least} seeds from the {self.anchor} point"


def measured(table: TrialTable, loss: str) -> list[Sweep]:
    """All sweeps of a loss, by knob and by the point they vary around.

    The search's own trials are no part of them: a point that was chosen for its score has too high
    a score in the trial that it was chosen by. Repeats of the point count.
    """
    knobs = table.knobs(loss)
    distributions = [table.spaces[loss].distributions[k] for k in knobs]
    trials = searching(table, loss)
    over = (trials["epochs"] >= full_epochs(table, loss)) & trials["score"].notna()
    fresh = trials["origin"].isin(["sweep", "repeat"])
    done = trials[fresh & (over | (trials["state"] == "diverged"))].reset_index(drop=True)
    places = np.round(positions(done, knobs, distributions), 9)
    asked = (done["origin"] == "sweep") & done["swept"].isin(knobs)
    out: list[Sweep] = []
    for (swept, anchor), group in done[asked].groupby(["swept", "anchor"], sort=True):
        column = knobs.index(str(swept))
        others = [tuple(row) for row in np.delete(places, column, axis=1)]
        bases = {others[i]: i for i in group.sort_values("number").index}  # by age
        for age, (base, i) in enumerate(reversed(bases.items())):
            here = np.array([other == base for other in others])
            name = str(anchor) if age == 0 else f"earlier {anchor}" + (f" {age}" if age > 1 else "")
            point = {k: done[KNOB + k].iloc[i] for k in knobs}
            out.append(_sweep(str(swept), name, point, done[here], places[here, column]))
    return out


def _sweep(
    knob: str, anchor: str, base: Mapping[str, Any], trials: pd.DataFrame, units: Array
) -> Sweep:
    values, scores = [], []
    places = np.unique(units)
    for place in places:
        at = trials[units == place]
        values.append(at[KNOB + knob].iloc[0])
        # The same seed again is no further evidence: it counts once, with its mean.
        mean = at.assign(score=at["score"].astype(float)).groupby("seed")["score"].mean()
        scores.append({int(str(seed)): float(score) for seed, score in mean.items()})
    return Sweep(knob, anchor, base, tuple(values), places, tuple(scores))


def analyse(table: TrialTable, loss: str) -> pd.DataFrame:
    """Mean over seeds at every swept value, with a 95 % interval (NaN for a single seed).

    Returns `swept`, `anchor`, `value`, `mean`, `low`, `high`, `seeds` (how many have a score) and
    `diverged` (how many have none).
    """
    rows = []
    for sweep in measured(table, loss):
        for value, by_seed in zip(sweep.values, sweep.scores, strict=True):
            every = np.array(list(by_seed.values()))
            scores = every[np.isfinite(every)]
            mean = half = float("nan")
            if len(scores):
                mean = float(scores.mean())
            if len(scores) > 1:
                spread = scores.std(ddof=1) / np.sqrt(len(scores))
                half = float(student.ppf(0.975, len(scores) - 1) * spread)
            counts = len(scores), len(every) - len(scores)
            rows.append((sweep.knob, sweep.anchor, value, mean, mean - half, mean + half, *counts))
    names = ["swept", "anchor", "value", "mean", "low", "high", "seeds", "diverged"]
    return pd.DataFrame(rows, columns=names)


def model(surrogate: Surrogate, sweep: Sweep) -> pd.DataFrame:
    """The surrogate's curve through the same point: `value`, `mean`, `low`, `high` (90 %)."""
    samples = surrogate.samples
    base = point_position(sweep.base, samples.knobs, samples.distributions)
    grid = grid_of(surrogate, sweep.knob, size=41)
    j = samples.knobs.index(sweep.knob)
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
