"""Classes of a rank: initial proxies and sampled classes do not depend on who holds them."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from tests.support.rank_pool import CPU, RankPool
from trainables.distributed.world import SingleProcessWorld, World, rank_slice
from trainables.losses.base.classes import draw_initial_proxies, fetch_proxies, sample_classes

pytestmark = pytest.mark.xdist_group("ranks")


@pytest.mark.parametrize("n_classes", [5, 4096, 9000])
def test_initial_proxies_do_not_depend_on_the_ranks(n_classes: int) -> None:
    complete = draw_initial_proxies(n_classes, (3,), slice(0, n_classes), seed=8)
    parts = [
        draw_initial_proxies(n_classes, (3,), rank_slice(n_classes, r, 3), seed=8) for r in range(3)
    ]
    assert torch.equal(torch.cat(parts), complete)
    assert len(torch.unique(complete[:, 0])) == n_classes
    assert float(complete.norm(dim=1).square().mean()) == pytest.approx(1, rel=0.7)


def test_sampled_classes_do_not_depend_on_the_ranks() -> None:
    labels = torch.tensor([3, 8999, 4096])
    complete = sample_classes(labels, 9000, slice(0, 9000), 0.2, seed=(1, 2))
    parts = []
    for rank in range(3):
        own = rank_slice(9000, rank, 3)
        parts.append(sample_classes(labels, 9000, own, 0.2, seed=(1, 2)) + own.start)
    assert torch.equal(torch.cat(parts), complete)
    assert set(labels.tolist()) <= set(complete.tolist())
    assert len(complete) == pytest.approx(1800, rel=0.1)
    assert not torch.equal(complete, sample_classes(labels, 9000, slice(0, 9000), 0.2, seed=(1, 3)))


def test_a_batch_of_one_class_gets_another_class() -> None:
    for seed in range(20):
        labels = torch.tensor([4, 4])
        complete = sample_classes(labels, 9, slice(0, 9), 0.01, seed=(seed, 1))
        parts = [
            sample_classes(labels, 9, rank_slice(9, rank, 2), 0.01, seed=(seed, 1))
            + rank_slice(9, rank, 2).start
            for rank in range(2)
        ]
        assert len(complete) >= 2
        assert torch.equal(torch.cat(parts), complete)


def fetch_with_gradient(world: World, classes: list[int]) -> tuple[Tensor, Tensor]:
    """Fetch rows of a sharded matrix; each rank weighs them by its number plus one."""
    matrix = torch.arange(10.0).view(5, 2)
    own = rank_slice(5, world.rank, world.size)
    proxies = matrix[own].clone().requires_grad_()
    rows = fetch_proxies(proxies, torch.tensor(classes), own, world)
    (gradient,) = torch.autograd.grad((world.rank + 1) * rows.sum(), proxies)
    return rows.detach(), gradient


@pytest.mark.parametrize("size", [1, 2, 3])
def test_fetched_proxies_are_the_same_on_all_ranks(size: int, rank_pool: RankPool) -> None:
    classes = [4, 0, 3]
    results = (
        [fetch_with_gradient(SingleProcessWorld(CPU), classes)]
        if size == 1
        else rank_pool.run(size, fetch_with_gradient, classes)
    )
    for rows, _ in results:
        assert torch.equal(rows, torch.tensor([[8.0, 9.0], [0.0, 1.0], [6.0, 7.0]]))
    gradient = torch.cat([gradient for _, gradient in results])
    total_weight = sum(range(1, size + 1))
    assert (gradient / total_weight).tolist() == [[1, 1], [0, 0], [0, 0], [1, 1], [1, 1]]
