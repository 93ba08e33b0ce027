"""Heartbeat of a rank: when it last made progress, and what its threads are doing."""

from __future__ import annotations

import sys
import threading
import time
import traceback
from collections.abc import Callable

UNTIMED_BEATS = 1
"""Beats of a trial before it is timed: that before the first step, which also sets up kernels."""


class Heartbeat:
    """Time of the last step of a rank, written by the training and read by a watching thread.

    The training beats before and after each step. Until the first step of a trial is done, and
    after `suspend`, a rank may take any time: it decodes data, computes metrics or writes a
    checkpoint.

    Args:
        clock: Seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._n_beats = 0
        self._last_beat: float | None = None

    def start_trial(self) -> None:
        """Do not time the first step of a new trial and what comes before."""
        self._n_beats, self._last_beat = 0, None

    def beat(self) -> None:
        """Record that a step of training or a batch of an evaluation is done."""
        self._n_beats += 1
        self._last_beat = self._clock()

    def suspend(self) -> None:
        """Do not time what follows, until the next beat."""
        self._last_beat = None

    @property
    def seconds_since_beat(self) -> float | None:
        """Time since the last step; None while the rank may take any time."""
        last_beat = self._last_beat  # the training may change it at any moment
        if last_beat is None or self._n_beats <= UNTIMED_BEATS:
            return None
        return self._clock() - last_beat


def format_stacks() -> str:
    """Return the stacks of all threads of this process but the calling one."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    own = threading.get_ident()
    return "\n".join(
        f"thread {names.get(ident, ident)}:\n{''.join(traceback.format_stack(frame))}"
        for ident, frame in sys._current_frames().items()
        if ident != own
    )
