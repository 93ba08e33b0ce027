"""Work for helper processes, in a module that they can import."""

from __future__ import annotations

import os
import time


def squared(parent: int, number: int) -> tuple[int, bool]:
    """The square, and whether a helper worked it out; slow enough for one to start meanwhile."""
    time.sleep(0.2)
    return number * number, os.getpid() != parent


def deadly(parent: int, number: int) -> int:
    """The number; a helper dies of it."""
    if os.getpid() != parent:
        os._exit(1)
    return number


def failing(parent: int, number: int) -> int:
    """Nothing good comes of it."""
    raise ArithmeticError(f"{parent} {number}")
