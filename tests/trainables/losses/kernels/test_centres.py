"""Similarity to classes with several proxies: nearest and soft choice, and their gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.support.loss_gradients import compute_loss_and_gradients
from trainables.losses.kernels.blocks import ScratchBuffers, inverse_norms
from trainables.losses.kernels.centres import pool_similarities, proxy_gradients
from trainables.losses.kernels.mixture import InterpolatedBatch

pytestmark = pytest.mark.split

Make = Callable[..., Any]


def random_tensors(n_proxies: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(4, 5, dtype=torch.float64, generator=generator)
    proxies = torch.randn(3, n_proxies, 5, dtype=torch.float64, generator=generator)
    return torch.nn.functional.normalize(x), proxies


def naive_pooling(x: Tensor, proxies: Tensor, temperature: float | None) -> Tensor:
    s = torch.einsum("bd,ckd->bck", x, torch.nn.functional.normalize(proxies, dim=-1))
    if temperature is None:
        return s.amax(dim=2)
    return (torch.softmax(s / temperature, dim=2) * s).sum(dim=2)


@pytest.mark.parametrize("n_proxies", [2, 3, 6])  # sums over up to 4 proxies are unrolled
@pytest.mark.parametrize("temperature", [None, 0.5, 0.01])  # 0.01 needs a shift
def test_pooled_similarities_and_their_gradients(temperature: float | None, n_proxies: int) -> None:
    x, proxies = random_tensors(n_proxies)
    buffers, factor = ScratchBuffers(), 7.0
    pooled = pool_similarities(
        InterpolatedBatch(x, None), proxies, inverse_norms(proxies), temperature, factor, buffers
    )
    expected = naive_pooling(x, proxies, temperature)
    torch.testing.assert_close(pooled.classes, factor * expected)
    assert (pooled.shift is None) == (temperature != 0.01)

    # The gradient of the similarities to proxies, by autograd on the naive formula.
    s = torch.einsum("bd,ckd->ckb", x, torch.nn.functional.normalize(proxies, dim=-1))
    s.requires_grad_()
    classes = (
        s.amax(dim=1)
        if temperature is None
        else (torch.softmax(s / temperature, dim=1) * s).sum(dim=1)
    )
    grad = torch.arange(1.0, 13.0, dtype=torch.float64).view(4, 3)
    (wanted,) = torch.autograd.grad(classes, s, grad.T)
    computed = proxy_gradients(grad, pooled, temperature, factor, buffers)
    torch.testing.assert_close(computed, wanted, rtol=1e-9, atol=1e-11)


def test_the_first_of_equally_near_proxies_gets_the_gradient() -> None:
    x = torch.eye(2, dtype=torch.float64)[:1]
    proxies = torch.tensor([[[1.0, 0.0], [2.0, 0.0], [0.0, 1.0]]], dtype=torch.float64)
    buffers = ScratchBuffers()
    pooled = pool_similarities(
        InterpolatedBatch(x, None), proxies, inverse_norms(proxies), None, 1.0, buffers
    )
    grad = torch.full((1, 1), 5.0, dtype=torch.float64)
    gradients = proxy_gradients(grad, pooled, None, 1.0, buffers)
    assert gradients.flatten().tolist() == [5.0, 0.0, 0.0]


@pytest.mark.parametrize("temperature", [1 / 60, 1 / 40, 1 / 30, 1 / 20])
def test_opposite_to_all_centres_of_the_own_class(temperature: float, make_loss: Make) -> None:
    """The exponentials of the assignment to centres and of the classes meet in one factor."""
    params = {"lambda_": 30.0, "gamma": temperature, "centers": 3}
    loss, wide = (
        make_loss("soft_triple", n_classes=5, dim=4, dtype=t, **params)
        for t in (torch.float32, torch.float64)
    )
    centres = torch.randn(5, 3, 4, generator=torch.Generator().manual_seed(2)) * 1e-3
    for number, towards in enumerate([-1.0, 1.0]):
        centres[number, :, 0] += towards
    centres[2:, :, 1] += 1.0
    loss.proxies.data, wide.proxies.data = centres, centres.double()
    x, y = torch.tensor([[1.0, 0.0, 0.0, 0.01]] * 2), torch.zeros(2, dtype=torch.int64)
    narrow, expected = (
        compute_loss_and_gradients(loss, x, y),
        compute_loss_and_gradients(wide, x.double(), y),
    )
    torch.testing.assert_close([t.double() for t in narrow], expected, rtol=1e-3, atol=1e-3)
