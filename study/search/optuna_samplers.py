"""Optuna samplers by name, with their settings for the study record."""

from __future__ import annotations

import inspect
import math
import warnings
from collections.abc import Mapping
from typing import Any

import optuna
from optuna.distributions import CategoricalDistribution
from optuna.samplers import BaseSampler, CmaEsSampler, RandomSampler, TPESampler

from search_spaces.space import SearchSpace
from study.search.gp_sampler import MAX_FITTED_TRIALS, GPEISampler, describe_gp_sampler

MAX_GP_PARAMS = 12
"""With more hyperparameters `auto` is not the Gaussian process: it cannot fit that many scales."""

_SAMPLER_SETTINGS: Mapping[str, Mapping[str, Any]] = {
    "tpe": {"multivariate": True, "constant_liar": True},
    "gp": {},
    "cmaes": {},
    "random": {},
}

_SAMPLER_CLASSES: Mapping[str, type[BaseSampler]] = {
    "tpe": TPESampler,
    "gp": GPEISampler,
    "cmaes": CmaEsSampler,
    "random": RandomSampler,
}


def resolve_sampler_name(name: str, space: SearchSpace, n_points: int) -> str:
    """Return the sampler that a study file's `sampler` means for a space and number of points."""
    if name != "auto":
        return name
    is_small = len(space.distributions) <= MAX_GP_PARAMS and n_points <= MAX_FITTED_TRIALS
    return "gp" if is_small else "tpe"


def make_sampler(name: str, *, seed: int, n_startup_trials: int) -> BaseSampler:
    """Create a sampler by its name in study files.

    Args:
        name: `tpe`, `gp`, `cmaes` or `random`.
        seed: Seed of the sampler.
        n_startup_trials: Number of random points before the sampler's model is used.

    Raises:
        ValueError: If the name is unknown.
    """
    if name not in _SAMPLER_CLASSES:
        raise ValueError(
            f"`sampler` must be one of {', '.join(_SAMPLER_CLASSES)}, but got {name!r}"
        )
    settings = dict(_SAMPLER_SETTINGS[name])
    if name != "random":
        settings["n_startup_trials"] = n_startup_trials
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        return _SAMPLER_CLASSES[name](seed=seed, **settings)  # type: ignore[call-arg]


def unmodelled_params(name: str, space: SearchSpace) -> list[str]:
    """Return the hyperparameters that a sampler draws at random: choices with CMA-ES."""
    if name != "cmaes":
        return []
    params = space.distributions.items()
    return [param for param, d in params if isinstance(d, CategoricalDistribution)]


def describe_sampler(name: str, *, n_startup_trials: int, space: SearchSpace) -> dict[str, Any]:
    """Return the sampler's name and all its settings, defaults included, for the study record.

    The seed is not included: each point has its own, derived from the study's seed.
    """
    record: dict[str, Any] = {"name": name, "optuna": optuna.__version__}
    if name not in _SAMPLER_CLASSES:  # the designs of `study.search.designs`
        return record
    signature = inspect.signature(_SAMPLER_CLASSES[name])
    defaults = {k: p.default for k, p in signature.parameters.items() if k != "seed"}
    settings = {**defaults, **_SAMPLER_SETTINGS[name]}
    if "n_startup_trials" in settings:
        settings["n_startup_trials"] = n_startup_trials
    plain = bool | int | float | str | None
    description = {k: v if isinstance(v, plain) else _display_name(v) for k, v in settings.items()}
    if name == "gp":
        description |= describe_gp_sampler()
    if name == "cmaes":
        description |= _describe_cmaes_defaults(space)
    return {**record, **description}


def _describe_cmaes_defaults(space: SearchSpace) -> dict[str, Any]:
    """Return the values that CMA-ES derives by itself; it scales every range to 0..1."""
    at_random = unmodelled_params("cmaes", space)
    n_params = len(space.distributions) - len(at_random)
    derived: dict[str, Any] = {}
    if n_params:
        derived = {"sigma0": 1 / 6, "popsize": 4 + math.floor(3 * math.log(n_params))}
    return {**derived, "drawn_at_random": at_random}


def _display_name(value: Any) -> str:
    return str(getattr(value, "__name__", value))
