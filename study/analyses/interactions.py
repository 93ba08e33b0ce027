"""How do two hyperparameters act together, where there are trials?"""

from __future__ import annotations

import numpy as np
import pandas as pd

from search_spaces.unit_scale import from_unit
from study.analyses.response_curves import select_background_points
from study.analyses.surrogate.observations import FloatArray, LossObservations, get_unit_levels
from study.analyses.surrogate.surrogate import SurrogateModel

DISCUSSED_PARAM_PAIRS: tuple[tuple[str, str], ...] = (
    ("alpha", "delta"),
    ("gamma", "m"),
    ("temperature", "proxy_lr"),
    ("synthesis_alpha", "synthesis_mu"),
)
"""Pairs that the papers discuss; shown if both hyperparameters are searched."""

MIN_INTERACTION_SHARE = 0.02
"""Other pairs are shown if the lower end of their interaction share is above this."""


def choose_pairs(
    surrogate: SurrogateModel, interactions: pd.DataFrame | None, *, max_pairs: int = 4
) -> list[tuple[str, str]]:
    """Return the pairs of the papers first, then the strongest interactions."""
    params = set(surrogate.observations.params)
    pairs = [pair for pair in DISCUSSED_PARAM_PAIRS if set(pair) <= params]
    if interactions is not None:
        strong = interactions[interactions["low"] > MIN_INTERACTION_SHARE]
        for pair in zip(strong["knob"], strong["other"], strict=True):
            if pair not in pairs and pair[::-1] not in pairs:
                pairs.append(pair)
    return pairs[:max_pairs]


def analyse_interaction(
    surrogate: SurrogateModel, pair: tuple[str, str], *, size: int = 15
) -> pd.DataFrame:
    """Return the response surface over two hyperparameters, one row per cell, with the others good.

    Returns:
        `knob`, `other`, `unit`, `other_unit`, `value`, `other_value`, `mean`, `low`, `high` (90 %),
        and `supported`: whether there are trials nearby. Unsupported cells are extrapolation.
    """
    observations = surrogate.observations
    i, j = (observations.params.index(k) for k in pair)
    grids = [_param_grid(observations, k, size) for k in (i, j)]
    others = select_background_points(surrogate, "good")[::2]
    first, second = np.meshgrid(*grids, indexing="ij")
    cells = np.stack([first.ravel(), second.ravel()], axis=1)
    units = np.repeat(others[None], len(cells), axis=0)
    units[:, :, i], units[:, :, j] = cells[:, :1], cells[:, 1:]
    draws = surrogate.draw_scores(units.reshape(-1, others.shape[1]))
    draws = draws.reshape(len(draws), len(cells), len(others)).mean(axis=-1)
    low, high = np.quantile(draws, [0.05, 0.95], axis=0)
    a, b = observations.distributions[i], observations.distributions[j]
    return pd.DataFrame(
        {
            "knob": pair[0],
            "other": pair[1],
            "unit": cells[:, 0],
            "other_unit": cells[:, 1],
            "value": pd.Series([from_unit(a, u) for u in cells[:, 0]], dtype=object),
            "other_value": pd.Series([from_unit(b, u) for u in cells[:, 1]], dtype=object),
            "mean": draws.mean(axis=0),
            "low": low,
            "high": high,
            "supported": has_nearby_trials_2d(observations, (i, j), cells),
        }
    )


def has_nearby_trials_2d(
    observations: LossObservations, columns: tuple[int, int], cells: FloatArray
) -> np.ndarray:
    """Whether one trial is within 0.1 of the cell, or three within 0.17, on the sampling scale."""
    positions = observations.units[observations.last][:, list(columns)]
    gap = np.abs(cells[:, None, :] - positions[None, :, :]).max(axis=-1)
    return np.asarray((gap <= 0.1).any(axis=1) | ((gap <= 0.17).sum(axis=1) >= 3))


def _param_grid(observations: LossObservations, column: int, size: int) -> FloatArray:
    levels = get_unit_levels(observations.distributions[column], max_levels=size)
    return np.linspace(0.0, 1.0, size) if levels is None else levels
