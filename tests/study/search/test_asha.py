"""Successive halving stops the low ones, and only at rungs."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from study.tuning.asha import Rungs


def test_milestones_grow_by_the_reduction_and_end_before_the_last_epoch() -> None:
    assert Rungs(epochs=28, grace=1, reduction=3).milestones == [1, 3, 9, 27]
    assert Rungs(epochs=27, grace=1, reduction=3).milestones == [1, 3, 9]
    assert Rungs(epochs=5, grace=5, reduction=3).milestones == []


def test_the_first_is_never_stopped_and_a_worse_second_is() -> None:
    rungs = Rungs(epochs=9, grace=1, reduction=3)
    assert not rungs.report("a", 1, 0.5)
    assert rungs.report("b", 1, 0.4)
    assert not rungs.report("c", 1, 0.6)
    assert not rungs.report("c", 2, 0.0), "epoch 2 is no rung"


def test_a_trial_that_skipped_a_rung_is_judged_at_the_next_report() -> None:
    rungs = Rungs(epochs=9, grace=3, reduction=3)
    rungs.report("a", 3, 0.5)
    assert rungs.report("b", 4, 0.1)


@given(st.lists(st.floats(0, 1), min_size=4, max_size=40, unique=True), st.integers(2, 4))
def test_the_best_goes_on_and_the_worst_of_many_does_not(
    scores: list[float], reduction: int
) -> None:
    rungs = Rungs(epochs=9, grace=1, reduction=reduction)
    for i, score in enumerate(scores):
        rungs.report(str(i), 1, score)
    assert not rungs.report("best", 1, 2.0)
    assert rungs.report("worst", 1, -1.0)


@given(st.dictionaries(st.sampled_from("abcdef"), st.floats(0, 1), min_size=1))
def test_replaying_curves_gives_the_same_rungs(curves: dict[str, float]) -> None:
    live, rebuilt = (Rungs(epochs=9, grace=1, reduction=3) for _ in range(2))
    for name, level in curves.items():
        for epoch in range(1, 8):
            live.report(name, epoch, level * epoch)
        rebuilt.replay(name, {epoch: level * epoch for epoch in range(1, 8)})
    for milestone in live.milestones:
        assert live.scores_at(milestone) == rebuilt.scores_at(milestone)


@pytest.mark.parametrize(("grace", "reduction"), [(0, 3), (1, 1)])
def test_impossible_settings_are_refused(grace: int, reduction: int) -> None:
    with pytest.raises(ValueError, match="must hold"):
        Rungs(epochs=9, grace=grace, reduction=reduction)


def test_a_rung_where_curves_cross_stops_nobody_once_that_is_seen() -> None:
    """Who is best after one epoch ends last: the first rung misleads, the second does not."""
    rungs = Rungs(epochs=9, grace=1, reduction=3)
    for i in range(6):
        rungs.report(f"w{i}", 1, float(-i))
        rungs.report(f"w{i}", 3, float(i))
        assert not rungs.is_misleading(1), "too few to tell"
        rungs.witness(f"w{i}", float(i))
    assert rungs.is_misleading(1)
    assert not rungs.is_misleading(3)
    assert not rungs.report("t", 1, -9.0)
    assert rungs.report("t", 3, -9.0)


def test_a_rung_that_orders_trials_rightly_is_used() -> None:
    rungs = Rungs(epochs=9, grace=1, reduction=3)
    for i in range(8):
        rungs.report(f"w{i}", 1, float(i))
        rungs.witness(f"w{i}", float(i))
    assert not rungs.is_misleading(1)
    assert rungs.report("t", 1, -9.0)
    assert rungs.is_low("t", 1)
