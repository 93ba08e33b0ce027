"""What may a model of one loss learn from: which rows, on which scale, at which epoch?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)

from search_spaces.scale import to_unit
from search_spaces.space import in_range
from study.table import KNOB, TrialTable

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Samples:
    """Scores of one loss in the unit cube of the sampling scale.

    A trial gives its last epoch and, where other trials were stopped, its score at those epochs
    too: without them a model cannot tell "stopped early" from "bad".

    Args:
        loss: Registry name.
        knobs: Searched knobs; one column of `units` each.
        distributions: Their ranges and scales.
        units: Positions, rows x knobs.
        epochs: Epoch of each row.
        scores: Objective at that epoch; a diverged trial has the worst score seen.
        trial: Code of the trial, equal for rows of one trial.
        point: Code of the point, equal for trials that differ in their seed only.
        last: Whether the row is its trial's last.
        diverged: Whether the row stands for a trial that diverged.
        blind: Whether the trial's point was drawn without looking at results (Sobol).
        full_epochs: Epochs of a full trial; models are read there.
        left_out: Trials beyond what a model can take.
    """

    loss: str
    knobs: tuple[str, ...]
    distributions: tuple[BaseDistribution, ...]
    units: Array
    epochs: Array
    scores: Array
    trial: NDArray[np.int64]
    point: NDArray[np.int64]
    last: NDArray[np.bool_]
    diverged: NDArray[np.bool_]
    blind: NDArray[np.bool_]
    full_epochs: float
    left_out: int = 0

    def __len__(self) -> int:
        return len(self.scores)

    def rows(self, mask: NDArray[Any]) -> Samples:
        """The rows a mask or an index selects."""
        columns = ("units", "epochs", "scores", "trial", "point", "last", "diverged", "blind")
        return replace(self, **{name: getattr(self, name)[mask] for name in columns})

    @property
    def trials(self) -> int:
        """How many trials the rows come from."""
        return int(self.last.sum())


def gather(table: TrialTable, loss: str, *, max_rows: int = 500) -> Samples:
    """The rows of one loss; failed trials say nothing about the knobs and are left out.

    Beyond `max_rows` rows the early epochs go first, then trials that the sampler chose, which
    crowd where it had been before: evenly by their order.
    """
    space = table.spaces[loss]
    knobs, distributions = tuple(space.distributions), tuple(space.distributions.values())
    full = full_epochs(table, loss)
    trials = searching(table, loss)
    diverged = (trials["state"] == "diverged").to_numpy(dtype=bool)
    usable = diverged | trials["score"].notna().to_numpy(dtype=bool)
    trials, diverged = trials[usable], diverged[usable]
    last = pd.DataFrame(
        {
            "trial": trials["trial"].to_numpy(),
            "epoch": np.where(diverged, full, trials["epochs"].clip(lower=1)).astype(float),
            "score": np.where(diverged, np.nan, trials["score"].to_numpy(dtype=float)),
            "diverged": diverged,
            "last": True,
        }
    )
    rows = last
    if len(last) < max_rows:
        early = _early_rows(table, trials[~diverged], max_rows - len(last))
        rows = pd.concat([last, early], ignore_index=True) if len(early) else last
    elif len(last) > max_rows:
        rows = last.iloc[_spread((trials["origin"] == "bayes").to_numpy(dtype=bool), max_rows)]
    worst = float(rows["score"].min()) if rows["score"].notna().any() else 0.0
    by_trial = trials.set_index("trial")
    of_row = by_trial.loc[rows["trial"]]
    return Samples(
        loss=loss,
        knobs=knobs,
        distributions=distributions,
        units=positions(of_row, knobs, distributions),
        epochs=rows["epoch"].to_numpy(dtype=np.float64),
        scores=rows["score"].fillna(worst).to_numpy(dtype=np.float64),
        trial=pd.factorize(rows["trial"])[0].astype(np.int64),
        point=pd.factorize(of_row["point"])[0].astype(np.int64),
        last=rows["last"].to_numpy(dtype=bool),
        diverged=rows["diverged"].to_numpy(dtype=bool),
        blind=(of_row["origin"] == "sobol").to_numpy(dtype=bool),
        full_epochs=full,
        left_out=len(last) - int(rows["last"].sum()),
    )


def _spread(chosen: NDArray[np.bool_], size: int) -> NDArray[np.int64]:
    """`size` rows in order: all that no sampler chose, if they fit, and some of the others."""
    free, rest = np.flatnonzero(~chosen), np.flatnonzero(chosen)
    if len(free) > size:
        free, rest = free[np.linspace(0, len(free) - 1, size).astype(int)], rest[:0]
    more = np.linspace(0, len(rest) - 1, size - len(free)).astype(int) if len(rest) else rest
    return np.sort(np.concatenate([free, rest[more]])).astype(np.int64)


def full_epochs(table: TrialTable, loss: str) -> float:
    """Epochs of a full trial of a loss: its longest finished one, else what the protocol says."""
    trials = table.of(loss)
    finished = trials.loc[trials["state"] == "finished", "epochs"]
    if len(finished):
        return float(max(finished.max(), 1.0))
    stated = table.protocol.get("epochs")
    longest = trials["epochs"].max() if len(trials) else 1.0
    return float(stated if stated else max(longest, 1.0))


def searching(table: TrialTable, loss: str) -> pd.DataFrame:
    """The loss's trials on validation classes: everything but confirmations."""
    trials = table.of(loss)
    return trials[(trials["split"] != "test") & (trials["origin"] != "confirm")]


def positions(
    frame: pd.DataFrame, knobs: Sequence[str], distributions: Sequence[BaseDistribution]
) -> Array:
    """Knob columns of a frame as positions in the unit cube, clipped to it."""
    columns = [
        np.clip(to_unit(d, _plain(d, frame[KNOB + name])), 0.0, 1.0)
        for name, d in zip(knobs, distributions, strict=True)
    ]
    return np.stack(columns, axis=1) if columns else np.zeros((len(frame), 0))


def point_position(
    values: Mapping[str, Any], knobs: Sequence[str], distributions: Sequence[BaseDistribution]
) -> Array:
    """One point as a row of the unit cube."""
    frame = pd.DataFrame({KNOB + k: pd.Series([values[k]], dtype=object) for k in knobs})
    return np.asarray(positions(frame, knobs, distributions)[0])


def published_values(table: TrialTable, loss: str) -> dict[str, Any] | None:
    """The first published point of a loss that lies in the searched ranges, or None."""
    space = table.spaces[loss]
    for point in space.published:
        if all(in_range(d, point.values[k]) for k, d in space.distributions.items()):
            return dict(point.values)
    return None


def snap(distributions: Sequence[BaseDistribution], units: Array) -> Array:
    """Positions moved to values a trial could really have: choices, integers, steps."""
    out = np.array(units, dtype=np.float64)
    for j, distribution in enumerate(distributions):
        levels = unit_levels(distribution)
        if levels is not None:
            nearest = np.abs(out[:, j, None] - levels[None, :]).argmin(axis=1)
            out[:, j] = levels[nearest]
    return out


def unit_levels(distribution: BaseDistribution, *, most: int = 64) -> Array | None:
    """Positions of a knob with few values; None for a continuous one (or more than `most`)."""
    if isinstance(distribution, CategoricalDistribution):
        return (np.arange(len(distribution.choices)) + 0.5) / len(distribution.choices)
    if isinstance(distribution, IntDistribution | FloatDistribution) and distribution.step:
        count = round((distribution.high - distribution.low) / distribution.step) + 1
        if count <= most:
            values = distribution.low + np.arange(count) * distribution.step
            return np.clip(to_unit(distribution, values), 0.0, 1.0)
    return None


def _plain(distribution: BaseDistribution, column: pd.Series) -> list[Any]:
    """A choice column may come back from a store as floats, or as text."""
    if not isinstance(distribution, CategoricalDistribution):
        return list(pd.to_numeric(column).astype(float))
    choices = list(distribution.choices)
    texts = {str(c): c for c in choices}
    return [v if v in choices else texts.get(str(v), choices[0]) for v in column]


def _early_rows(table: TrialTable, trials: pd.DataFrame, room: int) -> pd.DataFrame:
    """Scores of longer trials at the (up to three most frequent) epochs where others ended."""
    none = pd.DataFrame()
    stopped = trials.loc[trials["state"].isin(["stopped", "running"]), "epochs"]
    if stopped.empty or table.curves.empty:
        return none
    rungs = sorted(stopped.value_counts().index[:3])
    curves = table.curves[
        table.curves["trial"].isin(trials["trial"]) & table.curves["epoch"].isin(rungs)
    ]
    merged = curves.merge(trials[["trial", "epochs"]], on="trial")
    merged = merged[(merged["epoch"] < merged["epochs"]) & merged["score"].notna()]
    if merged.empty or room <= 0:
        return none
    if len(merged) > room:
        merged = merged.iloc[np.linspace(0, len(merged) - 1, room).astype(int)]
    early = merged[["trial", "epoch", "score"]].astype({"epoch": float, "score": float})
    return early.assign(diverged=False, last=False)
