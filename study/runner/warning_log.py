"""What should a person know about a run though it went on?"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from pathlib import Path


class Warned:
    """Shows warnings and keeps them: call it with one line.

    Args:
        path: File to which they are added.
        show: Is told each.
    """

    def __init__(self, path: Path, show: Callable[[str], None]) -> None:
        self._path, self._show, self.count = path, show, 0

    def __call__(self, text: str) -> None:
        """Show and keep one line."""
        self.count += 1
        self._show(text)
        moment = time.strftime("%Y-%m-%d %H:%M:%S")
        with contextlib.suppress(OSError), self._path.open("a", encoding="utf-8") as file:
            file.write(f"{moment} {text}\n")  # the disk may be what the warning is about
