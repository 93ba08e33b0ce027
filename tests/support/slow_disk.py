"""Slow disk: a stub whose writes of checkpoints take as long as a test wants."""

from __future__ import annotations

import threading
from typing import IO, Any

import pytest

from trainables.training import checkpoints

GIVE_UP_SECONDS = 60.0
"""Time after which a blocked write fails, so that a trial that waits for it does not hang."""


class SlowDisk:
    """Disk that accepts no byte of a checkpoint until `release` is called.

    Args:
        monkeypatch: Replaces the writing of checkpoints by one to this disk.

    Attributes:
        error: Raised by writes instead of writing, if set.
        written: Epochs of the checkpoints written so far.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.error: Exception | None = None
        self.written: list[int] = []
        self._is_fast, self._is_waiting = threading.Event(), threading.Event()
        self._write = checkpoints._write_payload
        monkeypatch.setattr(checkpoints, "_write_payload", self._wait_and_write)

    def release(self) -> None:
        """Let the write in flight and all later ones proceed."""
        self._is_fast.set()

    def wait_for_write(self) -> None:
        """Wait until a write has started and is blocked."""
        assert self._is_waiting.wait(GIVE_UP_SECONDS)

    def _wait_and_write(self, payload: dict[str, Any], file: IO[bytes]) -> None:
        self._is_waiting.set()
        if not self._is_fast.wait(GIVE_UP_SECONDS):
            raise RuntimeError("the disk was not released: the trial waited for it")
        if self.error is not None:
            raise self.error
        self._write(payload, file)
        self.written.append(int(payload["epoch"]))
