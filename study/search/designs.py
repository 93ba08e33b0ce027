"""Space-filling designs: scrambled Sobol points and refinable grids.

A design is a function of an index and a seed. A point therefore depends on its index alone, never
on the process that computes it, and a resumed study continues with the points that an uninterrupted
one would have used.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)

from search_spaces.space import ParamValue, SearchSpace
from search_spaces.unit_scale import from_unit
from trainables.utils.seeding import derive_seed

MAX_GRID_LEVELS = 10_000
"""Largest number of levels of a hyperparameter on a grid."""
MAX_SHUFFLED_CELLS = 2**22
"""Grids up to this number of cells are shuffled completely; larger ones are sampled."""


def sobol_point(space: SearchSpace, index: int, *, seed: int) -> dict[str, ParamValue]:
    """Return point `index` of the space's scrambled Sobol sequence."""
    names = list(space.distributions)
    unit = _sobol_prefix(
        len(names), derive_seed(seed, "sobol", space.loss), _sobol_prefix_length(index)
    )[index]
    return {n: from_unit(space.distributions[n], u) for n, u in zip(names, unit, strict=True)}


def grid_points(
    space: SearchSpace, totals: Sequence[int], *, seed: int
) -> list[dict[str, ParamValue]]:
    """Return the points of a grid in shuffled order, refining the grid when it is too small.

    Hyperparameters gain one level at a time, the one with the fewest levels first, until there are
    enough unused cells; no point is repeated while unused ones remain. The order is shuffled so
    that an interrupted grid still covers the space.

    Args:
        space: Space whose hyperparameters span the grid.
        totals: Total number of points at the end of each stage. A later stage does not change the
            points of earlier ones.
        seed: Seed of the order.
    """
    distributions = space.distributions
    levels = {name: min(2, _max_levels(d)) for name, d in distributions.items()}
    rng = np.random.default_rng(derive_seed(seed, "grid", space.loss))
    chosen: list[dict[str, ParamValue]] = []
    used: set[tuple[ParamValue, ...]] = set()
    for total in totals:
        while True:
            axes = [_level_values(d, levels[name]) for name, d in distributions.items()]
            taken = [cell for cell in used if all(v in a for v, a in zip(cell, axes, strict=True))]
            growing = [n for n, d in distributions.items() if levels[n] < _max_levels(d)]
            if math.prod(map(len, axes)) - len(taken) >= total - len(chosen) or not growing:
                break
            levels[min(growing, key=lambda name: levels[name])] += 1
        order = _shuffle_cells(math.prod(map(len, axes)), total - len(chosen) + len(used), rng)
        unused = (c for i in order if (c := _cell_values(axes, int(i))) not in used)
        repeated = (_cell_values(axes, int(i)) for i in itertools.cycle(order))
        for cell in itertools.chain(unused, repeated):
            if len(chosen) >= total:
                break
            used.add(cell)
            chosen.append(dict(zip(distributions, cell, strict=True)))
    return chosen


def _shuffle_cells(
    n_cells: int, n_wanted: int, rng: np.random.Generator
) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Return shuffled cell numbers: all of them, or `n_wanted` of a very large grid."""
    if n_cells <= MAX_SHUFFLED_CELLS:
        return rng.permutation(n_cells)
    return rng.choice(n_cells, size=n_wanted, replace=False)


def _cell_values(axes: Sequence[Sequence[ParamValue]], number: int) -> tuple[ParamValue, ...]:
    """Return the values of a grid cell by its number; the last axis varies fastest."""
    values = []
    for axis in reversed(axes):
        number, position = divmod(number, len(axis))
        values.append(axis[position])
    return tuple(reversed(values))


def _level_values(distribution: BaseDistribution, levels: int) -> list[ParamValue]:
    """Return the centres of equal cells on the sampling scale, without duplicates."""
    if isinstance(distribution, CategoricalDistribution):
        return list(distribution.choices)  # type: ignore[arg-type]
    values = [from_unit(distribution, (i + 0.5) / levels) for i in range(levels)]
    return list(dict.fromkeys(values))


def _max_levels(distribution: BaseDistribution) -> int:
    """Return the largest number of levels; a choice has all its values from the start."""
    if isinstance(distribution, CategoricalDistribution):
        return 1
    assert isinstance(distribution, FloatDistribution | IntDistribution)
    if distribution.high == distribution.low:
        return 1
    if distribution.step is None:
        return MAX_GRID_LEVELS
    steps = round((distribution.high - distribution.low) / distribution.step, 6)
    return min(math.floor(steps) + 1, MAX_GRID_LEVELS)


def _sobol_prefix_length(index: int) -> int:
    """Return the length of the Sobol prefix that contains `index`: a power of two, for balance."""
    return 1 << max(6, (index + 1).bit_length())


@lru_cache(maxsize=64)
def _sobol_prefix(dimensions: int, seed: int, length: int) -> np.ndarray[Any, np.dtype[np.float64]]:
    from scipy.stats import qmc

    engine = qmc.Sobol(dimensions, scramble=True, rng=np.random.default_rng(seed))
    return np.asarray(engine.random(length))
