"""Stall monitor: when the ranks of a trial count as stalled, and what is reported."""

from __future__ import annotations

import pytest

from trainables.actors.stall_monitor import STEP_TIMEOUT_SECONDS, StallMonitor, describe_stall

pytestmark = pytest.mark.split

TOO_LONG = STEP_TIMEOUT_SECONDS + 1


def test_ranks_are_stalled_when_none_makes_progress() -> None:
    monitor = StallMonitor(lambda: 0.0)
    monitor.record_progress(0, TOO_LONG + 5)
    monitor.record_progress(1, TOO_LONG)
    assert monitor.find_stall_seconds([0, 1]) == TOO_LONG


@pytest.mark.parametrize(
    ("seconds", "why"),
    [
        ([TOO_LONG, 1.0], "one rank is slow, the other waits for it"),
        ([TOO_LONG, None], "one rank decodes data or writes a checkpoint"),
        ([STEP_TIMEOUT_SECONDS - 1, TOO_LONG], "the step may still end"),
        ([None, None], "the trial starts"),
    ],
)
def test_ranks_are_not_stalled_while_one_may_progress(
    seconds: list[float | None], why: str
) -> None:
    monitor = StallMonitor(lambda: 0.0)
    for rank, since in enumerate(seconds):
        monitor.record_progress(rank, since)
    assert monitor.find_stall_seconds([0, 1]) == 0, why


def test_only_ranks_that_still_train_count() -> None:
    monitor = StallMonitor(lambda: 0.0)
    monitor.record_progress(0, TOO_LONG)
    monitor.record_progress(1, None)
    assert monitor.find_stall_seconds([0]) == TOO_LONG
    assert monitor.find_stall_seconds([1]) == 0
    assert monitor.find_stall_seconds([]) == 0


def test_a_rank_that_does_not_reply_becomes_older() -> None:
    now = 0.0
    monitor = StallMonitor(lambda: now)
    monitor.record_progress(0, 1.0)
    now = TOO_LONG
    assert monitor.find_stall_seconds([0]) == TOO_LONG + 1
    assert StallMonitor(lambda: now).find_stall_seconds([0]) == 0, "it has never replied"


def test_a_stall_names_silent_ranks_and_dumps_all_stacks() -> None:
    error, dump = describe_stall(601.4, {1: "", 0: "in all_reduce"})
    assert error == "no rank completed a step for 601 s; rank 1 does not reply"
    assert dump == f"{error}\nrank 0:\nin all_reduce\nrank 1:\ndoes not reply"


def test_a_rank_that_never_replies_is_timed_from_the_first_question() -> None:
    now = 0.0
    monitor = StallMonitor(lambda: now)
    monitor.expect_replies([0, 1])
    monitor.record_progress(0, 0.0)
    now = TOO_LONG
    monitor.expect_replies([0, 1])
    assert monitor.find_stall_seconds([0, 1]) == TOO_LONG
    monitor.record_progress(1, None)
    assert monitor.find_stall_seconds([0, 1]) == 0, "it decodes data"
