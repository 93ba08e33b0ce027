"""Options of the class kernels: from proxies to similarities to logits."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from trainables.losses.kernels.blocks import MemoryBudget, ShardReducer


@dataclass(frozen=True)
class SimilarityRule:
    """How proxies become similarities to classes, and similarities become logits.

    Args:
        normalise: Whether similarities are cosines; otherwise they are inner products.
        centre_temperature: Softness of the weights of SoftTriple with several proxies per class;
            None takes the nearest proxy (sub-centres).
        circle_margin: Margin m of Circle's h = [S + m]_+ (S - m), whose weight [S + m]_+ is a
            constant in backward; None is h = S.
        with_spread: Whether to sum the distances between the proxies of each trained class (K > 1).
    """

    normalise: bool = True
    centre_temperature: float | None = None
    circle_margin: float | None = None
    with_spread: bool = False


@dataclass(frozen=True)
class KernelOptions:
    """Options of one call: rule, whether to sum the logits, memory, shards and unused classes."""

    rule: SimilarityRule
    with_total: bool
    budget: MemoryBudget
    reducer: ShardReducer
    unused: Tensor | None = None
