"""Backward of the class scores: factors that stay in range, and unused gradients."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.support.loss_gradients import compute_loss_and_gradients
from trainables.losses import build_loss
from trainables.losses.kernels.blocks import ProxySegment
from trainables.losses.kernels.class_scores import compute_class_scores
from trainables.losses.kernels.options import SimilarityRule

pytestmark = pytest.mark.split

CLASSES, DIM = 300, 16


@pytest.mark.parametrize("length", [1e-15, 1e15])
def test_proxies_of_any_length(length: float) -> None:
    """Everything that is folded into one factor stays in the range of float32."""
    generator = torch.Generator().manual_seed(4)
    x, y = torch.randn(12, DIM, generator=generator), torch.arange(12)
    plain: Any = build_loss("norm_softmax", n_classes=CLASSES, dim=DIM, temperature=1 / 29)
    value, of_x, of_proxies = compute_loss_and_gradients(plain, x, y)
    plain.proxies.data *= length
    same, of_same, of_long = compute_loss_and_gradients(plain, x, y)
    torch.testing.assert_close(same, value)
    torch.testing.assert_close(of_same, of_x)
    torch.testing.assert_close(of_long * length, of_proxies)


@pytest.mark.parametrize("score", ["negatives", "positive", "total"])
def test_gradients_of_a_single_score(score: str) -> None:
    """A loss may use any subset of the scores; gradcheck compares with differences."""
    generator = torch.Generator().manual_seed(2)
    x = torch.randn(4, 3, dtype=torch.float64, generator=generator, requires_grad=True)
    proxies = torch.randn(5, 3, dtype=torch.float64, generator=generator, requires_grad=True)
    scale = torch.tensor(3.0, dtype=torch.float64, requires_grad=True)
    y = torch.tensor([0, 4, 1, 1])

    def function(x: Any, proxies: Any, scale: Any) -> Any:
        segments = [ProxySegment(0, proxies)]
        scores = compute_class_scores(x, y, segments, scale, rule=SimilarityRule(), with_total=True)
        return getattr(scores, score)

    assert torch.autograd.gradcheck(function, (x, proxies, scale))


def test_frozen_proxies_get_no_gradient() -> None:
    generator = torch.Generator().manual_seed(2)
    x = torch.randn(4, 3, generator=generator, requires_grad=True)
    frozen, trained = (torch.randn(2, 3, generator=generator) for _ in range(2))
    trained.requires_grad_()
    segments = [ProxySegment(0, frozen), ProxySegment(2, trained)]
    y = torch.tensor([0, 1, 2, 3])
    scores = compute_class_scores(x, y, segments, 5.0, rule=SimilarityRule())
    torch.autograd.backward((scores.negatives - scores.positive).sum())
    assert frozen.grad is None
    assert trained.grad is not None
    assert trained.grad.abs().sum() > 0
