"""Which hyperparameters affect the score, alone and in pairs?

Sobol indices (Saltelli et al. 2010) of the surrogate, uniform on the sampling scale. They are
computed for every draw, so their bands include what the trials leave open about the response; they
describe the searched ranges and change with them.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations
from typing import NamedTuple

import numpy as np
import pandas as pd
from scipy.stats import qmc

from study.analyses.surrogate.observations import FloatArray
from study.analyses.surrogate.surrogate import SurrogateModel


@dataclass(frozen=True)
class SobolIndices:
    """Sobol indices of every draw: draws x hyperparameters, and draws x pairs."""

    first_order: FloatArray
    total: FloatArray
    pairs: FloatArray


class ImportanceTables(NamedTuple):
    """Sobol indices as frames.

    Args:
        params: One row per hyperparameter (see `tabulate_params`).
        good_params: The same among usable settings: scores below the median count as the median.
        pairs: One row per pair of hyperparameters (see `tabulate_pairs`).
    """

    params: pd.DataFrame
    good_params: pd.DataFrame
    pairs: pd.DataFrame


def analyse_importance(surrogate: SurrogateModel, *, seed: int = 0) -> ImportanceTables:
    """Return the Sobol indices of all hyperparameters and pairs, from one design."""
    values = evaluate_saltelli_design(surrogate, seed=seed)
    observations = surrogate.observations
    floor = float(np.median(observations.scores[observations.last]))
    indices = indices_from_values(values)
    return ImportanceTables(
        tabulate_params(surrogate, indices),
        tabulate_params(surrogate, indices_from_values(values, floor=floor)),
        tabulate_pairs(surrogate, indices),
    )


def evaluate_saltelli_design(
    surrogate: SurrogateModel, *, n: int = 2048, seed: int = 0
) -> FloatArray:
    """Evaluate the draws at a Saltelli design: draws x (2 hyperparameters + 2 matrices) x n.

    All draws share the design, so its error shifts all of them together and no band shows it: `n`
    keeps it below half a percentage point for responses as nonlinear as Ishigami's.
    """
    d = len(surrogate.observations.params)
    base = qmc.Sobol(2 * d, seed=seed).random(n)
    a, b = base[:, :d], base[:, d:]
    designs = [a, b]
    for source, other in ((a, b), (b, a)):
        for i in range(d):
            mixed = source.copy()
            mixed[:, i] = other[:, i]
            designs.append(mixed)
    values = _shrink_towards_mean(surrogate.draw_scores(np.concatenate(designs)))
    return np.asarray(values.reshape(len(values), 2 * d + 2, n))


def _shrink_towards_mean(draws: FloatArray) -> FloatArray:
    """Shrink every second draw towards the mean draw, by factors from nothing to everything.

    A draw has fluctuations of the size that the trials leave open, in all directions at once, which
    look like interactions; the mean draw has none, which hides interactions. How much of the
    fluctuation is real is unknown, so the indices are those of functions between the two.
    """
    n_shrunk = len(draws) // 2
    if n_shrunk == 0:
        return draws
    factors = np.ones(len(draws))
    # The golden ratio spreads the factors evenly over the models that the draws come from.
    factors[1 : 2 * n_shrunk : 2] = (np.arange(n_shrunk) + 0.5) * 0.618034 % 1.0
    mean = draws.mean(axis=0)
    return np.asarray(mean + factors[:, None] * (draws - mean))


def indices_from_values(values: FloatArray, *, floor: float | None = None) -> SobolIndices:
    """Compute the indices from the values at a Saltelli design.

    Args:
        values: Draws x designs x points (see `evaluate_saltelli_design`).
        floor: Scores below it count as `floor`. The question then becomes which hyperparameters
            matter among usable settings; otherwise a region of failures explains most of the
            variance.
    """
    d = values.shape[1] // 2 - 1
    if floor is not None:
        values = np.maximum(values, floor)
    values = values - values[:, :2].mean(axis=(1, 2), keepdims=True)
    f_a, f_b = values[:, 0], values[:, 1]
    variance = np.maximum(values[:, :2].var(axis=(1, 2)), 1e-300)
    ab, ba = values[:, 2 : d + 2], values[:, d + 2 :]
    # Both halves of the design estimate the same index: their mean has half the variance.
    first = 0.5 * ((f_b[:, None] * (ab - f_a[:, None])).mean(-1))
    first += 0.5 * ((f_a[:, None] * (ba - f_b[:, None])).mean(-1))
    total = 0.25 * ((f_a[:, None] - ab) ** 2).mean(-1) + 0.25 * ((f_b[:, None] - ba) ** 2).mean(-1)
    first, total = first / variance[:, None], total / variance[:, None]
    level = (f_a * f_b).mean(-1) / variance
    joint = []
    for i, j in combinations(range(d), 2):
        closed = (0.5 * (ba[:, i] * ab[:, j] + ba[:, j] * ab[:, i])).mean(-1) / variance
        joint.append(closed - level - first[:, i] - first[:, j])
    pairs = np.stack(joint, axis=1) if joint else np.zeros((len(values), 0))
    return SobolIndices(first, total, pairs)


def tabulate_params(surrogate: SurrogateModel, indices: SobolIndices) -> pd.DataFrame:
    """Tabulate the indices of each hyperparameter, most important first.

    Returns:
        `knob`, `first`, `first_low`, `first_high`, `total`, `total_low`, `total_high` (90 % bands).
    """
    frame = pd.DataFrame({"knob": list(surrogate.observations.params)})
    for name, values in (("first", indices.first_order), ("total", indices.total)):
        frame[name], frame[f"{name}_low"], frame[f"{name}_high"] = _summarise_draws(values)
    return frame.sort_values("total", ascending=False, ignore_index=True)


def tabulate_pairs(surrogate: SurrogateModel, indices: SobolIndices) -> pd.DataFrame:
    """Tabulate the interaction of each pair of hyperparameters, strongest first.

    Returns:
        `knob`, `other`, `share`, `low`, `high` (90 % band).
    """
    names = list(combinations(surrogate.observations.params, 2))
    frame = pd.DataFrame(names, columns=["knob", "other"])
    frame["share"], frame["low"], frame["high"] = _summarise_draws(indices.pairs)
    return frame.sort_values("share", ascending=False, ignore_index=True)


def _summarise_draws(values: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
    clipped = np.clip(values, 0.0, 1.0)
    low, high = np.quantile(clipped, [0.05, 0.95], axis=0)
    return clipped.mean(axis=0), low, high
