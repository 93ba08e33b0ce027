"""Margin loss: hinges on both sides of a boundary, fixed or learned."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from trainables.losses import build_loss

pytestmark = pytest.mark.split

X = torch.eye(2, dtype=torch.float64)[[0, 0, 1]]
Y = torch.tensor([0, 0, 1])


def margin_loss(**params: Any) -> Any:
    return build_loss("margin", n_classes=2, dim=2, **params).double()


@pytest.mark.parametrize(
    ("margin", "beta", "expected"),
    [
        # Two triplets; the positive distance is 0, the negative one sqrt(2).
        (0.2, 1.2, 0.0),  # no open hinge: 0.2 - 1.2 < 0 and 0.2 + 1.2 < sqrt(2)
        (0.5, 1.2, 0.5 + 1.2 - math.sqrt(2.0)),  # only the hinge of negatives is open
        (2.0, 1.0, (2.0 - 1.0 + 2.0 + 1.0 - math.sqrt(2.0)) / 2.0),  # both are open
    ],
)
def test_the_mean_over_open_hinges_of_a_known_batch(
    margin: float, beta: float, expected: float
) -> None:
    value = float(margin_loss(margin=margin, beta=beta)(X, Y))
    assert value == pytest.approx(expected, abs=1e-12)


def test_a_learned_boundary_is_a_parameter_with_a_penalty() -> None:
    fixed = margin_loss(margin=0.5, beta=1.25)
    learned = margin_loss(margin=0.5, beta=1.25, learn_beta=True, nu=0.1)
    assert list(fixed.parameters()) == []
    (beta,) = learned.parameters()
    value = learned(X, Y)
    assert float(value.detach()) == pytest.approx(float(fixed(X, Y)) + 0.1 * 1.25)
    (gradient,) = torch.autograd.grad(value, beta)
    assert float(gradient) == pytest.approx(1.0 + 0.1)  # the open hinges are those of negatives


def test_the_penalty_has_no_effect_on_a_fixed_boundary() -> None:
    assert margin_loss(margin=0.5, nu=0.1)(X, Y) == margin_loss(margin=0.5)(X, Y)
