"""What did one-at-a-time sweeps measure, in the form in which papers print them?"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from search_spaces.unit_scale import from_unit
from study.analyses.intervals import compute_mean_interval
from study.analyses.leaderboard import find_incumbent_trial
from study.analyses.response_curves import make_param_grid
from study.analyses.surrogate.observations import FloatArray, frame_to_unit_cube, point_to_unit_cube
from study.analyses.surrogate.surrogate import SurrogateModel
from study.trials.selection import get_full_epochs, get_published_params, select_validation_trials
from study.trials.table import PARAM_PREFIX, TrialTable


@dataclass(frozen=True)
class ParamSweep:
    """Trials that differ only in one hyperparameter and in their seeds.

    Args:
        param: The hyperparameter that varies.
        anchor: The point it varies around: `published` or `incumbent`. After a search was extended,
            there may be several incumbents: the newest keeps the name, the others are
            `earlier incumbent`.
        base_params: One of the points; except for `param`, its values hold for all.
        values: Values of the hyperparameter in the order of its scale.
        units: Their positions on the scale.
        scores: For each value, the scores by seed; NaN where training diverged.
    """

    param: str
    anchor: str
    base_params: Mapping[str, Any]
    values: tuple[Any, ...]
    units: FloatArray
    scores: tuple[Mapping[int, float], ...]

    @property
    def size_text(self) -> str:
        """Number of values and seeds, in words."""
        seeds = min(len(by_seed) for by_seed in self.scores)
        return f"{len(self.values)} values x {seeds} seeds from the {self.anchor} point"


def collect_sweeps(table: TrialTable, loss: str) -> list[ParamSweep]:
    """Return all sweeps of a loss, by hyperparameter and by the point they vary around.

    Search trials are not included: a point that was selected for its score has an inflated score in
    the trial it was selected by. Repeats of the point are included.
    """
    params = table.searched_param_names(loss)
    distributions = [table.spaces[loss].distributions[k] for k in params]
    trials = select_validation_trials(table, loss)
    full = (trials["epochs"] >= get_full_epochs(table, loss)) & trials["score"].notna()
    is_unselected = trials["origin"].isin(["sweep", "repeat"])
    ended = trials[is_unselected & (full | (trials["state"] == "diverged"))].reset_index(drop=True)
    positions = np.round(frame_to_unit_cube(ended, params, distributions), 9)
    is_swept = (ended["origin"] == "sweep") & ended["swept"].isin(params)
    sweeps: list[ParamSweep] = []
    for (swept, anchor), group in ended[is_swept].groupby(["swept", "anchor"], sort=True):
        column = params.index(str(swept))
        others = [tuple(row) for row in np.delete(positions, column, axis=1)]
        bases = {others[i]: i for i in group.sort_values("number").index}  # oldest first
        for age, (base, i) in enumerate(reversed(bases.items())):
            here = np.array([other == base for other in others])
            name = str(anchor) if age == 0 else f"earlier {anchor}" + (f" {age}" if age > 1 else "")
            point = {k: ended[PARAM_PREFIX + k].iloc[i] for k in params}
            units = positions[here, column]
            sweeps.append(_build_sweep(str(swept), name, point, ended[here], units))
    return sweeps


def _build_sweep(
    param: str, anchor: str, base: Mapping[str, Any], trials: pd.DataFrame, units: FloatArray
) -> ParamSweep:
    values, scores = [], []
    positions = np.unique(units)
    for position in positions:
        at = trials[units == position]
        values.append(at[PARAM_PREFIX + param].iloc[0])
        # The same seed again is not further evidence: it counts once, with its mean.
        mean = at.assign(score=at["score"].astype(float)).groupby("seed")["score"].mean()
        scores.append({int(str(seed)): float(score) for seed, score in mean.items()})
    return ParamSweep(param, anchor, base, tuple(values), positions, tuple(scores))


def analyse_sweeps(table: TrialTable, loss: str) -> pd.DataFrame:
    """Return the mean over seeds at every swept value, with a 95 % interval.

    The interval is NaN for a single seed.

    Returns:
        `swept`, `anchor`, `value`, `mean`, `low`, `high`, `seeds` (how many have a score) and
        `diverged` (how many have none).
    """
    rows = []
    for sweep in collect_sweeps(table, loss):
        for value, by_seed in zip(sweep.values, sweep.scores, strict=True):
            all_scores = np.array(list(by_seed.values()))
            scores = all_scores[np.isfinite(all_scores)]
            mean, low, high, _ = compute_mean_interval(scores)
            counts = len(scores), len(all_scores) - len(scores)
            rows.append((sweep.param, sweep.anchor, value, mean, low, high, *counts))
    names = ["swept", "anchor", "value", "mean", "low", "high", "seeds", "diverged"]
    return pd.DataFrame(rows, columns=names)


def predict_sweep(surrogate: SurrogateModel, sweep: ParamSweep) -> pd.DataFrame:
    """Return the surrogate's curve along the sweep: `value`, `mean`, `low`, `high` (90 %)."""
    observations = surrogate.observations
    base = point_to_unit_cube(sweep.base_params, observations.params, observations.distributions)
    grid = make_param_grid(surrogate, sweep.param, size=41)
    j = observations.params.index(sweep.param)
    units = np.repeat(base[None], len(grid), axis=0)
    units[:, j] = grid
    draws = surrogate.draw_scores(units)
    low, high = np.quantile(draws, [0.05, 0.95], axis=0)
    values = pd.Series([from_unit(observations.distributions[j], u) for u in grid], dtype=object)
    return pd.DataFrame({"value": values, "mean": draws.mean(axis=0), "low": low, "high": high})


def get_anchor_params(table: TrialTable, loss: str, anchor: str) -> dict[str, Any] | None:
    """Return the point that a sweep varies around: the published one, or the incumbent."""
    if anchor == "published":
        return get_published_params(table, loss)
    best = find_incumbent_trial(table, loss)
    if best is None:
        return None
    return {k: best[PARAM_PREFIX + k] for k in table.searched_param_names(loss)}
