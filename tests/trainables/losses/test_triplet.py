"""Triplet loss: hard and semi-hard mining."""

from __future__ import annotations

import math

import pytest
import torch

from trainables.losses import build_loss

pytestmark = pytest.mark.split


def test_hard_triplets_of_a_known_batch() -> None:
    """Two samples on one axis, one at 60 degrees: distances 0, 1 and 1."""
    x = torch.tensor([[1.0, 0.0], [2.0, 0.0], [0.5, math.sqrt(0.75)]], dtype=torch.float64)
    y = torch.tensor([0, 0, 1])  # the third sample has no positive and is not an anchor
    loss = build_loss("triplet", n_classes=2, dim=2, margin=1.25)
    assert float(loss(x, y)) == pytest.approx(0.0 - 1.0 + 1.25)
    satisfied = build_loss("triplet", n_classes=2, dim=2, margin=0.5)
    assert float(satisfied(x, y)) == 0


def test_semihard_triplets_in_pieces_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(14, 4, generator=generator, dtype=torch.float64).requires_grad_()
    y = torch.tensor([0, 0, 0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 4])
    loss = build_loss("triplet", n_classes=5, dim=4, margin=0.3, mining="semihard")
    at_once = loss(x, y)
    (gradient,) = torch.autograd.grad(at_once, x)
    assert at_once > 0
    # Two positive pairs at a time.
    monkeypatch.setattr("trainables.losses.triplet.MAX_DISTANCES_PER_MINING_STEP", 30)
    pieces = loss(x, y)
    torch.testing.assert_close(pieces, at_once, rtol=1e-14, atol=0.0)
    torch.testing.assert_close(torch.autograd.grad(pieces, x)[0], gradient, rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("mining", ["hard", "semihard"])
def test_a_batch_without_triplets_has_a_zero_gradient(mining: str) -> None:
    x = torch.eye(3, requires_grad=True)
    value = build_loss("triplet", n_classes=3, dim=3, margin=0.3, mining=mining)(x, torch.arange(3))
    assert float(value.detach()) == 0
    (gradient,) = torch.autograd.grad(value, x)
    assert gradient.abs().max() == 0
