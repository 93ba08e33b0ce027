"""Small matrices want one thread."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

from threadpoolctl import threadpool_limits

P = ParamSpec("P")
R = TypeVar("R")


def one_thread(function: Callable[P, R]) -> Callable[P, R]:
    """Run with one thread in linear algebra, whatever the machine has.

    With matrices of some hundred rows more threads take five times as long, and the last digits
    would depend on how many there are.
    """

    @wraps(function)
    def calm(*args: P.args, **kwargs: P.kwargs) -> R:
        with threadpool_limits(limits=1):
            return function(*args, **kwargs)

    return calm
