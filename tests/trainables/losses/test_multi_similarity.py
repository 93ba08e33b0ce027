"""Multi-Similarity loss: a known batch and its pair mining."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from trainables.losses import build_loss

pytestmark = pytest.mark.split

AXES = torch.eye(2, dtype=torch.float64)


def multi_similarity(**changed: Any) -> Any:
    params: dict[str, Any] = {"alpha": 2.0, "beta": 10.0, "base": 0.5}
    return build_loss("multi_similarity", n_classes=2, dim=2, **(params | changed))


def test_a_known_batch_without_mining() -> None:
    """Cosines are 1 for the positive pair and 0 for the negative pairs."""
    loss = multi_similarity(mining="none")
    pull = math.log1p(math.exp(-2.0 * 0.5)) / 2.0
    push_of_one = math.log1p(math.exp(-10.0 * 0.5)) / 10.0
    push_of_two = math.log1p(2.0 * math.exp(-10.0 * 0.5)) / 10.0
    value = float(loss(AXES[[0, 0, 1]], torch.tensor([0, 0, 1])))
    assert value == pytest.approx((2 * (pull + push_of_one) + push_of_two) / 3)


@pytest.mark.parametrize(("epsilon", "is_mined"), [(0.9, False), (1.1, True)])
def test_mining_keeps_pairs_within_epsilon_of_the_hardest(epsilon: float, is_mined: bool) -> None:
    """The cosines of positive and negative pairs differ by 1."""
    x, y = AXES[[0, 0, 1, 1]].clone().requires_grad_(), torch.tensor([0, 0, 1, 1])
    value = float(multi_similarity(epsilon=epsilon)(x, y).detach())
    all_pairs = float(multi_similarity(mining="none")(x, y).detach())
    assert value == pytest.approx(all_pairs if is_mined else 0.0)


@pytest.mark.parametrize("name", ["alpha", "beta"])
def test_sharpness_must_be_positive(name: str) -> None:
    with pytest.raises(ValueError, match=f"`{name} > 0`.*0"):
        multi_similarity(**{name: 0.0})
