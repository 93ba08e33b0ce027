"""SoftTriple: soft assignment to centres and the regulariser that merges them."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from trainables.losses import build_loss

pytestmark = pytest.mark.split

CENTRES = torch.tensor([[[1.0, 0.0], [0.0, 1.0]], [[-1.0, 0.0], [0.0, -1.0]]], dtype=torch.float64)
X, Y = torch.tensor([[3.0, 0.0]], dtype=torch.float64), torch.tensor([0])


def soft_triple(**changed: float) -> Any:
    params: dict[str, Any] = {"lambda_": 2.0, "gamma": 0.5, "tau": 0.0, "delta": 0.0, "centers": 2}
    loss = build_loss("soft_triple", n_classes=2, dim=2, **(params | changed)).double()
    loss.load_state_dict({"proxies": CENTRES})
    return loss


def pooled(cosines: Tensor, gamma: float) -> float:
    return float((torch.softmax(cosines / gamma, dim=0) * cosines).sum())


@pytest.mark.parametrize("gamma", [0.01, 0.5, 100.0])
def test_the_loss_of_a_known_sample(gamma: float) -> None:
    """Cosines 1 and 0 to the centres of the own class, -1 and 0 to those of the other."""
    own = pooled(torch.tensor([1.0, 0.0]), gamma)
    other = pooled(torch.tensor([-1.0, 0.0]), gamma)
    expected = math.log1p(math.exp(2.0 * (other - own)))
    assert float(soft_triple(gamma=gamma)(X, Y).detach()) == pytest.approx(expected)


def test_a_margin_lowers_the_own_logit() -> None:
    difference = pooled(torch.tensor([-1.0, 0.0]), 0.5) - pooled(torch.tensor([1.0, 0.0]), 0.5)
    expected = math.log1p(math.exp(2.0 * (difference + 0.3)))
    assert float(soft_triple(delta=0.3)(X, Y).detach()) == pytest.approx(expected)


def test_the_regulariser_is_the_mean_distance_of_the_centres() -> None:
    """Both classes have one pair of orthogonal centres: R = 2 sqrt(2) / (C K (K - 1))."""
    plain, regularised = (float(soft_triple(tau=tau)(X, Y).detach()) for tau in (0.0, 0.4))
    spread = 2.0 * math.sqrt(2.0 + 1e-5) / (2 * 2 * 1)
    assert regularised - plain == pytest.approx(0.4 * spread)


@pytest.mark.parametrize(("name", "value"), [("gamma", 0.0), ("tau", -0.1)])
def test_impossible_values_are_refused(name: str, value: float) -> None:
    with pytest.raises(ValueError, match=f"`{name} >.*{value}"):
        soft_triple(**{name: value})
