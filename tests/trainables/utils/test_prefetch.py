"""Results computed ahead by threads come in order, and errors where their result would."""

from __future__ import annotations

import threading

import pytest
import torch

from trainables.utils.prefetch import prefetch_in_threads


@pytest.mark.parametrize("workers", [0, 1, 3])
@pytest.mark.parametrize("count", [0, 1, 2, 10])
def test_results_are_in_order(workers: int, count: int) -> None:
    squares = prefetch_in_threads(lambda i: i * i, count, workers=workers)
    assert list(squares) == [i * i for i in range(count)]


def test_results_are_computed_ahead_but_not_too_far() -> None:
    started: list[int] = []
    second = threading.Event()

    def compute(index: int) -> int:
        started.append(index)
        if index == 1:
            second.set()
        return index

    results = prefetch_in_threads(compute, 100, workers=1)
    assert next(results) == 0
    assert second.wait(10), "the next result is computed while this one is used"
    assert max(started) <= 1
    results.close()  # type: ignore[attr-defined]
    assert len(started) < 10


def test_an_error_is_raised_where_its_result_would_be() -> None:
    def compute(index: int) -> int:
        if index == 2:
            raise OSError("unreadable")
        return index

    results = prefetch_in_threads(compute, 5, workers=2)
    assert [next(results), next(results)] == [0, 1]
    with pytest.raises(OSError, match="unreadable"):
        next(results)


def test_workers_use_one_thread_and_the_caller_keeps_its_own() -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        used = list(prefetch_in_threads(lambda _: torch.get_num_threads(), 6, workers=2))
        assert used == [1] * 6
        assert torch.get_num_threads() == 2
        default: list[int] = []
        thread = threading.Thread(target=lambda: default.append(torch.get_num_threads()))
        thread.start()
        thread.join()
        assert default == [2], "threads that start later keep the default"
    finally:
        torch.set_num_threads(before)
