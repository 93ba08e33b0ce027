"""Designs fill the space and depend on nothing but index and seed."""

from __future__ import annotations

import itertools
import tracemalloc

import numpy as np
import optuna
import pytest
from optuna._transform import _SearchSpaceTransform
from optuna.samplers import CmaEsSampler

from search_spaces import get_space
from search_spaces.scale import to_unit
from search_spaces.space import Choice, Float, Int, Knob, Space
from study.tuning.sampling import (
    MOST_KNOBS,
    _sobol_block,
    drawn_at_random,
    grid_points,
    make_sampler,
    sampler_name,
    sampler_record,
    sobol_point,
)
from trainables.seeding import derive

SPACE = Space(
    loss="x",
    paper="",
    scientific={
        "a": Knob(Float(1e-4, 1.0, log=True), "a", ""),
        "b": Knob(Float(0.0, 1.0), "b", ""),
        "c": Knob(Int(1, 4), "c", ""),
        "d": Knob(Choice(["x", "y"]), "d", ""),
    },
)


def test_sobol_fills_every_knob_evenly_on_its_own_scale() -> None:
    points = [sobol_point(SPACE, i, seed=0) for i in range(64)]
    for name, distribution in SPACE.distributions.items():
        unit = to_unit(distribution, [p[name] for p in points])
        counts = np.histogram(unit, bins=4 if name != "d" else 2, range=(0, 1))[0]
        assert counts.max() - counts.min() <= 2, name
    for point in points:
        SPACE.check_point(point)


def test_sobol_points_do_not_depend_on_how_many_were_asked() -> None:
    late = sobol_point(SPACE, 100, seed=3)
    early = [sobol_point(SPACE, i, seed=3) for i in range(5)]
    assert early == [sobol_point(SPACE, i, seed=3) for i in range(5)]
    assert late == sobol_point(SPACE, 100, seed=3)
    # A longer prefix begins as a shorter one does: an extension goes on with the same sequence.
    assert (_sobol_block(4, 3, 64) == _sobol_block(4, 3, 1024)[:64]).all()
    assert early != [sobol_point(SPACE, i, seed=4) for i in range(5)]


@pytest.mark.parametrize("total", [1, 16, 17, 23, 54, 81, 200])
def test_a_grid_has_as_many_points_as_are_asked(total: int) -> None:
    points = grid_points(SPACE, [total], seed=0)
    assert len({tuple(p.items()) for p in points}) == len(points) == total
    for point in points:
        SPACE.check_point(point)
    if total >= 23:
        assert all(len({p[name] for p in points}) >= 2 for name in SPACE.searched)
    if total == 54:
        assert [len({p[name] for p in points}) for name in SPACE.searched] == [3, 3, 3, 2]


def test_a_grid_is_refined_without_repeating_a_point() -> None:
    first = grid_points(SPACE, [23], seed=0)
    more = grid_points(SPACE, [23, 25, 60], seed=0)
    assert more[:23] == first
    assert len({tuple(p.items()) for p in more}) == len(more) == 60


def test_a_grid_without_further_values_starts_again() -> None:
    small = Space(loss="x", paper="", scientific={"c": Knob(Int(1, 3), "c", "")})
    points = grid_points(small, [5], seed=0)
    assert len(points) == 5
    assert {p["c"] for p in points[:3]} == {1, 2, 3}


def test_a_grid_of_many_knobs_takes_no_memory() -> None:
    """Its first points are those that all its cells, shuffled, begin with."""
    for count in (3, 20, 40):
        many = {f"k{i}": Knob(Float(0.0, 1.0), "k", "") for i in range(count)}
        tracemalloc.start()
        points = grid_points(Space(loss="x", paper="", scientific=many), [6], seed=0)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 2**25
        assert len({tuple(p.items()) for p in points}) == 6
        if count == 3:
            cells = list(itertools.product(*[[0.25, 0.75]] * count))
            order = np.random.default_rng(derive(0, "grid", "x")).permutation(len(cells))
            assert [tuple(p.values()) for p in points] == [cells[i] for i in order[:6]]


def test_the_record_of_cma_es_is_what_it_uses() -> None:
    """As Optuna sets it up for the knobs it models."""
    said = sampler_record("cmaes", startup=4, space=SPACE)
    assert said["drawn_at_random"] == ["d"]
    modelled = {k: d for k, d in SPACE.distributions.items() if k != "d"}
    sampler = make_sampler("cmaes", seed=0, startup=4)
    assert isinstance(sampler, CmaEsSampler)
    transform = _SearchSpaceTransform(modelled, transform_step=True, transform_0_1=True)
    used = sampler._init_optimizer(transform, optuna.study.StudyDirection.MAXIMIZE)
    assert said["popsize"] == used.population_size
    assert said["sigma0"] == pytest.approx(used._sigma)
    choice = Space(loss="x", paper="", scientific={"d": SPACE.scientific["d"]})
    assert sampler_record("cmaes", startup=4, space=choice)["drawn_at_random"] == ["d"]
    assert drawn_at_random("tpe", SPACE) == []


def test_samplers_by_name() -> None:
    for name in ("tpe", "gp", "cmaes", "random"):
        assert make_sampler(name, seed=0, startup=4) is not None
    with pytest.raises(ValueError, match="tpe, gp, cmaes, random"):
        make_sampler("bayes", seed=0, startup=4)


def test_auto_is_the_gaussian_process_while_it_is_cheap_and_knows_enough() -> None:
    many = Space(
        loss="x",
        paper="",
        scientific={f"k{i}": Knob(Float(0.0, 1.0), "k", "") for i in range(MOST_KNOBS + 1)},
    )
    assert sampler_name("auto", SPACE, 60) == "gp"
    assert sampler_name("auto", SPACE, 5000) == sampler_name("auto", many, 60) == "tpe"
    assert sampler_name("cmaes", SPACE, 60) == "cmaes"


def test_every_space_gives_valid_sobol_points() -> None:
    for name in ("proxy_anchor", "circle+synthesis", "triplet"):
        space = get_space(name)
        for index in (0, 1, 63, 64, 200):
            space.check_point(sobol_point(space, index, seed=1))
