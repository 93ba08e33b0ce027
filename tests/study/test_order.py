"""The sampler starts early and space is filled beside it, whatever interrupts a search."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from study.tuning.order import Counts, next_part, start_points

NONE = Counts(0, 0)


def order(stages: list[Counts], *, start: int, lag: int = 0) -> str:
    """S and B in the order they are asked when a point has ended `lag` points later."""
    asked, before, out = NONE, NONE, ""
    for upto in stages:
        while True:
            ended = max(asked.sobol + asked.chosen - lag, 0)
            part = next_part(asked, before, upto, ended=ended, start=start)
            if part is None:
                break
            out += part[0].upper()
            grown = {"sobol": (1, 0), "bayes": (0, 1)}[part]
            asked = Counts(asked.sobol + grown[0], asked.chosen + grown[1])
        before = upto
    return out


def test_a_few_sobol_points_come_first_and_then_one_after_three_of_the_sampler() -> None:
    assert order([Counts(8, 8)], start=4) == "SSSS" + "BBBS" + "BBBS" + "BB" + "SS"
    assert order([Counts(2, 3)], start=4) == "SSBBB"
    assert order([Counts(6, 0)], start=4) == "SSSSSS"
    assert order([Counts(0, 3)], start=4) == "BBB"


def test_an_extension_goes_on_at_the_same_pace() -> None:
    assert order([Counts(4, 4), Counts(6, 10)], start=4) == "SSSSBBBB" + "BBBSBBBS"


def test_with_many_slots_space_is_filled_while_the_sampler_knows_nothing() -> None:
    assert order([Counts(8, 8)], start=4, lag=7) == "SSSSSSSS" + "B" * 8
    assert order([Counts(8, 8)], start=4, lag=1) == "SSSSS" + "BBBBBBS" + "BB" + "SS"


@given(
    st.lists(st.tuples(st.integers(0, 20), st.integers(0, 30)), min_size=1, max_size=3),
    st.integers(0, 9),
    st.integers(0, 30),
)
def test_every_planned_point_is_asked_and_no_other(
    sizes: list[tuple[int, int]], start: int, lag: int
) -> None:
    stages = [
        Counts(sum(s for s, _ in sizes[: i + 1]), sum(b for _, b in sizes[: i + 1]))
        for i in range(len(sizes))
    ]
    asked = order(stages, start=start, lag=lag)
    assert (asked.count("S"), asked.count("B")) == (stages[-1].sobol, stages[-1].chosen)


@pytest.mark.parametrize(("knobs", "points"), [(1, 4), (2, 4), (5, 8)])
def test_the_start_grows_with_the_knobs(knobs: int, points: int) -> None:
    assert start_points(knobs) == points
