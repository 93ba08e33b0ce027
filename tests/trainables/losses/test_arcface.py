"""ArcFace: values and exact gradients at and near angles of 0 and pi."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

from trainables.losses.arcface import AngularMargin

pytestmark = pytest.mark.split

Make = Callable[..., Any]


@pytest.mark.parametrize("angle", [0.2, 1.0, 2.0, 2.6])
def test_the_margin_is_added_to_the_angle(angle: float) -> None:
    own = AngularMargin(0.5)(torch.tensor(math.cos(angle), dtype=torch.float64))
    assert float(own) == pytest.approx(math.cos(angle + 0.5))


def test_beyond_pi_minus_m_the_logit_continues_to_fall() -> None:
    angles = torch.linspace(2.0, math.pi, 50, dtype=torch.float64)
    own = AngularMargin(0.5)(torch.cos(angles))
    assert float(own[-1]) == pytest.approx(-1.0 - 0.5 * math.sin(0.5))
    assert (own.diff() < 0).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_samples_on_and_opposite_their_proxy(dtype: torch.dtype, make_loss: Make) -> None:
    """At angles of exactly 0 and pi the value is that of the formula, the gradient finite."""
    loss = make_loss("arcface", gamma=4.0, m=0.5, n_classes=3, dim=3, dtype=dtype)
    loss.proxies.data = torch.eye(3, dtype=dtype)
    for sign, own in ((1.0, math.cos(0.5)), (-1.0, -1.0 - 0.5 * math.sin(0.5))):
        x = (sign * torch.eye(3, dtype=dtype)[:1]).requires_grad_()
        value = loss(x, torch.tensor([0]))
        expected = math.log1p(2.0 * math.exp(-4.0 * own))
        assert math.isclose(float(value.detach()), expected, rel_tol=4 * torch.finfo(dtype).eps)
        for gradient in torch.autograd.grad(value, [x, loss.proxies]):
            assert torch.isfinite(gradient).all()


def test_the_gradient_is_exact(make_loss: Make) -> None:
    """d cos(t + m) / dt = -sin(t + m), also close to t = 0 where 1 / sin(t) is large."""
    loss = make_loss("arcface", gamma=1.0, m=0.5, n_classes=2, dim=3)
    for angle in (1e-3, 0.3, 1.0, 2.5):
        loss.proxies.data = torch.tensor([[1.0, 0, 0], [0, 0, 1.0]], dtype=torch.float64)
        t = torch.tensor(angle, dtype=torch.float64, requires_grad=True)
        x = torch.stack([t.cos(), t.sin(), torch.zeros_like(t)])[None]
        value = loss(x, torch.tensor([0]))
        (slope,) = torch.autograd.grad(value, t)
        share = 1.0 - torch.exp(-value.detach())
        expected = share * torch.sin(torch.tensor(angle + 0.5, dtype=torch.float64))
        torch.testing.assert_close(slope, expected, rtol=1e-6, atol=0.0)


@pytest.mark.parametrize("m", [-0.1, 2.0])
def test_a_margin_in_degrees_is_refused(m: float) -> None:
    with pytest.raises(ValueError, match=f"radians.*{m}"):
        AngularMargin(m)
