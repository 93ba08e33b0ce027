"""Shards of classes in threads, whose reducers synchronise at a barrier like an all-reduce."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from torch import Tensor

from trainables.losses.kernels.blocks import SINGLE_SHARD, ProxySegment, ShardReducer

ShardedLoss = Callable[[Tensor, Tensor, list[ProxySegment], ShardReducer], Tensor]


class ThreadReducer:
    """Reducer of one thread; all threads share the barrier and the list of parts."""

    def __init__(self, rank: int, parts: list[Tensor], barrier: threading.Barrier) -> None:
        self._rank, self._parts, self._barrier = rank, parts, barrier

    def all_reduce_max_(self, partial: Tensor) -> None:
        self._combine_(partial, lambda parts: parts.amax(dim=0))

    def all_reduce_sum_(self, partial: Tensor) -> None:
        self._combine_(partial, lambda parts: parts.sum(dim=0))

    def _combine_(self, partial: Tensor, combine: Callable[[Tensor], Tensor]) -> None:
        self._parts[self._rank] = partial.clone()
        self._barrier.wait()
        result = combine(torch.stack(self._parts))
        self._barrier.wait()
        partial.copy_(result)


def run_in_threads(function: Callable[[int, ShardReducer], Any], n_shards: int) -> list[Any]:
    """Return the results of `function(shard, reducer)`, each in a thread of its own."""
    parts = [torch.empty(0)] * n_shards
    barrier = threading.Barrier(n_shards, timeout=20)
    with ThreadPoolExecutor(n_shards) as pool:
        reducers = [ThreadReducer(rank, parts, barrier) for rank in range(n_shards)]
        jobs = [pool.submit(function, rank, reducer) for rank, reducer in enumerate(reducers)]
        return [job.result() for job in jobs]


def check_shards_equal_all_classes(
    loss: ShardedLoss, proxies: Tensor, x: Tensor, y: Tensor, edges: Sequence[int]
) -> None:
    """Check that shards of classes between `edges` give the loss and gradients of all classes."""

    def run(first: int, last: int, reducer: ShardReducer) -> list[Tensor]:
        own_x = x.clone().requires_grad_()
        own_p = proxies[first:last].clone().requires_grad_()
        value = loss(own_x, y, [ProxySegment(first, own_p)], reducer)
        return [value.detach(), *torch.autograd.grad(value, [own_x, own_p])]

    expected = run(0, len(proxies), SINGLE_SHARD)
    bounds = list(itertools.pairwise(edges))
    results = run_in_threads(lambda rank, reducer: run(*bounds[rank], reducer), len(bounds))
    for value, of_x, _ in results:
        torch.testing.assert_close(value, expected[0], rtol=1e-12, atol=0.0)
        torch.testing.assert_close(of_x, expected[1], rtol=1e-9, atol=1e-12)
    of_proxies = torch.cat([of_p for _, _, of_p in results])
    torch.testing.assert_close(of_proxies, expected[2], rtol=1e-9, atol=1e-12)
