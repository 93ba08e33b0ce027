"""Samplers by name, and their descriptions for the study record."""

from __future__ import annotations

import optuna
import pytest
from optuna._transform import _SearchSpaceTransform
from optuna.samplers import CmaEsSampler

from search_spaces.space import Choice, Float, Hyperparameter, Int, SearchSpace
from study.search.optuna_samplers import (
    MAX_GP_PARAMS,
    describe_sampler,
    make_sampler,
    resolve_sampler_name,
    unmodelled_params,
)
from tests.support.sampler_contract import SamplerContract

SPACE = SearchSpace(
    loss="x",
    paper="",
    scientific={
        "a": Hyperparameter(Float(1e-4, 1.0, log=True), "a", ""),
        "b": Hyperparameter(Float(0.0, 1.0), "b", ""),
        "c": Hyperparameter(Int(1, 4), "c", ""),
        "d": Hyperparameter(Choice(["x", "y"]), "d", ""),
    },
)


def test_the_description_of_cma_es_matches_its_optimizer() -> None:
    """Compared with the optimizer that Optuna sets up for the modelled hyperparameters."""
    description = describe_sampler("cmaes", n_startup_trials=4, space=SPACE)
    assert description["drawn_at_random"] == ["d"]
    modelled = {k: d for k, d in SPACE.distributions.items() if k != "d"}
    sampler = make_sampler("cmaes", seed=0, n_startup_trials=4)
    assert isinstance(sampler, CmaEsSampler)
    transform = _SearchSpaceTransform(modelled, transform_step=True, transform_0_1=True)
    used = sampler._init_optimizer(transform, optuna.study.StudyDirection.MAXIMIZE)
    assert description["popsize"] == used.population_size
    assert description["sigma0"] == pytest.approx(used._sigma)
    choice = SearchSpace(loss="x", paper="", scientific={"d": SPACE.scientific["d"]})
    assert describe_sampler("cmaes", n_startup_trials=4, space=choice)["drawn_at_random"] == ["d"]
    assert unmodelled_params("tpe", SPACE) == []


def test_samplers_by_name() -> None:
    for name in ("tpe", "gp", "cmaes", "random"):
        assert make_sampler(name, seed=0, n_startup_trials=4) is not None
    with pytest.raises(ValueError, match="tpe, gp, cmaes, random"):
        make_sampler("bayes", seed=0, n_startup_trials=4)


def test_auto_is_the_gaussian_process_for_small_searches() -> None:
    many = SearchSpace(
        loss="x",
        paper="",
        scientific={
            f"k{i}": Hyperparameter(Float(0.0, 1.0), "k", "") for i in range(MAX_GP_PARAMS + 1)
        },
    )
    assert resolve_sampler_name("auto", SPACE, 60) == "gp"
    assert (
        resolve_sampler_name("auto", SPACE, 5000) == resolve_sampler_name("auto", many, 60) == "tpe"
    )
    assert resolve_sampler_name("cmaes", SPACE, 60) == "cmaes"


class TestTpe(SamplerContract):
    name = "tpe"


class TestGaussianProcess(SamplerContract):
    name = "gp"


class TestCmaEs(SamplerContract):
    name = "cmaes"


class TestRandom(SamplerContract):
    name = "random"
