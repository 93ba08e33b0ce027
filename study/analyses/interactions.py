"""How do two knobs act together, where anybody looked?"""

from __future__ import annotations

import numpy as np
import pandas as pd

from search_spaces.scale import from_unit
from study.analyses.response import background
from study.analyses.samples import Array, Samples, unit_levels
from study.analyses.surrogate import Surrogate

NAMED: tuple[tuple[str, str], ...] = (
    ("alpha", "delta"),
    ("gamma", "m"),
    ("temperature", "proxy_lr"),
    ("synthesis_alpha", "synthesis_mu"),
)
"""Pairs the papers discuss; shown whenever both knobs are searched."""

NOTABLE = 0.02
"""A pair is singled out when the lower end of its interaction share is above this."""


def choose(
    surrogate: Surrogate, interactions: pd.DataFrame | None, *, most: int = 4
) -> list[tuple[str, str]]:
    """The papers' pairs first, then the strongest interactions."""
    knobs = set(surrogate.samples.knobs)
    chosen = [pair for pair in NAMED if set(pair) <= knobs]
    if interactions is not None:
        strong = interactions[interactions["low"] > NOTABLE]
        for pair in zip(strong["knob"], strong["other"], strict=True):
            if pair not in chosen and pair[::-1] not in chosen:
                chosen.append(pair)
    return chosen[:most]


def analyse(surrogate: Surrogate, pair: tuple[str, str], *, size: int = 15) -> pd.DataFrame:
    """The surface over two knobs with the others good, one row per cell.

    Returns:
        `knob`, `other`, `unit`, `other_unit`, `value`, `other_value`, `mean`, `low`, `high`
        (90 %), and `supported`: whether trials lie nearby. What is not supported is a guess.
    """
    samples = surrogate.samples
    i, j = (samples.knobs.index(k) for k in pair)
    grids = [_grid(samples, k, size) for k in (i, j)]
    others = background(surrogate, "good")[::2]
    first, second = np.meshgrid(*grids, indexing="ij")
    cells = np.stack([first.ravel(), second.ravel()], axis=1)
    units = np.repeat(others[None], len(cells), axis=0)
    units[:, :, i], units[:, :, j] = cells[:, :1], cells[:, 1:]
    draws = surrogate.draws(units.reshape(-1, others.shape[1]))
    draws = draws.reshape(len(draws), len(cells), len(others)).mean(axis=-1)
    low, high = np.quantile(draws, [0.05, 0.95], axis=0)
    a, b = samples.distributions[i], samples.distributions[j]
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
            "supported": near_trials(samples, (i, j), cells),
        }
    )


def near_trials(samples: Samples, columns: tuple[int, int], cells: Array) -> np.ndarray:
    """Whether a trial lies within 0.1 of the cell, or three within 0.17, on the sampling scale."""
    places = samples.units[samples.last][:, list(columns)]
    gap = np.abs(cells[:, None, :] - places[None, :, :]).max(axis=-1)
    return np.asarray((gap <= 0.1).any(axis=1) | ((gap <= 0.17).sum(axis=1) >= 3))


def _grid(samples: Samples, column: int, size: int) -> Array:
    levels = unit_levels(samples.distributions[column], most=size)
    return np.linspace(0.0, 1.0, size) if levels is None else levels
