"""Designs fill the space and depend on index and seed only."""

from __future__ import annotations

import itertools
import tracemalloc

import numpy as np
import pytest

from search_spaces import get_space
from search_spaces.space import Choice, Float, Hyperparameter, Int, SearchSpace
from search_spaces.unit_scale import to_unit
from study.search.designs import _sobol_prefix, grid_points, sobol_point
from trainables.utils.seeding import derive_seed

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


def test_sobol_points_are_even_in_every_hyperparameter_on_its_own_scale() -> None:
    points = [sobol_point(SPACE, i, seed=0) for i in range(64)]
    for name, distribution in SPACE.distributions.items():
        unit = to_unit(distribution, [p[name] for p in points])
        counts = np.histogram(unit, bins=4 if name != "d" else 2, range=(0, 1))[0]
        assert counts.max() - counts.min() <= 2, name
    for point in points:
        SPACE.check_point(point)


def test_sobol_points_do_not_depend_on_the_number_of_points() -> None:
    late = sobol_point(SPACE, 100, seed=3)
    early = [sobol_point(SPACE, i, seed=3) for i in range(5)]
    assert early == [sobol_point(SPACE, i, seed=3) for i in range(5)]
    assert late == sobol_point(SPACE, 100, seed=3)
    # A longer prefix begins with the shorter one: an extension continues the same sequence.
    assert (_sobol_prefix(4, 3, 64) == _sobol_prefix(4, 3, 1024)[:64]).all()
    assert early != [sobol_point(SPACE, i, seed=4) for i in range(5)]


@pytest.mark.parametrize("total", [1, 16, 17, 23, 54, 81, 200])
def test_a_grid_has_the_requested_number_of_points(total: int) -> None:
    points = grid_points(SPACE, [total], seed=0)
    assert len({tuple(p.items()) for p in points}) == len(points) == total
    for point in points:
        SPACE.check_point(point)
    if total >= 23:
        assert all(len({p[name] for p in points}) >= 2 for name in SPACE.searched_params)
    if total == 54:
        assert [len({p[name] for p in points}) for name in SPACE.searched_params] == [3, 3, 3, 2]


def test_a_grid_is_refined_without_repeating_a_point() -> None:
    first = grid_points(SPACE, [23], seed=0)
    more = grid_points(SPACE, [23, 25, 60], seed=0)
    assert more[:23] == first
    assert len({tuple(p.items()) for p in more}) == len(more) == 60


def test_a_grid_without_further_values_starts_again() -> None:
    small = SearchSpace(loss="x", paper="", scientific={"c": Hyperparameter(Int(1, 3), "c", "")})
    points = grid_points(small, [5], seed=0)
    assert len(points) == 5
    assert {p["c"] for p in points[:3]} == {1, 2, 3}


def test_a_grid_of_many_hyperparameters_needs_little_memory() -> None:
    """Its points are the first of all its cells in shuffled order."""
    for count in (3, 20, 40):
        many = {f"k{i}": Hyperparameter(Float(0.0, 1.0), "k", "") for i in range(count)}
        tracemalloc.start()
        points = grid_points(SearchSpace(loss="x", paper="", scientific=many), [6], seed=0)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 2**25
        assert len({tuple(p.items()) for p in points}) == 6
        if count == 3:
            cells = list(itertools.product(*[[0.25, 0.75]] * count))
            order = np.random.default_rng(derive_seed(0, "grid", "x")).permutation(len(cells))
            assert [tuple(p.values()) for p in points] == [cells[i] for i in order[:6]]


def test_every_space_gives_valid_sobol_points() -> None:
    for name in ("proxy_anchor", "circle+synthesis", "triplet"):
        space = get_space(name)
        for index in (0, 1, 63, 64, 200):
            space.check_point(sobol_point(space, index, seed=1))
