"""How do gradients of the scores reach embeddings, proxies and the scale? (backward)"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from trainables.losses.blocks import Block, Rooms, wide, write_gradient
from trainables.losses.centre_spread import add_spread_gradient
from trainables.losses.centres import proxy_gradients, unit
from trainables.losses.class_forward import Similarities, finite
from trainables.losses.class_logits import Logits
from trainables.losses.class_rule import Options
from trainables.losses.samples import Mixture


class Back:
    """Gradients block by block; overwrites the similarities it is given.

    Args:
        samples: Embeddings as compared, of length one if the rule normalises.
        negatives: As forward gave them.
        grads: Of negatives, positive, total, spread; None where the loss does not depend on it.
        scale: Factor of the logits.
        options: As in forward.
        grad_proxies: Room for each segment's gradient, or None if it needs none.
        with_scale: Whether the scale's gradient is wanted.
    """

    def __init__(
        self,
        samples: Mixture,
        negatives: Tensor,
        grads: Sequence[Tensor | None],
        scale: float,
        options: Options,
        grad_proxies: list[Tensor | None],
        *,
        with_scale: bool,
    ) -> None:
        x = samples.x
        self.x, self.samples, self.scale, self.options = x, samples, scale, options
        self.logits = Logits(scale, options.rule)
        self.negatives = finite(negatives)
        of_negatives, of_positive, self.grad_total, self.grad_spread = grads
        none = torch.zeros_like(negatives)
        self.grad_negatives = none if of_negatives is None else of_negatives
        self.grad_positive = none if of_positive is None else of_positive
        self.grad_proxies, self.with_scale = grad_proxies, with_scale
        self.grad_x = torch.zeros_like(x)
        self.grad_scale, self.grad_factor = x.new_zeros(()), samples.new_gradient()
        self.rooms = Rooms()

    def add(self, block: Block, p: Tensor, found: Similarities, products: Tensor | None) -> None:
        """Add a block's share; `products` are those of its centres, for the spread."""
        classes, own = found.classes, (block.rows, block.columns)
        # d loss / d S: softmax over the wrong classes, then by index the own class.
        g = self.logits.exp(classes, self.negatives)
        g.mul_((self.grad_negatives * self.scale)[:, None])
        if self.grad_total is not None:
            g.add_((self.grad_total * self.scale)[:, None])
        if self.with_scale:
            g[own] = 0.0
            self.grad_scale += self.logits.slope_of_scale(classes, g) / self.scale
        self.logits.weigh_(g, classes)
        g[own] = self.grad_positive[block.rows]
        whole = self.grad_proxies[block.segment]
        if whole is None:
            self._multiply(p, g, found, None, products)
            return
        with wide(whole[block.start : block.stop], self.x.dtype) as out:
            self._multiply(p, g, found, out, products)

    def _multiply(
        self, p: Tensor, g: Tensor, found: Similarities, out: Tensor | None, products: Tensor | None
    ) -> None:
        """The two matrix products, with both normalisations of the proxies folded in."""
        rule, inverse_p, similar = self.options.rule, found.inverse_p, found.classes
        if found.pooled is not None:
            # From here on K proxies of a class are as K classes: (batch, classes x K).
            g = proxy_gradients(g, found.pooled, rule.centre_temperature, self.rooms)
            g = g.flatten(0, 1).T
            similar = found.pooled.proxies.flatten(0, 1).T
            p, inverse_p = p.flatten(0, 1), inverse_p.flatten()
        along = None
        if rule.normalise:
            # A normalised proxy moves only sideways: subtract its share along itself.
            each = 1.0 if found.pooled is None else 1.0 / unit(rule.centre_temperature)
            along = similar.mul_(g).sum(dim=0).mul_(inverse_p).mul_(inverse_p).mul_(each)
            self.samples.add_factors_(self.grad_factor, similar, each)
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
        if self.options.rule.normalise:
            along = (self.grad_x * self.x).sum(dim=1, keepdim=True)
            self.grad_x.addcmul_(self.x, along, value=-1.0).mul_(inverse_x[:, None])
        return self.grad_x, self.grad_scale
