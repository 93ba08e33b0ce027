"""Tracking monitor: warnings about a tracking store that lacks records while the study runs."""

from __future__ import annotations

import time
from collections.abc import Callable

from study.tracking.spool import ShippingStatus

SLOW_STORE_REASON = "no error, but too slow to take all records in the time it has at the end"
"""Reason for missing records in a store that answers."""

STATUS_CHECK_SECONDS = 5.0
OUTAGE_WARNING_SECONDS = 20.0
"""Length of an outage before a warning is printed, so that a restart of the server causes none."""


class TrackingMonitor:
    """Warns once per outage of the store, and once per note of the shipper.

    Args:
        status: Returns the shipping status.
        warn: Called with a warning of one line.
        clock: Returns the time in seconds.
    """

    def __init__(
        self,
        status: Callable[[], ShippingStatus],
        warn: Callable[[str], None],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._status, self._warn, self._clock = status, warn, clock
        self._next_check = clock()
        self._down_since: float | None = None
        self._has_warned = False
        self._last_note = status().note

    def update(self) -> None:
        """Check the status if some seconds have passed since the last check."""
        now = self._clock()
        if now < self._next_check:
            return
        self._next_check = now + STATUS_CHECK_SECONDS
        self.warn_of_note()
        error = self._status().error
        if not error:
            self._down_since, self._has_warned = None, False
            return
        self._down_since = now if self._down_since is None else self._down_since
        if not self._has_warned and now - self._down_since >= OUTAGE_WARNING_SECONDS:
            self._has_warned = True
            self._warn(f"tracking store: {error}; trials continue, and records wait on disk")

    def warn_of_note(self) -> None:
        """Print the shipper's note, unless it was printed before."""
        note = self._status().note
        if note and note != self._last_note:
            self._warn(f"tracking store: {note}")
        self._last_note = note
