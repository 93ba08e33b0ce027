"""Which knobs move the score, alone and together?

Sobol shares (Saltelli et al. 2010) of the surrogate's variance, uniform on the sampling scale.
They are computed for every draw, so their bands hold what the trials leave open about the
response; they describe the searched ranges and change with them.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations

import numpy as np
import pandas as pd
from scipy.stats import qmc

from study.analyses.samples import Array
from study.analyses.surrogate import Surrogate


@dataclass(frozen=True)
class Shares:
    """Sobol shares of every draw: draws x knobs, and draws x pairs."""

    first: Array
    total: Array
    pairs: Array


def shares(
    surrogate: Surrogate, *, n: int = 2048, seed: int = 0, floor: float | None = None
) -> Shares:
    """First-order, total and pair shares per draw; scores below `floor` count as `floor`.

    With a floor the question becomes which knobs matter among settings worth having, since
    otherwise a region of failures explains most of the variance.
    """
    return of_values(design_values(surrogate, n=n, seed=seed), floor=floor)


def design_values(surrogate: Surrogate, *, n: int = 2048, seed: int = 0) -> Array:
    """Draws at a Saltelli design: draws x (2 knobs + 2 matrices) x n.

    All draws share the design, so its error moves all of them together and no band shows it: `n`
    is such that it stays below half a point for responses as bent as Ishigami's.
    """
    d = len(surrogate.samples.knobs)
    base = qmc.Sobol(2 * d, seed=seed).random(n)
    a, b = base[:, :d], base[:, d:]
    designs = [a, b]
    for source, other in ((a, b), (b, a)):
        for i in range(d):
            mixed = source.copy()
            mixed[:, i] = other[:, i]
            designs.append(mixed)
    values = _eased(surrogate.draws(np.concatenate(designs)))
    return np.asarray(values.reshape(len(values), 2 * d + 2, n))


def _eased(draws: Array) -> Array:
    """Every second draw moved towards the average one, by all degrees from nothing to all.

    A draw has wiggles of the size that the trials leave open, in all directions at once, which
    feigns interactions; the average has none, which hides them. How much of the wiggling is real
    is not known, so the shares are those of functions between the two.
    """
    eased = len(draws) // 2
    if eased == 0:
        return draws
    kept = np.ones(len(draws))
    # The golden ratio spreads the degrees evenly over the models the draws come from.
    kept[1 : 2 * eased : 2] = (np.arange(eased) + 0.5) * 0.618034 % 1.0
    middle = draws.mean(axis=0)
    return np.asarray(middle + kept[:, None] * (draws - middle))


def of_values(values: Array, *, floor: float | None = None) -> Shares:
    """Shares from the values at a Saltelli design."""
    d = values.shape[1] // 2 - 1
    if floor is not None:
        values = np.maximum(values, floor)
    values = values - values[:, :2].mean(axis=(1, 2), keepdims=True)
    f_a, f_b = values[:, 0], values[:, 1]
    variance = np.maximum(values[:, :2].var(axis=(1, 2)), 1e-300)
    ab, ba = values[:, 2 : d + 2], values[:, d + 2 :]
    # Both halves of the design estimate the same share: their mean halves the noise.
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
    return Shares(first, total, pairs)


def analyse(surrogate: Surrogate, *, floor: float | None = None, seed: int = 0) -> pd.DataFrame:
    """One row per knob, most important first: `first` and `total` with 90 % bands."""
    return of_knobs(surrogate, shares(surrogate, seed=seed, floor=floor))


def analyse_pairs(
    surrogate: Surrogate, *, floor: float | None = None, seed: int = 0
) -> pd.DataFrame:
    """One row per pair of knobs, strongest interaction first: `share` with a 90 % band."""
    return of_pairs(surrogate, shares(surrogate, seed=seed, floor=floor))


def of_knobs(surrogate: Surrogate, found: Shares) -> pd.DataFrame:
    """Draws of shares as a frame of knobs."""
    frame = pd.DataFrame({"knob": list(surrogate.samples.knobs)})
    for name, values in (("first", found.first), ("total", found.total)):
        frame[name], frame[f"{name}_low"], frame[f"{name}_high"] = _summary(values)
    return frame.sort_values("total", ascending=False, ignore_index=True)


def of_pairs(surrogate: Surrogate, found: Shares) -> pd.DataFrame:
    """Draws of shares as a frame of pairs."""
    names = list(combinations(surrogate.samples.knobs, 2))
    frame = pd.DataFrame(names, columns=["knob", "other"])
    frame["share"], frame["low"], frame["high"] = _summary(found.pairs)
    return frame.sort_values("share", ascending=False, ignore_index=True)


def _summary(values: Array) -> tuple[Array, Array, Array]:
    clipped = np.clip(values, 0.0, 1.0)
    low, high = np.quantile(clipped, [0.05, 0.95], axis=0)
    return clipped.mean(axis=0), low, high
