"""Warning log: a display that also appends every warning to a file of the study."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from study.runner.display import ProgressDisplay
from study.trials.job import Job, LossProgress

WARNINGS_FILE_NAME = "warnings.txt"


class WarningLogDisplay:
    """Forwards everything to another display and keeps warnings in a file.

    Args:
        display: Display that shows everything.
        path: File to which warnings are appended, with their time.

    Attributes:
        n_warnings: Warnings shown so far.
    """

    def __init__(self, display: ProgressDisplay, path: Path) -> None:
        self._display, self._path, self.n_warnings = display, path, 0

    def show_warning(self, text: str) -> None:
        """Show the warning and append it to the file."""
        self.n_warnings += 1
        self._display.show_warning(text)
        moment = time.strftime("%Y-%m-%d %H:%M:%S")
        with contextlib.suppress(OSError), self._path.open("a", encoding="utf-8") as file:
            file.write(f"{moment} {text}\n")  # the warning may be about a full disk

    def show_message(self, text: str) -> None:
        """Forward the message."""
        self._display.show_message(text)

    def show_build_progress(self, what: str, done: int, total: int) -> None:
        """Forward the progress of a build."""
        self._display.show_build_progress(what, done, total)

    def show_progress(self, progress: Sequence[LossProgress], running: Mapping[str, Job]) -> None:
        """Forward the progress."""
        self._display.show_progress(progress, running)
