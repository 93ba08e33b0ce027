"""Functions that helper processes import and run."""

from __future__ import annotations

import os
import time
from pathlib import Path


def square_number(parent: int, number: int) -> tuple[int, bool]:
    """Return the square and whether a helper process computed it."""
    _wait_for_helper()
    return number * number, os.getpid() != parent


def get_process_id(_: int) -> int:
    """Return the id of the current process."""
    _wait_for_helper()
    return os.getpid()


def get_thread_limit(_: int) -> tuple[int, str | None]:
    """Return the id of the current process and its number of OpenMP threads."""
    _wait_for_helper()
    return os.getpid(), os.environ.get("OMP_NUM_THREADS")


def announce_and_sleep(folder: str) -> None:
    """Create a file named by the process id and sleep for ten minutes."""
    (Path(folder) / str(os.getpid())).touch()
    time.sleep(600)


def _wait_for_helper() -> None:
    """Sleep long enough for a helper to start."""
    time.sleep(0.2)


def exit_in_helper(parent: int, number: int) -> int:
    """Return the number; exit if the process is a helper."""
    if os.getpid() != parent:
        os._exit(1)
    return number


def raise_error(parent: int, number: int) -> int:
    """Raise an error."""
    raise ArithmeticError(f"{parent} {number}")
