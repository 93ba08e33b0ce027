"""Prefetching: results computed by threads ahead of their use, in order."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

import torch

T = TypeVar("T")


def prefetch_in_threads(compute: Callable[[int], T], count: int, *, workers: int) -> Iterator[T]:
    """Yield `compute(0)`, ..., `compute(count - 1)`, computed ahead in threads.

    Args:
        compute: Thread-safe function; each thread runs it with one thread of torch.
        count: Number of results.
        workers: Number of threads; each is at most one result ahead. 0 computes each result when
            it is asked for.

    An exception of `compute` is raised where its result would be yielded.
    """
    if workers < 1 or count < 2:
        for index in range(count):
            yield compute(index)
        return
    with ThreadPoolExecutor(workers, thread_name_prefix="prefetch") as pool:
        _limit_worker_threads(pool, workers)
        pending: deque[Future[T]] = deque()
        try:
            for index in range(count):
                while len(pending) <= workers and index + len(pending) < count:
                    pending.append(pool.submit(compute, index + len(pending)))
                yield pending.popleft().result()
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


def _limit_worker_threads(pool: ThreadPoolExecutor, workers: int) -> None:
    """Let each worker use one thread of torch; otherwise every small operation would start a team.

    torch keeps the number for the calling thread, and also as the default of new threads.
    """
    n_threads = torch.get_num_threads()
    barrier = threading.Barrier(workers + 1)

    def use_one_thread() -> None:
        torch.get_num_threads()  # a thread takes over the default in its first call of torch
        torch.set_num_threads(1)
        barrier.wait()

    for _ in range(workers):
        pool.submit(use_one_thread)
    barrier.wait()
    torch.set_num_threads(n_threads)
