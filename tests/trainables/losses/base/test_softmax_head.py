"""Softmax-type losses from class scores: margins, smoothing and the own class in the sum."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from tests.support.rank_pool import CPU
from trainables.distributed.world import SingleProcessWorld
from trainables.losses.base.classes import StepClasses
from trainables.losses.base.scale import SimilarityScale
from trainables.losses.base.softmax_head import SoftmaxHead
from trainables.losses.kernels.blocks import ProxySegment
from trainables.losses.kernels.mixture import EmbeddingBatch
from trainables.losses.kernels.options import SimilarityRule

pytestmark = pytest.mark.split

X = torch.tensor([[1.0, 2.0], [0.5, -1.0], [3.0, 0.0]], dtype=torch.float64)
PROXIES = torch.tensor([[1.0, 0.0], [0.0, 2.0], [-1.0, 1.0], [0.3, 0.2]], dtype=torch.float64)
Y = torch.tensor([1, 3, 0])
INNER_PRODUCTS = SimilarityRule(normalise=False)


def run_head(head: SoftmaxHead, proxies: Tensor = PROXIES, y: Tensor = Y) -> float:
    segments = [ProxySegment(0, proxies)]
    classes = StepClasses(segments, len(proxies), len(proxies), SingleProcessWorld(CPU))
    return float(head(EmbeddingBatch(X), y, classes))


def test_without_options_it_is_the_cross_entropy_of_torch() -> None:
    head = SoftmaxHead(SimilarityScale(1.5), rule=INNER_PRODUCTS)
    assert run_head(head) == pytest.approx(float(cross_entropy(1.5 * X @ PROXIES.T, Y)))


def test_smoothing_is_spread_over_the_wrong_classes_only() -> None:
    """torch gives the own class a share too: its smoothing of 0.4 is 0.3 here, with 4 classes."""
    head = SoftmaxHead(SimilarityScale(1.0), rule=INNER_PRODUCTS, label_smoothing=0.3)
    expected = cross_entropy(X @ PROXIES.T, Y, label_smoothing=0.4)
    assert run_head(head) == pytest.approx(float(expected))


def test_a_margin_changes_the_own_logit_only() -> None:
    head = SoftmaxHead(SimilarityScale(2.0), rule=INNER_PRODUCTS, positive=lambda s: s - 0.5)
    logits = 2.0 * X @ PROXIES.T
    logits[torch.arange(3), Y] -= 1.0
    assert run_head(head) == pytest.approx(float(cross_entropy(logits, Y)))


def test_the_own_class_may_be_left_out_of_the_sum() -> None:
    head = SoftmaxHead(SimilarityScale(1.0), rule=INNER_PRODUCTS, own_in_sum=False)
    logits = X @ PROXIES.T
    own = torch.nn.functional.one_hot(Y, 4).bool()
    expected = (logits.masked_fill(own, -torch.inf).logsumexp(dim=1) - logits[own]).mean()
    assert run_head(head) == pytest.approx(float(expected))


@pytest.mark.parametrize("label_smoothing", [0.0, 0.2])
def test_a_single_class_has_no_loss(label_smoothing: float) -> None:
    head = SoftmaxHead(SimilarityScale(5.0), label_smoothing=label_smoothing)
    assert run_head(head, PROXIES[:1], torch.zeros(3, dtype=torch.int64)) == 0


@pytest.mark.parametrize("label_smoothing", [-0.1, 1.0, math.nan])
def test_impossible_smoothing_is_refused(label_smoothing: float) -> None:
    with pytest.raises(ValueError, match="`0 <= label_smoothing < 1`"):
        SoftmaxHead(SimilarityScale(1.0), label_smoothing=label_smoothing)
