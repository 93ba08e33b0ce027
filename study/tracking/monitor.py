"""Does the study's store take what it is told? Said while the study runs, not at its end."""

from __future__ import annotations

import time
from collections.abc import Callable

from study.tracking.spool import Status

SLOW = "no error, but too slow to take all records in the time it has at the end"
"""Why a store that answers lacks records."""

LOOK_SECONDS = 5.0
LASTING_SECONDS = 20.0
"""How long a store may be away before a person is told: a restart is no news."""


class Watch:
    """Warns, once each, of what keeps records from their store for some time, and of its notes.

    Args:
        status: How shipping stands.
        warn: Is told, in one line.
        clock: Seconds.
    """

    def __init__(
        self,
        status: Callable[[], Status],
        warn: Callable[[str], None],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._status, self._warn, self._clock = status, warn, clock
        self._next = clock()
        self._since: float | None = None
        self._said = False
        self._noted = status().note

    def update(self) -> None:
        """To be called often; looks every few seconds."""
        now = self._clock()
        if now < self._next:
            return
        self._next = now + LOOK_SECONDS
        self.tell_note()
        error = self._status().error
        if not error:
            self._since, self._said = None, False
            return
        self._since = now if self._since is None else self._since
        if not self._said and now - self._since >= LASTING_SECONDS:
            self._said = True
            self._warn(f"MLflow's store: {error}; trials go on, and what it lacks waits on disk")

    def tell_note(self) -> None:
        """Say the store's note, unless it was said before."""
        note = self._status().note
        if note and note != self._noted:
            self._warn(f"MLflow's store: {note}")
        self._noted = note
