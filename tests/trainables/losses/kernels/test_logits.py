"""Logits of classes: values, derivatives, and exponentials that stay in range."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.support.loss_gradients import compute_loss_and_gradients
from trainables.losses import LOSSES, loss_params
from trainables.losses.kernels.blocks import LOG2_E, ProxyBlock, ScratchBuffers
from trainables.losses.kernels.logits import ClassLogits
from trainables.losses.kernels.options import SimilarityRule
from trainables.losses.kernels.own_entries import ListedEntries

pytestmark = pytest.mark.split

PROXY = [name for name, info in LOSSES.items() if info.family == "proxy"]
CLASSES, DIM = 300, 16

# Logits of hundreds: their differences overflow and underflow as exponentials in float32.
SHARP: dict[str, float] = {
    "alpha": 500.0,
    "gamma": 500.0,
    "lambda_": 500.0,
    "scale": 500.0,
    "temperature": 1 / 500,
}

Make = Callable[..., Any]

SIMILARITIES = torch.tensor([[0.9, -0.5, 0.2], [-0.1, 0.3, 0.6]], dtype=torch.float64)
OWN = (torch.tensor([0, 1]), torch.tensor([0, 2]))
BLOCK = ProxyBlock(0, 0, 3, ListedEntries(*OWN))


def make_logits(margin: float | None, scale: float = 50.0) -> tuple[ClassLogits, Tensor, Tensor]:
    """Return logits of the similarities above, these as stored, and the naive logits."""
    logits = ClassLogits(scale, SimilarityRule(circle_margin=margin), ScratchBuffers())
    if margin is None:
        return logits, SIMILARITIES * logits.unit, scale * SIMILARITIES
    naive = scale * (SIMILARITIES + margin).relu() * (SIMILARITIES - margin)
    return logits, SIMILARITIES.clamp(min=-margin), naive


@pytest.mark.parametrize("margin", [None, 0.25])
def test_logits_and_their_sums_are_those_of_the_definition(margin: float | None) -> None:
    logits, stored, naive = make_logits(margin)
    level = torch.tensor([10.0, 3.0], dtype=torch.float64)
    powers = logits.exp2_logits(stored, level, floored=False)
    torch.testing.assert_close(powers, torch.exp2(naive * LOG2_E - level[:, None]))
    wrong = naive.index_put(OWN, torch.tensor(0.0, dtype=torch.float64))
    torch.testing.assert_close(logits.sum_logits(stored, BLOCK), wrong.sum(dim=1))
    largest = naive.index_put(OWN, torch.tensor(-math.inf, dtype=torch.float64)).amax(dim=1)
    torch.testing.assert_close(logits.largest_logits(stored, BLOCK, None), largest * LOG2_E)


@pytest.mark.parametrize("margin", [None, 0.25, 0.0])
def test_slopes_are_the_derivatives_of_the_logits(margin: float | None) -> None:
    """Circle's weights [S + m]_+ are constants, so dz/dS is scale times the weight."""
    logits, stored, naive = make_logits(margin)
    g = torch.tensor([[0.0, 2.0, 3.0], [1.0, -1.0, 0.0]], dtype=torch.float64)
    torch.testing.assert_close(logits.scale_slopes(stored, g), (g * naive / 50.0).sum(dim=1))
    slopes = torch.ones_like(stored)
    logits.multiply_by_slope_(slopes, stored)
    expected = torch.ones_like(stored) if margin is None else (SIMILARITIES + margin).clamp(min=0.0)
    torch.testing.assert_close(slopes * logits.weight, expected)


def test_a_level_is_needed_only_for_large_scales_and_unbounded_logits() -> None:
    def is_levelled(scale: float, rule: SimilarityRule) -> bool:
        return ClassLogits(scale, rule, ScratchBuffers()).levelled

    assert not is_levelled(30.0, SimilarityRule())
    assert is_levelled(31.0, SimilarityRule())
    assert is_levelled(1.0, SimilarityRule(normalise=False))
    assert is_levelled(1.0, SimilarityRule(circle_margin=0.25))


def sharp_loss(name: str, make_loss: Make, dtype: torch.dtype) -> Any:
    # SoftTriple's gamma is the temperature of its centres.
    known = set(loss_params(name)) - ({"gamma"} if name == "soft_triple" else set())
    changed = {k: v for k, v in SHARP.items() if k in known}
    return make_loss(name, n_classes=CLASSES, dim=DIM, dtype=dtype, **changed)


def samples_on_proxies(loss: Any, classes: list[int]) -> Tensor:
    proxies: Tensor = loss.proxies.detach()[classes]
    return (proxies[:, 0] if proxies.dim() == 3 else proxies).clone()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", PROXY)
def test_the_order_of_the_classes_does_not_count(
    name: str, dtype: torch.dtype, make_loss: Make
) -> None:
    """The wrong class that a sample lies on comes last, or first."""
    loss = sharp_loss(name, make_loss, dtype)
    x, y = samples_on_proxies(loss, [299, 298, 0, 297]), torch.tensor([3, 4, 5, 297])
    value, of_x, of_proxies = compute_loss_and_gradients(loss, x, y)
    loss.proxies.data = loss.proxies.data.flip(0)
    other, of_same, of_flipped = compute_loss_and_gradients(loss, x, CLASSES - 1 - y)
    assert torch.isfinite(value)
    flipped, expected = [other, of_same, of_flipped.flip(0)], [value, of_x, of_proxies]
    rtol, atol = (2e-4, 1e-4) if dtype == torch.float32 else (1e-9, 1e-9)
    torch.testing.assert_close(flipped, expected, rtol=rtol, atol=atol)


@pytest.mark.parametrize("name", PROXY)
def test_samples_with_and_without_a_loss_in_one_batch(name: str, make_loss: Make) -> None:
    """Gradients that are almost zero, exactly zero and large agree with those of float64."""
    loss, wide = (sharp_loss(name, make_loss, dtype) for dtype in (torch.float32, torch.float64))
    wide.proxies.data.copy_(loss.proxies.data)
    own, other = samples_on_proxies(loss, [0, 1, 2]), samples_on_proxies(loss, [3, 4, 5])
    x = torch.cat([own, other, own + 0.8 * other])
    y = torch.arange(3).repeat(3)
    computed, expected = (
        compute_loss_and_gradients(loss, x, y),
        compute_loss_and_gradients(wide, x.double(), y),
    )
    largest = max(float(tensor.abs().max()) for tensor in expected)
    for narrow, exact in zip(computed, expected, strict=True):
        torch.testing.assert_close(narrow.double(), exact, rtol=2e-3, atol=1e-4 * largest)


@pytest.mark.parametrize("m", [1e-3, 1e-12, 1e-39, -1e-39, 1e-310])
def test_circle_with_a_tiny_margin_is_circle_without_a_margin(m: float, make_loss: Make) -> None:
    generator = torch.Generator().manual_seed(4)
    x, y = torch.randn(12, DIM, generator=generator), torch.arange(12)
    tiny, without = (
        make_loss("circle", n_classes=20, dim=DIM, dtype=torch.float32, m=margin)
        for margin in (m, 0.0)
    )
    rtol, atol = 1e-4 + 200 * abs(m), 1e-5 + 5 * abs(m)
    computed, expected = (
        compute_loss_and_gradients(tiny, x, y),
        compute_loss_and_gradients(without, x, y),
    )
    torch.testing.assert_close(computed, expected, rtol=rtol, atol=atol)
