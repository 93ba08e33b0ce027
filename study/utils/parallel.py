"""Parallel map over the cores of one machine, for work of some seconds.

Helper processes come from loky, the process pool of joblib. They stay alive for some seconds, so
that a second call need not start them again.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from threading import Thread
from typing import TypeVar

from study.utils.environment import temporary_environment

T = TypeVar("T")
R = TypeVar("R")

MAX_HELPERS = 7
"""Further helpers would cost more memory than they save time."""


def parallel_map(
    function: Callable[[T], R], items: Sequence[T], *, helpers: int | None = None
) -> list[R]:
    """Apply a function to every item, in this process and some helpers; keep the order.

    Helpers are new interpreters with one BLAS thread: a fork would inherit locks of other threads,
    and multiprocessing's spawn would import the caller's script again. If a helper cannot be
    started, dies or raises, this process computes its item; results and errors are therefore the
    same as without helpers.

    Args:
        function: Picklable function, as are its arguments and results.
        items: Arguments, one per call.
        helpers: Number of helper processes; None for one less than the available cores.
    """
    wanted = count_cores() - 1 if helpers is None else helpers
    n_helpers = min(wanted, len(items) - 1, MAX_HELPERS)
    pending, results = deque(enumerate(items)), dict[int, R]()
    if n_helpers > 0:
        _share_pending(function, pending, results, n_helpers)
    _process_pending(function, pending, results)
    return [results[i] for i in range(len(items))]


def count_cores() -> int:
    """Return the number of cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _share_pending(
    function: Callable[[T], R], pending: deque[tuple[int, T]], results: dict[int, R], n_helpers: int
) -> None:
    """Process items in helpers and in this process; leaves those that a helper failed on."""
    from joblib.externals.loky import get_reusable_executor

    # Helpers and loky's own service processes must not import from the current directory.
    with temporary_environment({"PYTHONSAFEPATH": "1"}):
        executor = get_reusable_executor(max_workers=n_helpers, env={"OMP_NUM_THREADS": "1"})
        # One item at a time per helper: the rest stays available to this process.
        arguments = (executor, function, pending, results)
        threads = [
            Thread(target=_delegate_pending, args=arguments, daemon=True) for _ in range(n_helpers)
        ]
        try:
            for thread in threads:
                thread.start()
            _process_pending(function, pending, results)
            for thread in threads:
                thread.join()
        except BaseException:
            executor.shutdown(wait=False, kill_workers=True)
            raise


def _process_pending(
    function: Callable[[T], R], pending: deque[tuple[int, T]], results: dict[int, R]
) -> None:
    while pending:
        try:
            i, item = pending.popleft()
        except IndexError:  # a helper was faster
            return
        results[i] = function(item)


def _delegate_pending(
    executor: Executor,
    function: Callable[[T], R],
    pending: deque[tuple[int, T]],
    results: dict[int, R],
) -> None:
    """Send items to a helper while there are some; return a failed one to the others."""
    while pending:
        try:
            i, item = pending.popleft()
        except IndexError:  # another process was faster
            return
        try:
            results[i] = executor.submit(function, item).result()
        except BaseException:  # Ctrl-C interrupts the helpers as well
            pending.append((i, item))
            return
