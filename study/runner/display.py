"""Display protocol: what a run shows a person while it works."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from study.trials.job import Job, LossProgress


class ProgressDisplay(Protocol):
    """Shows messages, warnings and progress of a run."""

    def show_message(self, text: str) -> None:
        """Show one line about the current step; the next step replaces it."""

    def show_warning(self, text: str) -> None:
        """Show one line that stays visible."""

    def show_build_progress(self, what: str, done: int, total: int) -> None:
        """Show the progress of data or features that are built before trials run."""

    def show_progress(self, progress: Sequence[LossProgress], running: Mapping[str, Job]) -> None:
        """Show the progress of each loss and the running jobs."""


class NullDisplay:
    """A display that shows nothing, for library use and tests."""

    def show_message(self, text: str) -> None:
        """Ignore the message."""

    def show_warning(self, text: str) -> None:
        """Ignore the warning."""

    def show_build_progress(self, what: str, done: int, total: int) -> None:
        """Ignore the progress."""

    def show_progress(self, progress: Sequence[LossProgress], running: Mapping[str, Job]) -> None:
        """Ignore the progress."""
