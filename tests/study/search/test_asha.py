"""Successive halving stops low trials, and only at rungs."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from study.search.asha import SuccessiveHalving


def test_milestones_grow_by_the_reduction_and_end_before_the_last_epoch() -> None:
    assert SuccessiveHalving(epochs=28, grace=1, reduction=3).milestones == [1, 3, 9, 27]
    assert SuccessiveHalving(epochs=27, grace=1, reduction=3).milestones == [1, 3, 9]
    assert SuccessiveHalving(epochs=5, grace=5, reduction=3).milestones == []


def test_the_first_trial_continues_and_a_worse_second_is_stopped() -> None:
    rungs = SuccessiveHalving(epochs=9, grace=1, reduction=3)
    assert not rungs.report_score("a", 1, 0.5)
    assert rungs.report_score("b", 1, 0.4)
    assert not rungs.report_score("c", 1, 0.6)
    assert not rungs.report_score("c", 2, 0.0), "epoch 2 is not a rung"


def test_a_trial_that_skipped_a_rung_is_judged_at_the_next_report() -> None:
    rungs = SuccessiveHalving(epochs=9, grace=3, reduction=3)
    rungs.report_score("a", 3, 0.5)
    assert rungs.report_score("b", 4, 0.1)


@pytest.mark.slow
@given(st.lists(st.floats(0, 1), min_size=4, max_size=40, unique=True), st.integers(2, 4))
def test_the_best_continues_and_the_worst_of_many_is_stopped(
    scores: list[float], reduction: int
) -> None:
    rungs = SuccessiveHalving(epochs=9, grace=1, reduction=reduction)
    for i, score in enumerate(scores):
        rungs.report_score(str(i), 1, score)
    assert not rungs.report_score("best", 1, 2.0)
    assert rungs.report_score("worst", 1, -1.0)


@given(st.dictionaries(st.sampled_from("abcdef"), st.floats(0, 1), min_size=1))
def test_replaying_curves_gives_the_same_rungs(curves: dict[str, float]) -> None:
    live, rebuilt = (SuccessiveHalving(epochs=9, grace=1, reduction=3) for _ in range(2))
    for name, level in curves.items():
        for epoch in range(1, 8):
            live.report_score(name, epoch, level * epoch)
        rebuilt.replay_curve(name, {epoch: level * epoch for epoch in range(1, 8)})
    for milestone in live.milestones:
        for name in curves:
            assert live.should_stop_at(name, milestone) == rebuilt.should_stop_at(name, milestone)
        for score in (0.0, 0.5, 1.0, 10.0):
            probe = f"{milestone} {score}"
            decisions = [rungs.report_score(probe, milestone, score) for rungs in (live, rebuilt)]
            assert decisions[0] == decisions[1]


@pytest.mark.parametrize(("grace", "reduction"), [(0, 3), (1, 1)])
def test_impossible_settings_are_refused(grace: int, reduction: int) -> None:
    with pytest.raises(ValueError, match="must hold"):
        SuccessiveHalving(epochs=9, grace=grace, reduction=reduction)


def test_a_rung_where_curves_cross_is_disabled() -> None:
    """The best trials after one epoch finish last: the first rung misleads, the second does not."""
    rungs = SuccessiveHalving(epochs=9, grace=1, reduction=3)
    for i in range(6):
        rungs.report_score(f"w{i}", 1, float(-i))
        rungs.report_score(f"w{i}", 3, float(i))
        assert not rungs.is_rung_unreliable(1), "too few to tell"
        rungs.add_final_score(f"w{i}", float(i))
    assert rungs.is_rung_unreliable(1)
    assert not rungs.is_rung_unreliable(3)
    assert not rungs.report_score("t", 1, -9.0)
    assert rungs.report_score("t", 3, -9.0)


def test_a_rung_that_orders_trials_correctly_is_used() -> None:
    rungs = SuccessiveHalving(epochs=9, grace=1, reduction=3)
    for i in range(8):
        rungs.report_score(f"w{i}", 1, float(i))
        rungs.add_final_score(f"w{i}", float(i))
    assert not rungs.is_rung_unreliable(1)
    assert rungs.report_score("t", 1, -9.0)
    assert rungs.should_stop_at("t", 1)


@pytest.mark.parametrize(
    ("rung", "final", "is_unreliable"),
    [
        ([1, 1, 1, 1, 1, 1], [1, 2, 3, 4, 5, 6], False),  # constant: no evidence
        ([1, 2, 3, 4, 5, 6], [7, 7, 7, 7, 7, 7], False),
        ([1, 1, 2, 2, 3, 3], [1, 2, 3, 4, 5, 6], False),  # ties: correlation 0.956
        ([3, 3, 2, 2, 1, 1], [1, 2, 3, 4, 5, 6], True),
        ([1, 2, 3, 4, 5, 6, 7, 8, 9], [1, 2, 3, 5, 9, 7, 6, 4, 8], False),  # exactly 0.7
        ([1, 2, 3, 4, 5, 6, 7, 8, 9], [1, 2, 3, 9, 5, 4, 8, 6, 7], True),  # 0.683
        ([1, 2, 3, 4, 5, math.nan], [6, 5, 4, 3, 2, 1], False),  # five pairs are too few
    ],
)
def test_reliability_is_a_rank_correlation(
    rung: list[float], final: list[float], is_unreliable: bool
) -> None:
    rungs = SuccessiveHalving(epochs=9, grace=1, reduction=3)
    for i, (early, late) in enumerate(zip(rung, final, strict=True)):
        rungs.report_score(f"t{i}", 1, float(early))
        rungs.add_final_score(f"t{i}", float(late))
    assert rungs.is_rung_unreliable(1) is is_unreliable
