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
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import numpy as np
import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, IntDistribution
from optuna.samplers import BaseSampler

from search_spaces.scale import from_unit
from search_spaces.space import Space, Value
from trainables.seeding import derive


def sobol_point(space: Space, index: int, *, seed: int) -> dict[str, Value]:
    """Point `index` of the space's scrambled Sobol sequence."""
    names = list(space.distributions)
    unit = _sobol_block(len(names), derive(seed, "sobol", space.loss), _block(index))[index]
    return {n: from_unit(space.distributions[n], u) for n, u in zip(names, unit, strict=True)}


def grid_point(space: Space, index: int, *, points: int, seed: int) -> dict[str, Value]:
    """Point `index` of a grid of about `points` points, in a shuffled order.

    Every knob gets as many levels as fit; the order is shuffled so that a grid that is cut short
    is still spread out. Indices beyond the grid start again from its beginning.
    """
    distributions = space.distributions
    levels = max(2, math.floor(points ** (1.0 / len(distributions)) + 1e-9))
    axes = [_levels(d, levels) for d in distributions.values()]
    size = math.prod(len(axis) for axis in axes)
    order = np.random.default_rng(derive(seed, "grid", space.loss)).permutation(size)
    cell = next(itertools.islice(itertools.product(*axes), int(order[index % size]), None))
    return dict(zip(distributions, cell, strict=True))


_SETTINGS: Mapping[str, Mapping[str, Any]] = {
    "tpe": {"multivariate": True, "constant_liar": True},
    "gp": {"deterministic_objective": False},
    "cmaes": {},
    "random": {},
}
_SAMPLERS = {
    "tpe": "TPESampler",
    "gp": "GPSampler",
    "cmaes": "CmaEsSampler",
    "random": "RandomSampler",
}


def make_sampler(name: str, *, seed: int, startup: int) -> BaseSampler:
    """An Optuna sampler by the study file's name.

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
        sampler: BaseSampler = getattr(optuna.samplers, _SAMPLERS[name])(seed=seed, **settings)
    return sampler


def sampler_record(name: str, *, startup: int) -> dict[str, Any]:
    """The sampler with every setting, defaults included, for the study's record.

    The seed is not among them: each question has its own, derived from the study's.
    """
    record: dict[str, Any] = {"name": name, "optuna": optuna.__version__}
    if name not in _SAMPLERS:  # designs of our own: Sobol and grid
        return record
    signature = inspect.signature(getattr(optuna.samplers, _SAMPLERS[name]))
    defaults = {k: p.default for k, p in signature.parameters.items() if k != "seed"}
    settings = {**defaults, **_SETTINGS[name]}
    if "n_startup_trials" in settings:
        settings["n_startup_trials"] = startup
    plain = bool | int | float | str | None
    shown = {k: v if isinstance(v, plain) else _name(v) for k, v in settings.items()}
    return {**record, **shown}


def _name(value: Any) -> str:
    return str(getattr(value, "__name__", value))


def _levels(distribution: BaseDistribution, levels: int) -> list[Value]:
    """Values at the middles of equal cells of the sampling scale, without repetition."""
    if isinstance(distribution, CategoricalDistribution):
        return list(distribution.choices)  # type: ignore[arg-type]
    if isinstance(distribution, IntDistribution):
        levels = min(levels, (distribution.high - distribution.low) // distribution.step + 1)
    values = [from_unit(distribution, (i + 0.5) / levels) for i in range(levels)]
    return list(dict.fromkeys(values))


def _block(index: int) -> int:
    """Length of the Sobol prefix that holds `index`: a power of two, as balance wants."""
    return 1 << max(6, (index + 1).bit_length())


@lru_cache(maxsize=64)
def _sobol_block(dimensions: int, seed: int, length: int) -> np.ndarray[Any, np.dtype[np.float64]]:
    from scipy.stats import qmc

    engine = qmc.Sobol(dimensions, scramble=True, rng=np.random.default_rng(seed))
    return np.asarray(engine.random(length))
