"""Checkpoint writer: writes the checkpoints of a trial in a thread while the trial trains.

The state is first copied to host memory, because training changes it in place. At most one write is
in flight, so a trial holds at most one copy of its state.
"""

from __future__ import annotations

import copy
import threading
import time
from collections.abc import Callable
from typing import Any

from torch import Tensor

from trainables.training.checkpoints import CheckpointLocation, save_checkpoint

LONGEST_CHECKPOINT_INTERVAL_SECONDS = 300.0
"""Time after which a trial with `checkpoint_every: auto` writes a checkpoint in any case."""
CHECKPOINT_INTERVAL_PER_WRITE_SECOND = 100.0
"""Least time between two checkpoints, in durations of the last write: writing takes 1 %."""


class CheckpointWriter:
    """Writes the checkpoints of one trial, in a thread or in the calling one.

    Args:
        location: Directory or S3 prefix.
        trial: Key of the trial.
        clock: Seconds.
    """

    def __init__(
        self,
        location: CheckpointLocation,
        trial: str,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._location, self._trial, self._clock = location, trial, clock
        self._thread: threading.Thread | None = None
        self._failure: tuple[int, BaseException] | None = None
        self._started_at = 0.0
        self._write_seconds: float | None = None

    @property
    def is_writing(self) -> bool:
        """Whether a write is in flight."""
        return self._thread is not None and self._thread.is_alive()

    @property
    def is_due(self) -> bool:
        """Whether a trial with `checkpoint_every: auto` should write a checkpoint now.

        The first epoch is always saved, so a trial that is interrupted again and again still
        advances. Later checkpoints follow as often as 1 % of the time allows, at the latest after
        `LONGEST_CHECKPOINT_INTERVAL_SECONDS`.
        """
        if self.is_writing:
            return False
        if self._write_seconds is None:
            return True
        interval = min(
            self._write_seconds * CHECKPOINT_INTERVAL_PER_WRITE_SECOND,
            LONGEST_CHECKPOINT_INTERVAL_SECONDS,
        )
        return self._clock() - self._started_at >= interval

    def start(self, payload: dict[str, Any]) -> None:
        """Copy a checkpoint to host memory and write it in a thread, after an earlier write."""
        self.wait()
        snapshot = copy_to_host(payload)
        # Not a daemon: a process that exits normally completes the write.
        self._thread = threading.Thread(
            target=self._write_snapshot, args=(snapshot,), name="checkpoint"
        )
        self._thread.start()

    def write(self, payload: dict[str, Any]) -> None:
        """Write a checkpoint in the calling thread, after an earlier write.

        Raises:
            OSError: If the disk or S3 rejects it.
        """
        self.wait()
        self._save(payload)

    def wait(self) -> None:
        """Wait until no write is in flight."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def take_failure(self) -> tuple[int, OSError] | None:
        """Return the epoch and the error of a write in the thread that has failed, once.

        Raises:
            Exception: If it failed for another reason than the disk or S3.
        """
        if self.is_writing or self._failure is None:
            return None
        (epoch, error), self._failure = self._failure, None
        if not isinstance(error, OSError):
            raise error
        return epoch, error

    def _write_snapshot(self, snapshot: dict[str, Any]) -> None:
        try:
            self._save(snapshot)
        except BaseException as error:  # `take_failure` passes it to the trial's own thread
            self._failure = (int(snapshot["epoch"]), error)

    def _save(self, payload: dict[str, Any]) -> None:
        self._started_at = started_at = self._clock()
        try:
            save_checkpoint(self._location, self._trial, payload)
        finally:
            self._write_seconds = self._clock() - started_at


def copy_to_host(value: Any) -> Any:
    """Return a copy of nested dictionaries and sequences, with tensors copied to host memory.

    Tensors are copied on CPUs, too: a state dict shares its tensors with the model. The memory is
    not pinned: one copy in minutes takes little time, and torch would keep pinned memory for good.
    """
    if isinstance(value, Tensor):
        return value.detach().to("cpu", copy=True)
    if isinstance(value, dict):
        copied = copy.copy(value)  # keeps the metadata of a module's state dict
        for key, item in value.items():
            copied[key] = copy_to_host(item)
        return copied
    if isinstance(value, list | tuple):
        return type(value)(copy_to_host(item) for item in value)
    return value
