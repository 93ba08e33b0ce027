"""Where does training diverge?

Diverged trials have no score, but they are data: dropping them would hide the region where training
fails, and an invented score would distort the model of the others. The probability of divergence is
therefore modelled separately, by forests on bootstraps of the trials.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
from optuna.distributions import CategoricalDistribution
from scipy.stats import beta

from search_spaces.unit_scale import from_unit
from study.analyses.surrogate.divergence_model import DivergenceModel
from study.analyses.surrogate.observations import (
    LossObservations,
    frame_to_unit_cube,
    snap_to_levels,
)
from study.trials.selection import select_validation_trials
from study.trials.table import PARAM_PREFIX, TrialTable

DIVERGENCE_COLUMNS = (
    "knob",
    "low",
    "high",
    "trials",
    "diverged",
    "rate",
    "rate_low",
    "rate_high",
    "chance",
    "collapsed",
)


def analyse_divergence(
    observations: LossObservations,
    divergence_model: DivergenceModel | None,
    collapsed_trials: pd.DataFrame,
    *,
    cells: int = 8,
) -> pd.DataFrame:
    """Return the share of diverged trials along every hyperparameter.

    A choice is split by value, a range into equal parts.

    Args:
        observations: Rows of the loss.
        divergence_model: Model of the probability; None if there is none.
        collapsed_trials: The trials that collapsed (see `find_collapsed_trials`).
        cells: Number of equal parts of a range.

    Returns:
        `knob`, `low`, `high`, `trials`, `diverged`, `rate` and its 90 % interval (Jeffreys)
        `rate_low` and `rate_high`, `chance` (the model's probability at the middle of the part,
        averaged over the other hyperparameters of the trials), and `collapsed` (number of trials
        there that were trained to the end and score below the untrained backbone).
    """
    rows = observations.select_rows(observations.last)
    collapsed = frame_to_unit_cube(
        collapsed_trials, observations.params, observations.distributions
    )
    out: list[tuple[object, ...]] = []
    for j, (param, distribution) in enumerate(
        zip(observations.params, observations.distributions, strict=True)
    ):
        is_choice = isinstance(distribution, CategoricalDistribution)
        parts = len(distribution.choices) if is_choice else cells  # type: ignore[attr-defined]
        edges = np.linspace(0.0, 1.0, parts + 1)
        part, collapsed_part = (
            np.digitize(units[:, j], edges[1:-1]) for units in (rows.units, collapsed)
        )
        for c in range(parts):
            inside = part == c
            if not inside.any():
                continue
            middle = 0.5 * (edges[c] + edges[c + 1])
            ends = (middle, middle) if is_choice else (edges[c], edges[c + 1])
            values = [from_unit(distribution, end) for end in ends]
            chance = _predict_divergence(observations, rows, divergence_model, j, middle)
            counts = _divergence_rate(rows.diverged[inside])
            out.append((param, *values, *counts, chance, int((collapsed_part == c).sum())))
    return pd.DataFrame(out, columns=list(DIVERGENCE_COLUMNS))


def _divergence_rate(diverged: np.ndarray) -> tuple[int, int, float, float, float]:
    """Return the number of trials, the number of diverged ones, their share and its interval."""
    n, k = len(diverged), int(diverged.sum())
    low, high = beta.ppf([0.05, 0.95], k + 0.5, n - k + 0.5)
    return n, k, k / n, float(low), float(high)


def _predict_divergence(
    observations: LossObservations,
    rows: LossObservations,
    divergence_model: DivergenceModel | None,
    param: int,
    position: float,
) -> float:
    if divergence_model is None:
        return float("nan")
    units = rows.units.copy()
    units[:, param] = position
    return float(divergence_model(snap_to_levels(observations.distributions, units)).mean())


def find_riskiest_pair(
    observations: LossObservations, divergence_model: DivergenceModel
) -> tuple[str, str] | None:
    """Return the two hyperparameters that best separate diverged trials from the others."""
    if len(observations.params) < 2:
        return None
    importances = np.mean([m.feature_importances_ for m in divergence_model.models], axis=0)
    groups = divergence_model.encoding.column_groups
    by_param = [float(importances[groups == g].sum()) for g in range(len(observations.params))]
    first, second = np.argsort(by_param)[::-1][:2]
    return observations.params[int(first)], observations.params[int(second)]


def find_collapsed_trials(table: TrialTable, loss: str) -> pd.DataFrame:
    """Return the trials that were trained to the end and score below the untrained backbone.

    Such a trial did not diverge, but training destroyed the embedding: it collapsed.
    """
    trials = select_validation_trials(table, loss)
    objective = str(table.protocol.get("objective", "map_at_r"))
    untrained = table.baseline.get("validation", {}).get(objective)
    if untrained is None:
        return trials.iloc[:0]
    is_collapsed = (trials["state"] == "finished") & (trials["score"].astype(float) < untrained)
    columns = ["trial", "score", *[PARAM_PREFIX + k for k in table.searched_param_names(loss)]]
    return trials.loc[is_collapsed, columns].reset_index(drop=True)
