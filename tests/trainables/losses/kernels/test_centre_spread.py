"""Spread of the centres of each class, the regulariser of SoftTriple."""

from __future__ import annotations

import math

import pytest
import torch

from trainables.losses.kernels.blocks import inverse_norms
from trainables.losses.kernels.centre_spread import (
    SQUARED_DISTANCE_GUARD,
    add_spread_gradient,
    inner_products,
    sum_spread,
)

pytestmark = pytest.mark.split


def test_the_spread_of_orthogonal_and_equal_centres() -> None:
    centres = torch.tensor([[[2.0, 0.0], [0.0, 3.0]], [[1.0, 1.0], [2.0, 2.0]]]).double()
    spread = sum_spread(inner_products(centres), inverse_norms(centres))
    expected = math.sqrt(2.0 + SQUARED_DISTANCE_GUARD) + math.sqrt(SQUARED_DISTANCE_GUARD)
    assert float(spread) == pytest.approx(expected)


def test_the_gradient_is_that_of_autograd() -> None:
    generator = torch.Generator().manual_seed(0)
    centres = torch.randn(3, 4, 5, dtype=torch.float64, generator=generator, requires_grad=True)
    unit = torch.nn.functional.normalize(centres, dim=-1)
    rows, columns = torch.triu_indices(4, 4, offset=1)
    cosines = (unit[:, rows] * unit[:, columns]).sum(dim=-1)
    spread = (2.0 + SQUARED_DISTANCE_GUARD - 2.0 * cosines).sqrt().sum()
    (expected,) = torch.autograd.grad(0.7 * spread, centres)
    constant = centres.detach()
    less = torch.rand(3, 4, dtype=torch.float64, generator=generator)
    out = torch.ones_like(constant)
    factor = torch.tensor(0.7, dtype=torch.float64)
    products, inverse = inner_products(constant), inverse_norms(constant)
    add_spread_gradient(out, constant, products, inverse, factor, less)
    torch.testing.assert_close(out, 1.0 + expected - less[:, :, None] * constant)
