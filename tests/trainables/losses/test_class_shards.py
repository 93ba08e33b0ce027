"""Is the seam for several ranks sound: do shards of classes give what all classes give?

Each shard runs in a thread of its own with a reducer that meets the others at a barrier, as an
all-reduce would.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import Tensor

from trainables.losses.anchor_core import anchor_scores
from trainables.losses.blocks import ALONE, Budget, Reducer, Segment
from trainables.losses.class_core import class_scores
from trainables.losses.class_rule import Rule

N, DIM, K = 10, 6, 3


class Meeting:
    """All-reduce among threads; `rank` gives each its own reducer."""

    def __init__(self, ranks: int) -> None:
        self._barrier = threading.Barrier(ranks, timeout=20)
        self._parts: list[Tensor] = [torch.empty(0)] * ranks

    def combine_(self, rank: int, partial: Tensor, how: Callable[[Tensor], Tensor]) -> None:
        self._parts[rank] = partial.clone()
        self._barrier.wait()
        result = how(torch.stack(self._parts))
        self._barrier.wait()
        partial.copy_(result)


class Rank:
    def __init__(self, meeting: Meeting, rank: int) -> None:
        self._meeting, self._rank = meeting, rank

    def maximum_(self, partial: Tensor) -> None:
        self._meeting.combine_(self._rank, partial, lambda parts: parts.amax(dim=0))

    def sum_(self, partial: Tensor) -> None:
        self._meeting.combine_(self._rank, partial, lambda parts: parts.sum(dim=0))


Loss = Callable[[Tensor, Tensor, list[Segment], Reducer], Tensor]


def class_loss(rule: Rule, scale: float) -> Loss:
    def loss(x: Tensor, y: Tensor, segments: list[Segment], reducer: Reducer) -> Tensor:
        budget = Budget(keep_bytes=2**30 if reducer is ALONE else 0, block_bytes=200)
        scores = class_scores(
            x, y, segments, scale, rule=rule, with_total=True, budget=budget, reducer=reducer
        )
        value = torch.logaddexp(scores.negatives, scale * scores.positive)
        assert scores.total is not None
        value = (value - 0.9 * scale * scores.positive - 0.01 * scores.total).mean()
        return value if scores.spread is None else value + 0.1 * scores.spread

    return loss


def anchor_loss(x: Tensor, y: Tensor, segments: list[Segment], reducer: Reducer) -> Tensor:
    push, positive = anchor_scores(x, y, segments, alpha=32.0, delta=0.1, reducer=reducer)
    return push / N - positive.square().sum()


CASES: dict[str, tuple[Loss, bool]] = {
    "softmax": (class_loss(Rule(normalise=False), 1.0), False),
    "cosine": (class_loss(Rule(), 30.0), False),
    "circle": (class_loss(Rule(circle_margin=0.25), 64.0), False),
    "nearest of several": (class_loss(Rule(), 30.0), True),
    "soft centres": (class_loss(Rule(centre_temperature=0.1, with_spread=True), 20.0), True),
    "anchor": (anchor_loss, False),
}


@pytest.mark.parametrize("edges", [(0, 5, 10), (0, 1, 2, 10)])
@pytest.mark.parametrize("case", CASES)
def test_shards_equal_the_whole(case: str, edges: tuple[int, ...]) -> None:
    loss, several = CASES[case]
    generator = torch.Generator().manual_seed(0)
    shape = (N, K, DIM) if several else (N, DIM)
    proxies = torch.randn(*shape, dtype=torch.float64, generator=generator)
    x = torch.randn(8, DIM, dtype=torch.float64, generator=generator)
    y = torch.tensor([0, 0, 3, 7, 7, 9, 9, 9])  # the second shard of three holds no sample

    def run(first: int, last: int, reducer: Reducer) -> list[Tensor]:
        own_x = x.clone().requires_grad_()
        own_p = proxies[first:last].clone().requires_grad_()
        value = loss(own_x, y, [Segment(first, own_p)], reducer)
        return [value.detach(), *torch.autograd.grad(value, [own_x, own_p])]

    whole = run(0, N, ALONE)
    meeting = Meeting(len(edges) - 1)
    with ThreadPoolExecutor(len(edges) - 1) as pool:
        jobs = [
            pool.submit(run, first, last, Rank(meeting, rank))
            for rank, (first, last) in enumerate(itertools.pairwise(edges))
        ]
        parts = [job.result() for job in jobs]
    for value, of_x, _ in parts:
        torch.testing.assert_close(value, whole[0], rtol=1e-12, atol=0.0)
        torch.testing.assert_close(of_x, whole[1], rtol=1e-9, atol=1e-12)
    joined = torch.cat([of_p for _, _, of_p in parts])
    torch.testing.assert_close(joined, whole[2], rtol=1e-9, atol=1e-12)
