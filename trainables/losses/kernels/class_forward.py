"""Forward of the class scores: similarities of a block and running sums over blocks."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from trainables.losses.kernels.blocks import LOG2_E, SINGLE_SHARD, ProxyBlock, inverse_norms
from trainables.losses.kernels.centre_spread import inner_products, sum_spread
from trainables.losses.kernels.centres import PooledSimilarities, pool_similarities
from trainables.losses.kernels.logits import ClassLogits
from trainables.losses.kernels.mixture import InterpolatedBatch
from trainables.losses.kernels.options import KernelOptions, SimilarityRule
from trainables.losses.kernels.own_entries import can_read_values

# Number of classes whose logits determine the level of a sample.
_N_CLASSES_FOR_LEVEL = 128

# Sums above this need a higher level; those of all blocks and shards still fit in float32.
_LARGEST_SUM = 1e30


class BlockSimilarities(NamedTuple):
    """Similarities of a batch to a block of classes.

    `classes` is (batch, classes), in the unit of `ClassLogits`. `inverse_p` is 1 / norm of each
    proxy, (classes,) or (classes, K); `pooled` is set only for K > 1.
    """

    classes: Tensor
    inverse_p: Tensor
    pooled: PooledSimilarities | None = None


def compute_similarities(
    samples: InterpolatedBatch,
    p: Tensor,
    block: ProxyBlock,
    rule: SimilarityRule,
    products: Tensor | None,
    logits: ClassLogits,
) -> BlockSimilarities:
    """Return the similarities of samples to a block of proxies.

    The norms of the proxies scale the columns of the result, which saves a normalised copy of the
    proxies. `products` are the inner products of the proxies of each class, (classes, K, K), if
    they are known.
    """
    squares = None if products is None else products.diagonal(dim1=1, dim2=2)
    inverse_p = inverse_norms(p, squares) if rule.normalise else torch.ones_like(p[..., 0])
    pooled = None
    if p.dim() == 3:
        pooled = pool_similarities(
            samples, p, inverse_p, rule.centre_temperature, logits.unit, logits.buffers
        )
        classes = pooled.classes
    else:
        buffer = p.new_empty(samples.n_rows, len(p))
        classes = samples.fill_similarities_(buffer, p, inverse_p * logits.unit)
    if rule.circle_margin is not None:
        own = block.own.take(classes)
        block.own.write_(classes.clamp_(min=-rule.circle_margin), own)
    return BlockSimilarities(classes, inverse_p, pooled)


class ForwardScan:
    """Running maxima and sums per sample over blocks."""

    def __init__(self, x: Tensor, rows: int, logits: ClassLogits, options: KernelOptions) -> None:
        self.options, self.logits = options, logits
        # Exponents are relative to the level of their sample.
        lowest = torch.finfo(x.dtype).min  # finite, so that no inf - inf arises
        self.level = x.new_full((rows,), lowest if logits.levelled else 0.0)
        self.sum = x.new_zeros(rows)
        self._positive = x.new_zeros(rows)
        self.total = x.new_zeros(rows) if options.with_total else None
        self.spread = x.new_zeros(()) if options.rule.with_spread else None
        # The level need not be the maximum, only within e^60 below it, and a sum that grows too
        # large shows that it is not: so a few classes determine it. On a GPU that check would wait
        # for the device; there every block updates the level.
        self._level_holds, self._floored = not logits.levelled, False
        self._level_from_few = logits.levelled and can_read_values(x)

    def add_block(self, block: ProxyBlock, classes: Tensor) -> None:
        """Add the similarities to a block of classes, which are left unchanged."""
        block.own.copy_to_rows_(self._positive, block.own.take(classes))
        if self.total is not None:
            self.total += self.logits.sum_logits(classes, block)
        if self._level_from_few:
            self._raise_level(classes, block, among=_N_CLASSES_FOR_LEVEL)
            self._level_holds, self._level_from_few = True, False
        if self._level_holds:
            sums = self._sum_exponentials(classes, block).add_(self.sum)
            if not self.logits.levelled or float(sums.sum()) < _LARGEST_SUM:
                self.sum = sums
                return
        self._raise_level(classes, block)
        self.sum += self._sum_exponentials(classes, block)

    def _raise_level(self, classes: Tensor, block: ProxyBlock, among: int | None = None) -> None:
        """Raise the level to at least the largest logit of these wrong classes."""
        largest = torch.maximum(self.level, self.logits.largest_logits(classes, block, among))
        self.sum *= torch.exp2(self.level - largest)
        self.level, self._floored = largest, self.logits.may_underflow(largest)

    def _sum_exponentials(self, classes: Tensor, block: ProxyBlock) -> Tensor:
        shares = self.logits.exp2_logits(classes, self.level, floored=self._floored)
        block.own.write_(shares, 0.0)
        if block.unused is not None:
            shares.masked_fill_(block.unused, 0.0)
        return shares.sum(dim=1)

    def proxy_products(self, block: ProxyBlock, p: Tensor) -> Tensor | None:
        """Return the inner products of the proxies of each class if their spread is requested."""
        return None if self.spread is None or block.segment != 0 else inner_products(p)

    def add_spread(self, block: ProxyBlock, products: Tensor | None, inverse_p: Tensor) -> None:
        """Add the spread of the proxies of a block, if it is requested."""
        if self.spread is not None and products is not None:
            self.spread += sum_spread(products, inverse_p, block.unused)

    def finish_scores(self) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
        """Return negatives, positive, total and spread, combined over shards."""
        reducer = self.options.reducer
        if reducer is not SINGLE_SHARD:
            local = self.level.clone()
            reducer.all_reduce_max_(self.level)
            self.sum *= torch.exp2(local - self.level)
            for partial in (self.sum, self._positive, self.total, self.spread):
                if partial is not None:
                    reducer.all_reduce_sum_(partial)
        negatives = (self.level + self.sum.log2()).mul_(1.0 / LOG2_E)
        return negatives, self._positive.mul_(1.0 / self.logits.unit), self.total, self.spread
