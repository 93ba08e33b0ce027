"""Sobol and sampled points are interleaved as planned, however a search is interrupted."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from study.search.interleaving import PointCounts, choose_source, n_startup_points

NONE = PointCounts(0, 0)


def order(stages: list[PointCounts], *, start: int, lag: int = 0) -> str:
    """Return S and B in order of starting, if a point ends when `lag` more have started."""
    started, before, out = NONE, NONE, ""
    for upto in stages:
        while True:
            ended = max(started.n_sobol + started.n_sampled - lag, 0)
            source = choose_source(started, before, upto, n_ended=ended, n_startup=start)
            if source is None:
                break
            out += source[0].upper()
            n_sobol, n_sampled = {"sobol": (1, 0), "bayes": (0, 1)}[source]
            started = PointCounts(started.n_sobol + n_sobol, started.n_sampled + n_sampled)
        before = upto
    return out


def test_after_the_first_sobol_points_one_follows_every_three_sampled_points() -> None:
    assert order([PointCounts(8, 8)], start=4) == "SSSS" + "BBBS" + "BBBS" + "BB" + "SS"
    assert order([PointCounts(2, 3)], start=4) == "SSBBB"
    assert order([PointCounts(6, 0)], start=4) == "SSSSSS"
    assert order([PointCounts(0, 3)], start=4) == "BBB"


def test_an_extension_continues_the_pattern() -> None:
    assert order([PointCounts(4, 4), PointCounts(6, 10)], start=4) == "SSSSBBBB" + "BBBSBBBS"


def test_with_many_slots_sobol_points_start_until_enough_have_ended() -> None:
    assert order([PointCounts(8, 8)], start=4, lag=7) == "SSSSSSSS" + "B" * 8
    assert order([PointCounts(8, 8)], start=4, lag=1) == "SSSSS" + "BBBBBBS" + "BB" + "SS"


@given(
    st.lists(st.tuples(st.integers(0, 20), st.integers(0, 30)), min_size=1, max_size=3),
    st.integers(0, 9),
    st.integers(0, 30),
)
def test_exactly_the_planned_points_start(
    sizes: list[tuple[int, int]], start: int, lag: int
) -> None:
    stages = [
        PointCounts(sum(s for s, _ in sizes[: i + 1]), sum(b for _, b in sizes[: i + 1]))
        for i in range(len(sizes))
    ]
    letters = order(stages, start=start, lag=lag)
    assert (letters.count("S"), letters.count("B")) == (stages[-1].n_sobol, stages[-1].n_sampled)


@pytest.mark.parametrize(("n_params", "n_points"), [(1, 4), (2, 4), (5, 8)])
def test_startup_points_grow_with_the_hyperparameters(n_params: int, n_points: int) -> None:
    assert n_startup_points(n_params) == n_points
