"""Scores of softmax-type losses: a naive oracle, interpolated samples and shards of classes."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from tests.support.thread_shards import ShardedLoss, check_shards_equal_all_classes
from trainables.losses import build_loss
from trainables.losses.kernels.blocks import SINGLE_SHARD, MemoryBudget, ProxySegment, ShardReducer
from trainables.losses.kernels.class_scores import compute_class_scores
from trainables.losses.kernels.mixture import InterpolatedSamples
from trainables.losses.kernels.options import SimilarityRule

pytestmark = pytest.mark.split

N, DIM, K = 10, 6, 3


def class_loss(rule: SimilarityRule, scale: float) -> ShardedLoss:
    """Return a loss of all scores; several shards keep no similarities for backward."""

    def loss(x: Tensor, y: Tensor, segments: list[ProxySegment], reducer: ShardReducer) -> Tensor:
        budget = MemoryBudget(keep_bytes=2**30 if reducer is SINGLE_SHARD else 0, block_bytes=200)
        scores = compute_class_scores(
            x, y, segments, scale, rule=rule, with_total=True, budget=budget, reducer=reducer
        )
        value = torch.logaddexp(scores.negatives, scale * scores.positive)
        assert scores.total is not None
        value = (value - 0.9 * scale * scores.positive - 0.01 * scores.total).mean()
        return value if scores.spread is None else value + 0.1 * scores.spread

    return loss


CASES: dict[str, tuple[ShardedLoss, bool]] = {
    "softmax": (class_loss(SimilarityRule(normalise=False), 1.0), False),
    "cosine": (class_loss(SimilarityRule(), 30.0), False),
    "circle": (class_loss(SimilarityRule(circle_margin=0.25), 64.0), False),
    "nearest of several": (class_loss(SimilarityRule(), 30.0), True),
    "soft centres": (
        class_loss(SimilarityRule(centre_temperature=0.1, with_spread=True), 20.0),
        True,
    ),
}


@pytest.mark.parametrize("edges", [(0, 5, 10), (0, 1, 2, 10)])
@pytest.mark.parametrize("case", CASES)
def test_shards_equal_all_classes(case: str, edges: tuple[int, ...]) -> None:
    loss, several = CASES[case]
    generator = torch.Generator().manual_seed(0)
    shape = (N, K, DIM) if several else (N, DIM)
    proxies = torch.randn(*shape, dtype=torch.float64, generator=generator)
    x = torch.randn(8, DIM, dtype=torch.float64, generator=generator)
    y = torch.tensor([0, 0, 3, 7, 7, 9, 9, 9])  # the second shard of three has no sample
    check_shards_equal_all_classes(loss, proxies, x, y, edges)


def random_batch(n_proxies: int) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(5, DIM, dtype=torch.float64, generator=generator)
    proxies = torch.randn(n_proxies, DIM, dtype=torch.float64, generator=generator)
    return x, torch.tensor([0, 2, 2, 1, 3]), proxies


def test_the_scores_are_those_of_the_definition() -> None:
    x, y, proxies = random_batch(4)
    segments = [ProxySegment(0, proxies[:1]), ProxySegment(1, proxies[1:])]
    scores = compute_class_scores(x, y, segments, 7.0, rule=SimilarityRule(), with_total=True)
    unit = torch.nn.functional.normalize
    cosines = unit(x) @ unit(proxies).T
    own = torch.nn.functional.one_hot(y, 4).bool()
    wrong = (7.0 * cosines).masked_fill(own, -torch.inf)
    torch.testing.assert_close(scores.negatives, wrong.logsumexp(dim=1))
    torch.testing.assert_close(scores.positive, cosines[own])
    assert scores.total is not None
    torch.testing.assert_close(scores.total, (7.0 * cosines).masked_fill(own, 0.0).sum(dim=1))
    assert scores.spread is None


def test_without_a_wrong_class_negatives_are_minus_infinity() -> None:
    x, _, proxies = random_batch(1)
    y = torch.zeros(5, dtype=torch.int64)
    scores = compute_class_scores(x, y, [ProxySegment(0, proxies)], 7.0, rule=SimilarityRule())
    assert (scores.negatives == -torch.inf).all()
    assert scores.total is None


def test_interpolated_samples_have_the_scores_of_their_vectors() -> None:
    x, y, proxies = random_batch(4)
    segments = [ProxySegment(0, proxies)]
    place, factor = torch.tensor([0.3, 0.9]).double(), torch.tensor([1.0, 2.0]).double()
    between = InterpolatedSamples(torch.tensor([0, 3]), torch.tensor([1, 4]), place, factor)
    rule = SimilarityRule(normalise=False)
    labels = torch.cat([y, torch.tensor([1, 0])])
    scores = compute_class_scores(x, labels, segments, 2.0, rule=rule, between=between)
    vectors = torch.cat([x, between.interpolate_rows(x)])
    expected = compute_class_scores(vectors, labels, segments, 2.0, rule=rule)
    torch.testing.assert_close(scores.negatives, expected.negatives)
    torch.testing.assert_close(scores.positive, expected.positive)


def test_a_second_derivative_is_an_error() -> None:
    loss = build_loss("norm_softmax", n_classes=5, dim=4, temperature=0.1)
    x = torch.randn(6, 4, generator=torch.Generator().manual_seed(0)).requires_grad_()
    value = loss(x, torch.arange(6) % 5)
    (gradient,) = torch.autograd.grad(value, x, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        torch.autograd.backward(gradient.sum())
