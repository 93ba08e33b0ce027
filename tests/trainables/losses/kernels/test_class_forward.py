"""Forward of the class scores: running sums over blocks whose level has to rise."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from tests.support.loss_gradients import compute_loss_and_gradients, set_memory_budget
from trainables.losses.kernels.blocks import (
    SINGLE_SHARD,
    MemoryBudget,
    ProxyBlock,
    ScratchBuffers,
)
from trainables.losses.kernels.class_forward import ForwardScan, compute_similarities
from trainables.losses.kernels.logits import ClassLogits
from trainables.losses.kernels.mixture import InterpolatedBatch
from trainables.losses.kernels.options import KernelOptions, SimilarityRule
from trainables.losses.kernels.own_entries import ListedEntries

pytestmark = pytest.mark.split

Make = Callable[..., Any]


def test_sums_of_many_blocks_stay_in_range(make_loss: Make) -> None:
    """The exponentials of one block fit above the level of the first classes; all do not."""
    loss, wide = (
        make_loss("softmax", n_classes=1500, dim=2, dtype=t) for t in (torch.float32, torch.float64)
    )
    set_memory_budget(loss, MemoryBudget(block_bytes=600))
    for either in (loss, wide):
        either.proxies.data.zero_()
        either.proxies.data[130:, 0] = 83.0
    x, y = torch.tensor([[1.0, 0.1]] * 3), torch.arange(3)
    narrow, expected = (
        compute_loss_and_gradients(loss, x, y),
        compute_loss_and_gradients(wide, x.double(), y),
    )
    torch.testing.assert_close([t.double() for t in narrow], expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("order", [[0, 1, 2], [2, 1, 0], [1, 2, 0]])
def test_blocks_are_combined_in_any_order(order: list[int]) -> None:
    """Logits of 0, 500 and 1000 in three blocks: each order raises the level differently."""
    x = torch.eye(2)[:1]
    proxies = [torch.tensor([[value, 0.0]]) for value in (0.0, 500.0, 1000.0)]
    rule = SimilarityRule(normalise=False)
    logits = ClassLogits(1.0, rule, ScratchBuffers())
    options = KernelOptions(rule, True, MemoryBudget(), SINGLE_SHARD)
    scan, none = ForwardScan(x, 1, logits, options), torch.zeros(0, dtype=torch.int64)
    for number in order:
        block = ProxyBlock(0, number, number + 1, ListedEntries(none, none))
        p = proxies[number]
        similarities = compute_similarities(
            InterpolatedBatch(x, None), p, block, rule, None, logits
        )
        scan.add_block(block, similarities.classes)
    negatives, _, total, spread = scan.finish_scores()
    assert total is not None
    assert negatives.tolist() == pytest.approx([1000.0])
    assert total.tolist() == pytest.approx([1500.0])
    assert spread is None


def test_circle_clamps_wrong_similarities_and_keeps_the_own() -> None:
    x, p = torch.eye(2)[:1], torch.tensor([[-1.0, 0.0], [-2.0, 0.0], [3.0, 0.0]])
    rule = SimilarityRule(circle_margin=0.25)
    logits = ClassLogits(64.0, rule, ScratchBuffers())
    block = ProxyBlock(0, 0, 3, ListedEntries(torch.tensor([0]), torch.tensor([1])))
    similarities = compute_similarities(InterpolatedBatch(x, None), p, block, rule, None, logits)
    assert similarities.classes.flatten().tolist() == pytest.approx([-0.25, -1.0, 1.0])
    assert similarities.inverse_p.tolist() == pytest.approx([1.0, 0.5, 1 / 3])
    assert similarities.pooled is None
