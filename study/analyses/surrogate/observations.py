"""Observations: the rows of a trial table that a surrogate is fitted to, in the unit cube."""

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

from search_spaces.unit_scale import to_unit
from study.trials.selection import get_full_epochs, select_validation_trials
from study.trials.table import PARAM_PREFIX, TrialTable

FloatArray = NDArray[np.float64]


@dataclass(frozen=True)
class LossObservations:
    """Scores of one loss, with hyperparameters in the unit cube of their sampling scale.

    Each trial contributes its last epoch. Where other trials were stopped early, it also
    contributes its score at those epochs: without them, a model cannot tell a trial that was
    stopped early from one that is bad.

    Args:
        loss: Registry name.
        params: Searched hyperparameters, one column of `units` each.
        distributions: Their ranges and scales.
        units: Positions, rows x hyperparameters.
        epochs: Epoch of each row.
        scores: Objective at that epoch; a diverged trial has the worst score observed.
        trial: Trial code, equal for all rows of a trial.
        point: Point code, equal for trials that differ only in their seed.
        last: Whether the row is the last one of its trial.
        diverged: Whether the row stands for a trial that diverged.
        blind: Whether the point was chosen without looking at results (a Sobol point).
        full_epochs: Epochs of a full-length trial; models are evaluated there.
        n_excluded_trials: Number of trials left out because of the row limit.
    """

    loss: str
    params: tuple[str, ...]
    distributions: tuple[BaseDistribution, ...]
    units: FloatArray
    epochs: FloatArray
    scores: FloatArray
    trial: NDArray[np.int64]
    point: NDArray[np.int64]
    last: NDArray[np.bool_]
    diverged: NDArray[np.bool_]
    blind: NDArray[np.bool_]
    full_epochs: float
    n_excluded_trials: int = 0

    def __len__(self) -> int:
        return len(self.scores)

    def select_rows(self, mask: NDArray[Any]) -> LossObservations:
        """Return the rows selected by a mask or an index array."""
        columns = ("units", "epochs", "scores", "trial", "point", "last", "diverged", "blind")
        return replace(self, **{name: getattr(self, name)[mask] for name in columns})

    @property
    def n_trials(self) -> int:
        """Number of trials that the rows come from."""
        return int(self.last.sum())


def collect_observations(table: TrialTable, loss: str, *, max_rows: int = 500) -> LossObservations:
    """Collect the rows of one loss; failed trials carry no information and are left out.

    If there are more than `max_rows` rows, early epochs are dropped first, then trials chosen by
    the sampler, evenly spaced in their order, because the sampler clusters its trials.
    """
    space = table.spaces[loss]
    params, distributions = tuple(space.distributions), tuple(space.distributions.values())
    full = get_full_epochs(table, loss)
    trials = select_validation_trials(table, loss)
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
        early = _select_early_rows(table, trials[~diverged], max_rows - len(last))
        rows = pd.concat([last, early], ignore_index=True) if len(early) else last
    elif len(last) > max_rows:
        rows = last.iloc[
            _select_evenly((trials["origin"] == "bayes").to_numpy(dtype=bool), max_rows)
        ]
    worst = float(rows["score"].min()) if rows["score"].notna().any() else 0.0
    by_trial = trials.set_index("trial")
    of_row = by_trial.loc[rows["trial"]]
    return LossObservations(
        loss=loss,
        params=params,
        distributions=distributions,
        units=frame_to_unit_cube(of_row, params, distributions),
        epochs=rows["epoch"].to_numpy(dtype=np.float64),
        scores=rows["score"].fillna(worst).to_numpy(dtype=np.float64),
        trial=pd.factorize(rows["trial"])[0].astype(np.int64),
        point=pd.factorize(of_row["point"])[0].astype(np.int64),
        last=rows["last"].to_numpy(dtype=bool),
        diverged=rows["diverged"].to_numpy(dtype=bool),
        blind=(of_row["origin"] == "sobol").to_numpy(dtype=bool),
        full_epochs=full,
        n_excluded_trials=len(last) - int(rows["last"].sum()),
    )


def _select_evenly(chosen: NDArray[np.bool_], size: int) -> NDArray[np.int64]:
    """Return `size` sorted row indices; rows chosen by the sampler are dropped first."""
    free, rest = np.flatnonzero(~chosen), np.flatnonzero(chosen)
    if len(free) > size:
        free, rest = free[np.linspace(0, len(free) - 1, size).astype(int)], rest[:0]
    more = np.linspace(0, len(rest) - 1, size - len(free)).astype(int) if len(rest) else rest
    return np.sort(np.concatenate([free, rest[more]])).astype(np.int64)


def frame_to_unit_cube(
    frame: pd.DataFrame, params: Sequence[str], distributions: Sequence[BaseDistribution]
) -> FloatArray:
    """Convert the hyperparameter columns of a frame to unit-cube positions, clipped to the cube."""
    columns = [
        np.clip(to_unit(d, _parse_param_column(d, frame[PARAM_PREFIX + name])), 0.0, 1.0)
        for name, d in zip(params, distributions, strict=True)
    ]
    return np.stack(columns, axis=1) if columns else np.zeros((len(frame), 0))


def point_to_unit_cube(
    values: Mapping[str, Any], params: Sequence[str], distributions: Sequence[BaseDistribution]
) -> FloatArray:
    """Convert one point to a row of the unit cube."""
    frame = pd.DataFrame({PARAM_PREFIX + k: pd.Series([values[k]], dtype=object) for k in params})
    return np.asarray(frame_to_unit_cube(frame, params, distributions)[0])


def snap_to_levels(distributions: Sequence[BaseDistribution], units: FloatArray) -> FloatArray:
    """Move positions to values that a trial can have: choices, integers and steps."""
    out = np.array(units, dtype=np.float64)
    for j, distribution in enumerate(distributions):
        levels = get_unit_levels(distribution)
        if levels is not None:
            nearest = np.abs(out[:, j, None] - levels[None, :]).argmin(axis=1)
            out[:, j] = levels[nearest]
    return out


def get_unit_levels(distribution: BaseDistribution, *, max_levels: int = 64) -> FloatArray | None:
    """Return the positions of a discrete hyperparameter.

    Returns None for a continuous one and for one with more than `max_levels` values.
    """
    if isinstance(distribution, CategoricalDistribution):
        return (np.arange(len(distribution.choices)) + 0.5) / len(distribution.choices)
    if isinstance(distribution, IntDistribution | FloatDistribution) and distribution.step:
        count = round((distribution.high - distribution.low) / distribution.step) + 1
        if count <= max_levels:
            values = distribution.low + np.arange(count) * distribution.step
            return np.clip(to_unit(distribution, values), 0.0, 1.0)
    return None


def _parse_param_column(distribution: BaseDistribution, column: pd.Series) -> list[Any]:
    """Return the column with the types of the distribution; storages may return choices as text."""
    if not isinstance(distribution, CategoricalDistribution):
        return list(pd.to_numeric(column).astype(float))
    choices = list(distribution.choices)
    texts = {str(c): c for c in choices}
    return [v if v in choices else texts.get(str(v), choices[0]) for v in column]


def _select_early_rows(table: TrialTable, trials: pd.DataFrame, max_rows: int) -> pd.DataFrame:
    """Return scores of longer trials at the (at most three) epochs where most others ended."""
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
    if merged.empty or max_rows <= 0:
        return none
    if len(merged) > max_rows:
        merged = merged.iloc[np.linspace(0, len(merged) - 1, max_rows).astype(int)]
    early = merged[["trial", "epoch", "score"]].astype({"epoch": float, "score": float})
    return early.assign(diverged=False, last=False)
