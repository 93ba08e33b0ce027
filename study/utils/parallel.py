"""How is work of some seconds shared by the cores of a machine?"""

from __future__ import annotations

import os
import pickle
import struct
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Sequence
from threading import Thread
from typing import Any, BinaryIO, TypeVar

from study.processes import module, surroundings

T = TypeVar("T")
R = TypeVar("R")

MOST = 7
"""More helpers than this cost more memory than time is left to save."""

_LENGTH = struct.Struct(">Q")


def each(function: Callable[[T], R], items: Sequence[T], *, helpers: int | None = None) -> list[R]:
    """The function's results in the order of the items, by this process and some helpers.

    A helper is a Python of its own, started afresh: a fork would inherit the locks of other
    threads, and multiprocessing's spawn would run the caller's script again. Where none can be
    started, or one dies, this process does the work; what comes out is the same.

    Args:
        function: Of a module that helpers can import (or a partial of one), as its arguments and
            results are.
        items: One call each.
        helpers: How many; None for one less than the cores there are.
    """
    wanted = cores() - 1 if helpers is None else helpers
    pending, results = deque(enumerate(items)), dict[int, R]()
    threads = []
    for _ in range(min(wanted, len(items) - 1, MOST)):
        thread = Thread(target=_delegate, args=(function, pending, results), daemon=True)
        thread.start()
        threads.append(thread)
    _work(function, pending, results)
    for thread in threads:
        thread.join()
    _work(function, pending, results)  # what a helper left undone
    return [results[i] for i in range(len(items))]


def cores() -> int:
    """The cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _work(function: Callable[[T], R], pending: deque[tuple[int, T]], results: dict[int, R]) -> None:
    while pending:
        try:
            i, item = pending.popleft()
        except IndexError:  # a helper was faster
            return
        results[i] = function(item)


def _delegate(
    function: Callable[[T], R], pending: deque[tuple[int, T]], results: dict[int, R]
) -> None:
    """Let a helper do items as long as there are some and it lives."""
    try:
        process = _start()
    except (OSError, ValueError):
        return
    assert process.stdin is not None
    assert process.stdout is not None
    with process:
        try:
            _send(process.stdin, function)
            while pending:
                i, item = pending.popleft()
                try:
                    _send(process.stdin, item)
                    results[i] = _receive(process.stdout)
                except BaseException:
                    pending.append((i, item))
                    raise
        except (OSError, EOFError, IndexError, AttributeError, pickle.PickleError):
            process.kill()


def _start() -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        module("study.workers"),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=surroundings(OMP_NUM_THREADS="1"),
    )


def _send(stream: BinaryIO | Any, content: object) -> None:
    data = pickle.dumps(content, protocol=pickle.HIGHEST_PROTOCOL)
    stream.write(_LENGTH.pack(len(data)))
    stream.write(data)
    stream.flush()


def _receive(stream: BinaryIO | Any) -> Any:
    """The next object; nobody but the process at the other end of the pipe can have sent it."""
    head = stream.read(_LENGTH.size)
    if len(head) < _LENGTH.size:
        raise EOFError
    data = stream.read(_LENGTH.unpack(head)[0])
    return pickle.loads(data)


def _serve() -> None:
    """Be a helper: a function first, then its arguments, until there are no more.

    An error ends it: whoever sent the argument tries it himself, and sees the error as his own.
    """
    replies = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what the work prints must not pass for a result
    function = _receive(sys.stdin.buffer)
    while True:
        try:
            item = _receive(sys.stdin.buffer)
        except EOFError:
            return
        _send(replies, function(item))


if __name__ == "__main__":
    _serve()
