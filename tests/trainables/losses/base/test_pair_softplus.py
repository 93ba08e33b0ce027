"""Pair loss log(1 + sum over negatives * sum over positives) and its reductions."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from trainables.losses.base.pair_softplus import PairReduction, PairSoftplusLoss, UnifiedLogits
from trainables.losses.base.proxy_loss import LossSetup

pytestmark = pytest.mark.split

AXES = torch.eye(2, dtype=torch.float64)


def make_loss(reduction: PairReduction) -> PairSoftplusLoss:
    return PairSoftplusLoss(LossSetup(3, 2), UnifiedLogits(gamma=2.0, m=0.5), reduction=reduction)


@pytest.mark.parametrize(
    ("reduction", "expected"),
    [
        # Two anchors have a positive (cosine 1) and one negative (cosine 0); the third has none.
        ("valid", math.log1p(math.exp(2.0 * 0.5 - 2.0))),
        ("all", 2.0 / 3.0 * math.log1p(math.exp(2.0 * 0.5 - 2.0))),
        # One positive pair and two negative pairs in the batch.
        ("batch", math.log1p(2.0 * math.exp(2.0 * 0.5 - 2.0))),
    ],
)
def test_the_reductions_of_a_known_batch(reduction: PairReduction, expected: float) -> None:
    x, y = AXES[[0, 0, 1]], torch.tensor([0, 0, 1])
    assert float(make_loss(reduction)(x, y)) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("reduction", ["valid", "all", "batch"])
@pytest.mark.parametrize("labels", [[0, 0], [0, 1]], ids=["no negatives", "no positives"])
def test_a_batch_without_both_kinds_of_pairs_is_zero(
    labels: list[int], reduction: PairReduction
) -> None:
    x = AXES.clone().requires_grad_()
    value = make_loss(reduction)(x, torch.tensor(labels))
    assert float(value.detach()) == 0
    (gradient,) = torch.autograd.grad(value, x)
    assert gradient.abs().max() == 0


def test_impossible_values_are_refused() -> None:
    with pytest.raises(ValueError, match=r"`gamma > 0`.*-1"):
        UnifiedLogits(gamma=-1.0, m=0.5)
    wrong: Any = "sum"
    with pytest.raises(ValueError, match=r"`reduction`.*'sum'"):
        make_loss(wrong)
