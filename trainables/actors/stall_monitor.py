"""Stall monitor: whether the ranks of a trial still make progress.

Ranks wait for each other in every step, so one rank that hangs stops all. A rank that waits in an
exchange is not to blame, and one rank may be slower than the others; the trial is stalled when no
rank that is still training has completed a batch for `STEP_TIMEOUT_SECONDS`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping

STEP_TIMEOUT_SECONDS = 600.0
"""Time without a completed batch on any rank, from the second step of a trial on."""


class StallMonitor:
    """Remembers when each rank last made progress.

    Args:
        clock: Seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._last_beats: dict[int, float | None] = {}

    def expect_replies(self, ranks: Collection[int]) -> None:
        """Time ranks from now on, even if they never reply."""
        for rank in ranks:
            self._last_beats.setdefault(rank, self._clock())

    def record_progress(self, rank: int, seconds_since_beat: float | None) -> None:
        """A rank told how long ago it completed a batch; None if it may take any time now.

        A rank that does not reply keeps its last time and so becomes older.
        """
        is_untimed = seconds_since_beat is None
        self._last_beats[rank] = None if is_untimed else self._clock() - (seconds_since_beat or 0)

    def find_stall_seconds(self, training_ranks: Collection[int]) -> float:
        """Return for how long none of these ranks has made progress if that is too long, else 0."""
        beats = [self._last_beats.get(rank) for rank in training_ranks]
        timed = [beat for beat in beats if beat is not None]
        if not timed or len(timed) < len(beats):
            return 0.0
        seconds = self._clock() - max(timed)
        return seconds if seconds > STEP_TIMEOUT_SECONDS else 0.0


def describe_stall(seconds: float, stacks: Mapping[int, str]) -> tuple[str, str]:
    """Return the error of a stalled trial in one line, and the stacks of all its ranks.

    Args:
        seconds: Time without progress.
        stacks: What each rank was doing; empty for a rank that did not reply.
    """
    silent = [str(rank) for rank, stack in stacks.items() if not stack]
    error = f"no rank completed a step for {seconds:.0f} s"
    if silent:
        error += f"; rank {', '.join(silent)} does not reply"
    dump = "\n".join(
        f"rank {rank}:\n{stack or 'does not reply'}" for rank, stack in sorted(stacks.items())
    )
    return error, f"{error}\n{dump}"
