"""What does each sample see of a block of classes, and of all blocks together? (forward)"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from trainables.losses.blocks import ALONE, LOG2_E, Block, inverse_norms
from trainables.losses.centre_spread import inner_products, spread_sum
from trainables.losses.centres import Pooled, pool
from trainables.losses.class_logits import Logits
from trainables.losses.class_rule import Options, Rule
from trainables.losses.samples import Mixture

# Classes whose logits give a level for all.
_FEW = 128

# Sums above this want a higher level; those of all blocks and shards still fit in float32.
_LARGEST_SUM = 1e30


class Similarities(NamedTuple):
    """Of a batch to a block of classes.

    `classes` is (batch, classes), as `Logits` holds them. `inverse_p` is 1 / norm of each proxy,
    (classes,) or (classes, K); `pooled` is there with K > 1 alone.
    """

    classes: Tensor
    inverse_p: Tensor
    pooled: Pooled | None = None


def similarities(
    samples: Mixture, p: Tensor, block: Block, rule: Rule, products: Tensor | None, logits: Logits
) -> Similarities:
    """The proxies' norms scale columns of the result: no normalised copy of the proxies.

    `products` are those of each class's proxies, (classes, K, K), if somebody has made them.
    """
    squares = None if products is None else products.diagonal(dim1=1, dim2=2)
    inverse_p = inverse_norms(p, squares) if rule.normalise else torch.ones_like(p[..., 0])
    pooled = None
    if p.dim() == 3:
        pooled = pool(samples, p, inverse_p, rule.centre_temperature, logits.unit, logits.rooms)
        classes = pooled.classes
    else:
        room = p.new_empty(samples.rows, len(p))
        classes = samples.similarities_(room, p, inverse_p * logits.unit)
    if rule.circle_margin is not None:
        own = classes[block.rows, block.columns]
        classes.clamp_(min=-rule.circle_margin)[block.rows, block.columns] = own
    return Similarities(classes, inverse_p, pooled)


class Scan:
    """Running per-sample partials over blocks."""

    def __init__(self, x: Tensor, rows: int, logits: Logits, options: Options) -> None:
        self.options, self.logits = options, logits
        # What exponents are taken relative to; exponents of one block are near those of another.
        lowest = torch.finfo(x.dtype).min  # finite, so that no inf - inf arises
        self.level = x.new_full((rows,), lowest if logits.levelled else 0.0)
        self.sum = x.new_zeros(rows)
        self._positive = x.new_zeros(rows)
        self.total = x.new_zeros(rows) if options.with_total else None
        self.spread = x.new_zeros(()) if options.rule.with_spread else None
        # The level need not be the maximum, only within e^60 below it, and a sum that grows too
        # large says so: a few classes give it. A GPU would have to be waited for: there it follows.
        self._level_holds, self._floored = not logits.levelled, False
        self._level_from_few = logits.levelled and x.device.type == "cpu"

    def add(self, block: Block, classes: Tensor) -> None:
        """Take in the similarities to a block of classes, which are as they were afterwards."""
        own = block.rows, block.columns
        self._positive[block.rows] = classes[own]
        if self.total is not None:
            self.total += self.logits.total(classes, own)
        if self._level_from_few:
            self._raise_level(classes, own, among=_FEW)
            self._level_holds, self._level_from_few = True, False
        if self._level_holds:
            sums = self._sums(classes, own).add_(self.sum)
            if not self.logits.levelled or float(sums.sum()) < _LARGEST_SUM:
                self.sum = sums
                return
        self._raise_level(classes, own)
        self.sum += self._sums(classes, own)

    def _raise_level(
        self, classes: Tensor, own: tuple[Tensor, Tensor], among: int | None = None
    ) -> None:
        """Let exponents be relative to no less than the largest logit of these wrong classes."""
        largest = torch.maximum(self.level, self.logits.largest(classes, own, among))
        self.sum *= torch.exp2(self.level - largest)
        self.level, self._floored = largest, self.logits.floor(largest)

    def _sums(self, classes: Tensor, own: tuple[Tensor, Tensor]) -> Tensor:
        shares = self.logits.exp(classes, self.level, floored=self._floored)
        shares[own] = 0.0
        return shares.sum(dim=1)

    def products(self, block: Block, p: Tensor) -> Tensor | None:
        """Inner products of the classes' proxies, (classes, K, K), if their spread is wanted."""
        return None if self.spread is None or block.segment != 0 else inner_products(p)

    def add_spread(self, products: Tensor | None, inverse_p: Tensor) -> None:
        """Take in how far apart the classes' proxies are."""
        if self.spread is not None and products is not None:
            self.spread += spread_sum(products, inverse_p)

    def finish(self) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
        """Negatives, positive, total and spread, combined with the other shards, if any."""
        reducer = self.options.reducer
        if reducer is not ALONE:
            local = self.level.clone()
            reducer.maximum_(self.level)
            self.sum *= torch.exp2(local - self.level)
            for partial in (self.sum, self._positive, self.total, self.spread):
                if partial is not None:
                    reducer.sum_(partial)
        negatives = (self.level + self.sum.log2()).mul_(1.0 / LOG2_E)
        return negatives, self._positive.mul_(1.0 / self.logits.unit), self.total, self.spread
