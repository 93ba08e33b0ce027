"""Heartbeat of a rank: what is timed, and the stacks of its threads."""

from __future__ import annotations

import threading

from trainables.utils.heartbeat import Heartbeat, format_stacks


def test_a_trial_is_timed_from_its_second_step_on() -> None:
    now = 0.0
    heartbeat = Heartbeat(lambda: now)
    for _ in range(2):  # the next trial of the process decodes its data, too
        heartbeat.start_trial()
        assert heartbeat.seconds_since_beat is None
        heartbeat.beat()  # before the first step
        now += 7000
        assert heartbeat.seconds_since_beat is None
        heartbeat.beat()
        now += 5
        assert heartbeat.seconds_since_beat == 5


def test_a_suspended_rank_is_timed_again_after_the_next_beat() -> None:
    now = 0.0
    heartbeat = Heartbeat(lambda: now)
    heartbeat.beat()
    heartbeat.beat()
    heartbeat.suspend()
    now += 7000
    assert heartbeat.seconds_since_beat is None
    heartbeat.beat()  # the first step of the next epoch is timed
    now += 5
    assert heartbeat.seconds_since_beat == 5


def test_stacks_name_threads_and_places() -> None:
    is_over = threading.Event()

    def wait_for_the_end() -> None:
        is_over.wait(60)

    thread = threading.Thread(target=wait_for_the_end, name="trains")
    thread.start()
    stacks = format_stacks()
    is_over.set()
    thread.join()
    assert "thread trains:" in stacks
    assert "in wait_for_the_end" in stacks
    assert "test_stacks_name_threads_and_places" not in stacks, "the caller only asks"
