"""Proxy-Anchor: known batches and the classes that are absent from a batch."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

pytestmark = pytest.mark.split

Make = Callable[..., Any]


def test_a_known_batch(make_loss: Make) -> None:
    """Two embeddings and three proxies on the axes: every cosine is 0 or 1."""
    loss = make_loss("proxy_anchor", alpha=32.0, delta=0.1, n_classes=3, dim=3)
    loss.proxies.data = 5.0 * torch.eye(3, dtype=torch.float64)
    x = 2.0 * torch.eye(3, dtype=torch.float64)[:2]
    value = loss(x, torch.tensor([0, 0])).item()
    # Class 0: positives at cosine 1 and 0. Negatives: none, then (0, 1), then (0, 0).
    pull = math.log1p(math.exp(-32 * 0.9) + math.exp(32 * 0.1))
    push = (
        math.log1p(math.exp(32 * 0.1) + math.exp(32 * 1.1)) + math.log1p(2 * math.exp(32 * 0.1))
    ) / 3
    assert math.isclose(value, pull + push, rel_tol=1e-12)


def test_absent_classes_push_but_do_not_pull(make_loss: Make) -> None:
    """An absent class far from the batch adds only its push, divided by all classes."""
    x, y = torch.eye(3, dtype=torch.float64)[:2], torch.tensor([0, 1])
    few, many = (make_loss("proxy_anchor", n_classes=n, dim=3, alpha=8.0) for n in (2, 3))
    few.proxies.data = torch.eye(3, dtype=torch.float64)[:2]
    many.proxies.data = torch.eye(3, dtype=torch.float64)
    pull = math.log1p(math.exp(-8.0 * 0.9))
    push = math.log1p(math.exp(8.0 * 0.1))
    absent_push = math.log1p(2.0 * math.exp(8.0 * 0.1))
    assert float(few(x, y).detach()) == pytest.approx(pull + push)
    assert float(many(x, y).detach()) == pytest.approx(pull + (2 * push + absent_push) / 3)


@pytest.mark.parametrize("alpha", [0.0, -32.0])
def test_alpha_must_be_positive(alpha: float, make_loss: Make) -> None:
    with pytest.raises(ValueError, match=f"`alpha > 0`.*{alpha}"):
        make_loss("proxy_anchor", alpha=alpha)
