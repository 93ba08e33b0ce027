"""How do gradients of the scores reach embeddings, proxies and the scale? (backward)"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from trainables.losses.blocks import LOG2_E, Block, wide, write_gradient
from trainables.losses.centre_spread import add_spread_gradient
from trainables.losses.centres import proxy_gradients
from trainables.losses.centres import unit as unit_of
from trainables.losses.class_forward import Similarities
from trainables.losses.class_logits import Logits
from trainables.losses.class_rule import Options
from trainables.losses.samples import Mixture

# Larger than any exponential that needs no level; times 1 / norm of a proxy still in range.
_LARGEST_SHARE = 1e18


class Back:
    """Gradients block by block; overwrites the similarities it is given.

    Args:
        samples: Embeddings as compared, of length one if the rule normalises.
        negatives: As forward gave them.
        grads: Of negatives, positive, total, spread; None where the loss does not depend on it.
        logits: As in forward.
        options: As in forward.
        grad_proxies: Room for each segment's gradient, or None if it needs none.
        with_scale: Whether the scale's gradient is wanted.
    """

    def __init__(
        self,
        samples: Mixture,
        negatives: Tensor,
        grads: Sequence[Tensor | None],
        logits: Logits,
        options: Options,
        grad_proxies: list[Tensor | None],
        *,
        with_scale: bool,
    ) -> None:
        x = samples.x
        self.x, self.samples, self.logits, self.options = x, samples, logits, options
        of_negatives, of_positive, of_total, self.grad_spread = grads
        none = torch.zeros_like(negatives)
        self._slope = logits.scale * logits.weight  # of logits, but for what `weigh_` multiplies by
        self.factor = none if of_negatives is None else of_negatives * self._slope
        # Where there is no wrong class, negatives are -inf and every entry is the own one.
        self.level, self._floored = none, False
        if logits.levelled:
            self.level = (negatives * LOG2_E).clamp_(min=torch.finfo(x.dtype).min)
            self._floored = logits.floor(self.level)
        else:
            self.factor = self.factor * torch.exp(-negatives).clamp_(max=_LARGEST_SHARE)
        self.own = none if of_positive is None else of_positive
        self.grad_total = None if of_total is None else of_total * self._slope
        self.grad_proxies, self.with_scale = grad_proxies, with_scale
        self.grad_x = torch.zeros_like(x)
        self.grad_scale, self.grad_factor = x.new_zeros(()), samples.new_gradient()
        self.folded = self._fold()

    def _fold(self) -> bool:
        """Have the rows' factor multiply the embeddings, not the similarities, if that can be.

        It saves a pass. Own gradients are then relative to the factor.
        """
        if self.grad_total is not None or self.samples.factor is not None:
            return False
        relative = self.own / self.factor
        # A GPU would have to be waited for.
        if self.x.device.type != "cpu" or not float(relative.abs().max()) < _LARGEST_SHARE:
            return False
        self.own, self.x = relative, self.x * self.factor[:, None]
        return True

    def add(self, block: Block, p: Tensor, found: Similarities, products: Tensor | None) -> None:
        """Add a block's share; `products` are those of its centres, for the spread."""
        classes, own = found.classes, (block.rows, block.columns)
        # d loss / d S: softmax over the wrong classes, then by index the own class.
        g = self.logits.exp(classes, self.level, floored=self._floored)
        if not self.folded:
            g.mul_(self.factor[:, None])
        if self.grad_total is not None:
            g.add_(self.grad_total[:, None])
        if self.with_scale:
            g[own] = 0.0
            slopes = self.logits.slope_of_scale(classes, g)
            self.grad_scale += self._sum(slopes) / self._slope
        self.logits.weigh_(g, classes)
        g[own] = self.own[block.rows]
        whole = self.grad_proxies[block.segment]
        if whole is None:
            self._multiply(p, g, found, None, products)
            return
        with wide(whole[block.start : block.stop], self.x.dtype) as out:
            self._multiply(p, g, found, out, products)

    def _sum(self, rows: Tensor) -> Tensor:
        """Over the batch, of a vector or of the rows of a matrix, with the factor if folded."""
        return self.factor @ rows if self.folded else rows.sum(dim=0)

    def _multiply(
        self, p: Tensor, g: Tensor, found: Similarities, out: Tensor | None, products: Tensor | None
    ) -> None:
        """The two matrix products, with both normalisations of the proxies folded in."""
        rule, unit = self.options.rule, self.logits.unit
        held, inverse_p = found.classes, found.inverse_p
        if found.pooled is not None:
            # From here on K proxies of a class are as K classes: (batch, classes x K).
            g = proxy_gradients(g, found.pooled, rule.centre_temperature, unit, self.logits.rooms)
            g = g.flatten(0, 1).T
            held, unit = found.pooled.proxies.flatten(0, 1).T, unit_of(rule.centre_temperature)
            p, inverse_p = p.flatten(0, 1), inverse_p.flatten()
        along = None
        if rule.normalise:
            # A normalised proxy moves only sideways: subtract its share along itself.
            along = self._sum(held.mul_(g)).mul_(inverse_p).mul_(inverse_p).mul_(1.0 / unit)
            if self.grad_factor is not None:
                self.samples.add_factors_(self.grad_factor, held.sum(dim=1).mul_(1.0 / unit))
            g.mul_(inverse_p)
        g = self.samples.back_(g)
        self.grad_x.addmm_(g, p)
        if out is None:
            return
        flat = out.view(-1, out.shape[-1])
        if along is None or products is None or self.grad_spread is None:
            write_gradient(flat, g, self.x, p, along)
            return
        write_gradient(flat, g, self.x, p, None)
        centres, less = p.view_as(out), along.view(out.shape[:2])
        inverse = inverse_p.view(out.shape[:2])
        add_spread_gradient(out, centres, products, inverse, self.grad_spread, less)

    def finish(self, inverse_x: Tensor) -> tuple[Tensor, Tensor]:
        """Gradients of the raw embeddings and of the scale, summed over shards."""
        self.options.reducer.sum_(self.grad_x)
        self.options.reducer.sum_(self.grad_scale)
        if self.grad_factor is not None:
            self.options.reducer.sum_(self.grad_factor)
        if self.folded:
            self.grad_x.mul_(self.factor[:, None])
        if self.options.rule.normalise:
            x = self.samples.x
            along = (self.grad_x * x).sum(dim=1, keepdim=True)
            self.grad_x.addcmul_(x, along, value=-1.0).mul_(inverse_x[:, None])
        return self.grad_x, self.grad_scale
