"""GPU faults of a run: which GPUs are avoided, and which processes keep them out of use.

Ray cannot exclude a single GPU of a node. A GPU is therefore avoided by the process that reported
its last fault: it stays alive without a trial and holds the GPU until the run ends.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable

MAX_GPU_FAULTS = 2
"""Faults of a GPU in a run after which it is avoided; a single one may be chance."""

HOLDER_TIMEOUT_SECONDS = 30.0
"""A process that holds a GPU and is silent for this long is gone, with its node."""


class GpuFaults:
    """Counts the faults of GPUs in a run.

    Args:
        clock: Seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._faults: Counter[tuple[str, str]] = Counter()  # by GPU and trial
        self._holders: dict[str, float] = {}  # time of the last report, by process

    def record_fault(self, gpu: str, trial: str) -> None:
        """A trial reported a fault of a GPU."""
        self._faults[gpu, trial] += 1

    def forgive_faults(self, trial: str) -> None:
        """Discard the faults of a trial that has failed: they followed it from GPU to GPU."""
        self._faults = Counter({key: n for key, n in self._faults.items() if key[1] != trial})

    def is_avoided(self, gpu: str) -> bool:
        """Whether a GPU has had too many faults."""
        return sum(n for key, n in self._faults.items() if key[0] == gpu) >= MAX_GPU_FAULTS

    def record_holder(self, process: str) -> None:
        """A process that holds an avoided GPU reports."""
        self._holders[process] = self._clock()

    def remove_holder(self, process: str) -> None:
        """A process no longer holds a GPU."""
        self._holders.pop(process, None)

    def count_holders(self) -> int:
        """Return how many processes hold avoided GPUs; each takes the place of a trial."""
        limit = self._clock() - HOLDER_TIMEOUT_SECONDS
        return sum(reported > limit for reported in self._holders.values())
