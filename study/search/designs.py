"""Where is the next point?

Designs (Sobol, grid) are functions of an index, and samplers are built anew for every question
with a seed of its own: the answer depends on what is recorded and on the trial's number, never on
the process that asks. So a resumed study asks the questions an uninterrupted one would have.
"""

from __future__ import annotations

import inspect
import itertools
import math
import warnings
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import optuna
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)
from optuna.samplers import BaseSampler, CmaEsSampler, RandomSampler, TPESampler

from search_spaces.scale import from_unit
from search_spaces.space import Space, Value
from study.tuning.gaussian import MOST_POINTS, GaussianSampler
from study.tuning.gaussian import settings as gaussian_settings
from trainables.seeding import derive

MOST_KNOBS = 12
"""Knobs up to which `auto` is the Gaussian process: beyond, its lengths are guesses."""
MOST_LEVELS = 10_000
"""Levels of a knob on a grid, at most."""
MOST_SHUFFLED = 2**22
"""Cells of a grid up to which all are put in order."""


def sobol_point(space: Space, index: int, *, seed: int) -> dict[str, Value]:
    """Point `index` of the space's scrambled Sobol sequence."""
    names = list(space.distributions)
    unit = _sobol_block(len(names), derive(seed, "sobol", space.loss), _block(index))[index]
    return {n: from_unit(space.distributions[n], u) for n, u in zip(names, unit, strict=True)}


def grid_points(space: Space, totals: Sequence[int], *, seed: int) -> list[dict[str, Value]]:
    """The points of a grid, in a shuffled order, that is refined wherever it becomes too small.

    Knobs get levels one at a time, the one with the fewest first, until the cells that were not
    used yet are enough; so no point comes twice while there are others. The order is shuffled so
    that a grid that is cut short is still spread out.

    Args:
        space: Whose knobs span the grid.
        totals: Points up to the end of each stage: a later stage changes nothing in earlier ones.
        seed: Of the order.
    """
    distributions = space.distributions
    levels = {name: min(2, _most_levels(d)) for name, d in distributions.items()}
    rng = np.random.default_rng(derive(seed, "grid", space.loss))
    chosen: list[dict[str, Value]] = []
    used: set[tuple[Value, ...]] = set()
    for total in totals:
        while True:
            axes = [_levels(d, levels[name]) for name, d in distributions.items()]
            taken = [cell for cell in used if all(v in a for v, a in zip(cell, axes, strict=True))]
            growing = [n for n, d in distributions.items() if levels[n] < _most_levels(d)]
            if math.prod(map(len, axes)) - len(taken) >= total - len(chosen) or not growing:
                break
            levels[min(growing, key=lambda name: levels[name])] += 1
        order = _order(math.prod(map(len, axes)), total - len(chosen) + len(used), rng)
        unused = (c for i in order if (c := _cell(axes, int(i))) not in used)
        repeated = (_cell(axes, int(i)) for i in itertools.cycle(order))
        for cell in itertools.chain(unused, repeated):
            if len(chosen) >= total:
                break
            used.add(cell)
            chosen.append(dict(zip(distributions, cell, strict=True)))
    return chosen


def _order(
    cells: int, wanted: int, rng: np.random.Generator
) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Numbers of cells, shuffled: all of them, or of very many at least as many as are wanted."""
    if cells <= MOST_SHUFFLED:
        return rng.permutation(cells)
    return rng.choice(cells, size=wanted, replace=False)


def _cell(axes: Sequence[Sequence[Value]], number: int) -> tuple[Value, ...]:
    """A cell of the grid by its number; the last axis moves first."""
    values = []
    for axis in reversed(axes):
        number, place = divmod(number, len(axis))
        values.append(axis[place])
    return tuple(reversed(values))


_SETTINGS: Mapping[str, Mapping[str, Any]] = {
    "tpe": {"multivariate": True, "constant_liar": True},
    "gp": {},
    "cmaes": {},
    "random": {},
}
_SAMPLERS: Mapping[str, type[BaseSampler]] = {
    "tpe": TPESampler,
    "gp": GaussianSampler,
    "cmaes": CmaEsSampler,
    "random": RandomSampler,
}


def sampler_name(name: str, space: Space, points: int) -> str:
    """The sampler that a study file's word means for a space and a number of points."""
    if name != "auto":
        return name
    return "gp" if len(space.distributions) <= MOST_KNOBS and points <= MOST_POINTS else "tpe"


def make_sampler(name: str, *, seed: int, startup: int) -> BaseSampler:
    """A sampler by the study file's name: Optuna's, and a Gaussian process of our own.

    Args:
        startup: Points drawn at random before its model is used.
    """
    if name not in _SAMPLERS:
        raise ValueError(f"`sampler` is one of {', '.join(_SAMPLERS)}, but got {name!r}.")
    settings = dict(_SETTINGS[name])
    if name != "random":
        settings["n_startup_trials"] = startup
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        return _SAMPLERS[name](seed=seed, **settings)  # type: ignore[call-arg]


def drawn_at_random(name: str, space: Space) -> list[str]:
    """Knobs that a sampler has no model of, so that it draws them at random: choices of CMA-ES."""
    if name != "cmaes":
        return []
    knobs = space.distributions.items()
    return [knob for knob, d in knobs if isinstance(d, CategoricalDistribution)]


def _cmaes_settings(space: Space) -> dict[str, Any]:
    """What CMA-ES makes of the settings that are left to it: it sees every range as 0 to 1."""
    at_random = drawn_at_random("cmaes", space)
    knobs = len(space.distributions) - len(at_random)
    used = {"sigma0": 1 / 6, "popsize": 4 + math.floor(3 * math.log(knobs))} if knobs else {}
    return {**used, "drawn_at_random": at_random}


def sampler_record(name: str, *, startup: int, space: Space) -> dict[str, Any]:
    """The sampler with every setting, defaults included, for the study's record.

    The seed is not among them: each question has its own, derived from the study's.
    """
    record: dict[str, Any] = {"name": name, "optuna": optuna.__version__}
    if name not in _SAMPLERS:  # designs of our own: Sobol and grid
        return record
    signature = inspect.signature(_SAMPLERS[name])
    defaults = {k: p.default for k, p in signature.parameters.items() if k != "seed"}
    settings = {**defaults, **_SETTINGS[name]}
    if "n_startup_trials" in settings:
        settings["n_startup_trials"] = startup
    plain = bool | int | float | str | None
    shown = {k: v if isinstance(v, plain) else _name(v) for k, v in settings.items()}
    if name == "gp":
        shown |= gaussian_settings()
    if name == "cmaes":
        shown |= _cmaes_settings(space)
    return {**record, **shown}


def _name(value: Any) -> str:
    return str(getattr(value, "__name__", value))


def _levels(distribution: BaseDistribution, levels: int) -> list[Value]:
    """Values at the middles of equal cells of the sampling scale, without repetition."""
    if isinstance(distribution, CategoricalDistribution):
        return list(distribution.choices)  # type: ignore[arg-type]
    values = [from_unit(distribution, (i + 0.5) / levels) for i in range(levels)]
    return list(dict.fromkeys(values))


def _most_levels(distribution: BaseDistribution) -> int:
    """How many levels a knob may grow to; a choice has all its values from the start."""
    if isinstance(distribution, CategoricalDistribution):
        return 1
    assert isinstance(distribution, FloatDistribution | IntDistribution)
    if distribution.high == distribution.low:
        return 1
    if distribution.step is None:
        return MOST_LEVELS
    steps = round((distribution.high - distribution.low) / distribution.step, 6)
    return min(math.floor(steps) + 1, MOST_LEVELS)


def _block(index: int) -> int:
    """Length of the Sobol prefix that holds `index`: a power of two, as balance wants."""
    return 1 << max(6, (index + 1).bit_length())


@lru_cache(maxsize=64)
def _sobol_block(dimensions: int, seed: int, length: int) -> np.ndarray[Any, np.dtype[np.float64]]:
    from scipy.stats import qmc

    engine = qmc.Sobol(dimensions, scramble=True, rng=np.random.default_rng(seed))
    return np.asarray(engine.random(length))
