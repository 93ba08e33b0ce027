"""Scores of Proxy-Anchor: a naive oracle, shards of classes and float32 range."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from tests.support.thread_shards import check_shards_equal_all_classes
from trainables.losses import build_loss
from trainables.losses.kernels.anchor_scores import compute_anchor_scores
from trainables.losses.kernels.blocks import MemoryBudget, ProxySegment, ShardReducer

pytestmark = pytest.mark.split

N, DIM = 10, 6


def anchor_loss(
    x: Tensor, y: Tensor, segments: list[ProxySegment], reducer: ShardReducer
) -> Tensor:
    push, positive = compute_anchor_scores(x, y, segments, alpha=32.0, delta=0.1, reducer=reducer)
    return push / N - positive.square().sum()


def random_tensors() -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    proxies = torch.randn(N, DIM, dtype=torch.float64, generator=generator)
    x = torch.randn(8, DIM, dtype=torch.float64, generator=generator)
    return proxies, x, torch.tensor([0, 0, 3, 7, 7, 9, 9, 9])


@pytest.mark.parametrize("edges", [(0, 5, 10), (0, 1, 2, 10)])
def test_shards_equal_all_classes(edges: tuple[int, ...]) -> None:
    """The second shard of three has no sample."""
    check_shards_equal_all_classes(anchor_loss, *random_tensors(), edges)


@pytest.mark.parametrize("alpha", [4.0, 200.0])  # without and with a level
def test_the_scores_are_those_of_the_definition(alpha: float) -> None:
    proxies, x, y = random_tensors()
    segments = [ProxySegment(0, proxies[:4]), ProxySegment(4, proxies[4:])]
    budget = MemoryBudget(block_bytes=200)
    push, positive = compute_anchor_scores(x, y, segments, alpha=alpha, delta=0.2, budget=budget)
    unit = torch.nn.functional.normalize
    cosines = unit(x) @ unit(proxies).T
    own = torch.nn.functional.one_hot(y, N).bool()
    terms = (alpha * (cosines + 0.2)).masked_fill(own, -torch.inf)
    with_one = torch.cat([terms, torch.zeros(1, N, dtype=x.dtype)])  # the 1 in log(1 + sum)
    torch.testing.assert_close(push, with_one.logsumexp(dim=0).sum())
    torch.testing.assert_close(positive, cosines[own])


def test_large_alphas_stay_finite_in_float32() -> None:
    proxies, _, y = random_tensors()
    own = proxies[y].float().requires_grad_()
    segments = [ProxySegment(0, proxies.float().requires_grad_())]
    push, positive = compute_anchor_scores(own, y, segments, alpha=1000.0, delta=0.5)
    assert torch.isfinite(push)
    gradients = torch.autograd.grad(push + positive.sum(), [own, segments[0].proxies])
    assert all(torch.isfinite(gradient).all() for gradient in gradients)


def test_a_second_derivative_is_an_error() -> None:
    loss = build_loss("proxy_anchor", n_classes=5, dim=4, alpha=32.0, delta=0.1)
    x = torch.randn(6, 4, generator=torch.Generator().manual_seed(0)).requires_grad_()
    value = loss(x, torch.arange(6) % 5)
    (gradient,) = torch.autograd.grad(value, x, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        torch.autograd.backward(gradient.sum())
