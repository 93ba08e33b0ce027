"""Final scores are foretold from curves, with a doubt that keeps promising trials running."""

from __future__ import annotations

import math

import numpy as np
import pytest

from study.jobs import Outcome
from study.tuning.outlook import LEAST_FINISHED, Outlook, check_epochs

EPOCHS = 9


def curve(end: float, speed: float) -> dict[int, float]:
    """Towards `end`; all start at 0.2."""
    return {e: end - (end - 0.2) * math.exp(-speed * e) for e in range(1, EPOCHS + 1)}


def teach(outlook: Outlook, ends: list[float], speeds: list[float]) -> None:
    for i, (end, speed) in enumerate(zip(ends, speeds, strict=True)):
        scores = curve(end, speed)
        outlook.replay(f"w{i}", scores)
        outlook.ended(f"w{i}", Outcome("finished", EPOCHS, scores[EPOCHS]))


def taught(count: int = 16) -> Outlook:
    """By slow learners that end high and fast ones that end low: their curves cross."""
    rng = np.random.default_rng(0)
    speeds = rng.uniform(0.1, 1.0, count)
    ends = 0.9 - 0.4 * speeds + 0.02 * rng.standard_normal(count)
    outlook = Outlook(epochs=EPOCHS, grace=1)
    teach(outlook, list(ends), list(speeds))
    return outlook


def test_checks_are_a_bounded_number_of_epochs_from_the_grace_period_on() -> None:
    assert check_epochs(9, 1) == [1, 2, 3, 4, 6, 8]
    assert check_epochs(9, 5) == [5, 7]
    assert check_epochs(5, 5) == check_epochs(0, 1) == []
    assert len(check_epochs(1000, 1)) < 25


def test_who_still_rises_goes_on_and_who_has_settled_low_does_not() -> None:
    """Though the second is far ahead of the first when both are judged."""
    outlook = taught()
    slow, fast = curve(0.85, 0.12), curve(0.5, 0.95)
    assert fast[4] > slow[4]
    outlook.replay("slow", {e: slow[e] for e in (1, 2, 3, 4)})
    outlook.replay("fast", {e: fast[e] for e in (1, 2, 3, 4)})
    goal = 0.6
    assert slow[EPOCHS] > goal > fast[EPOCHS]
    assert outlook.is_hopeless("slow", 4, goal) is False
    assert outlook.is_hopeless("fast", 4, goal) is True
    assert outlook.is_hopeless("fast", 4, 0.3) is False
    assert outlook.is_hopeless("fast", 5, goal) is None, "no check there"


def test_nobody_is_stopped_where_early_scores_say_nothing() -> None:
    outlook, rng = Outlook(epochs=EPOCHS, grace=1), np.random.default_rng(1)
    for i in range(30):
        outlook.report(f"w{i}", 2, float(rng.random()))
        outlook.ended(f"w{i}", Outcome("finished", EPOCHS, float(rng.random())))
    outlook.report("low", 2, 0.0)
    assert outlook.is_hopeless("low", 2, 0.9) is False


def test_nobody_is_stopped_before_enough_have_finished() -> None:
    few = taught(LEAST_FINISHED - 1)
    few.replay("x", {1: 0.0, 2: 0.0})
    assert few.is_hopeless("x", 2, 5.0) is None
    enough = taught(LEAST_FINISHED)
    enough.replay("x", {1: 0.2, 2: 0.2})
    assert enough.is_hopeless("x", 2, 5.0)


def test_equals_of_the_incumbent_go_on() -> None:
    """A fit without any error is no certainty."""
    outlook = Outlook(epochs=EPOCHS, grace=1)
    teach(outlook, [0.6] * 10, [0.5] * 10)
    same = curve(0.6, 0.5)
    outlook.replay("same", {e: same[e] for e in (1, 2, 3)})
    assert outlook.is_hopeless("same", 3, same[EPOCHS]) is False


def test_a_stopped_trial_is_taken_for_what_it_would_have_reached() -> None:
    outlook, scores = taught(), curve(0.7, 0.4)
    outlook.replay("x", {e: scores[e] for e in range(1, 5)})
    foretold = outlook.value("x", Outcome("stopped", 4, scores[4]))
    assert foretold == pytest.approx(scores[EPOCHS], abs=0.03)
    assert Outlook(epochs=EPOCHS, grace=1).value("x", Outcome("stopped", 4, 0.5)) is None


def test_few_finished_trials_tell_their_mean_gain() -> None:
    outlook = Outlook(epochs=EPOCHS, grace=1)
    outlook.report("x", 2, 0.3)
    for i, gain in enumerate((0.1, 0.3)):
        outlook.report(f"w{i}", 2, 0.5)
        outlook.ended(f"w{i}", Outcome("finished", EPOCHS, 0.5 + gain))
    outlook.ended("d", Outcome("diverged", 3, math.nan))
    assert outlook.value("x", Outcome("stopped", 2, 0.3)) == pytest.approx(0.5)
