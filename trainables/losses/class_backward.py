"""How do gradients of the scores reach embeddings, proxies and the scale? (backward)"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from trainables.losses.blocks import Block, wide, write_gradient
from trainables.losses.centre_spread import add_spread_gradient
from trainables.losses.centres import Pooled, plane_gradients, unit
from trainables.losses.class_forward import Similarities, finite
from trainables.losses.class_logits import Logits
from trainables.losses.class_rule import Options


class Back:
    """Gradients block by block; overwrites the similarities it is given.

    Args:
        x: Embeddings as compared: (batch, dim), of length one if the rule normalises.
        negatives: As forward gave them.
        grads: Of negatives, positive, total, spread; None where the loss does not depend on it.
        scale: Factor of the logits.
        options: As in forward.
        grad_proxies: Room for each segment's gradient, or None if it needs none.
        with_scale: Whether the scale's gradient is wanted.
    """

    def __init__(
        self,
        x: Tensor,
        negatives: Tensor,
        grads: Sequence[Tensor | None],
        scale: float,
        options: Options,
        grad_proxies: list[Tensor | None],
        *,
        with_scale: bool,
    ) -> None:
        self.x, self.scale, self.options = x, scale, options
        self.logits = Logits(scale, options.rule)
        self.negatives = finite(negatives)
        of_negatives, of_positive, self.grad_total, self.grad_spread = grads
        self.grad_negatives = x.new_zeros(len(x)) if of_negatives is None else of_negatives
        self.grad_positive = x.new_zeros(len(x)) if of_positive is None else of_positive
        self.grad_proxies, self.with_scale = grad_proxies, with_scale
        self.grad_x = torch.zeros_like(x)
        self.grad_scale = x.new_zeros(())

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
        if found.pooled is not None:
            self._multiply_planes(p, g, found.pooled, found.inverse_p, out, products)
            return
        along = None
        if self.options.rule.normalise:
            # A normalised proxy moves only sideways: subtract its share along itself.
            along = found.classes.mul_(g).sum(dim=0).mul_(found.inverse_p).mul_(found.inverse_p)
            g.mul_(found.inverse_p)
        self.grad_x.addmm_(g, p)
        write_gradient(out, g, self.x, p, along)

    def _multiply_planes(
        self,
        p: Tensor,
        g: Tensor,
        pooled: Pooled,
        inverse_p: Tensor,
        out: Tensor | None,
        products: Tensor | None,
    ) -> None:
        temperature, normalise = self.options.rule.centre_temperature, self.options.rule.normalise
        inverse_p = inverse_p.T.contiguous()
        along = torch.zeros_like(inverse_p)
        for k, of_plane in enumerate(plane_gradients(g, pooled, temperature)):
            if normalise:
                torch.sum(pooled.planes[k].mul_(of_plane), dim=0, out=along[k])
                of_plane.mul_(inverse_p[k])
            self.grad_x.addmm_(of_plane, p[:, k])
            if out is not None:
                torch.mm(of_plane.T, self.x, out=out[:, k])
        if out is None or not normalise:
            return
        along = along.mul_(1.0 / unit(temperature)).mul_(inverse_p.square_()).T
        if products is not None and self.grad_spread is not None:
            add_spread_gradient(out, p, products, self.grad_spread, along)
        else:
            out.addcmul_(p, along[..., None], value=-1.0)

    def finish(self, inverse_x: Tensor) -> tuple[Tensor, Tensor]:
        """Gradients of the raw embeddings and of the scale, summed over shards."""
        self.options.reducer.sum_(self.grad_x)
        self.options.reducer.sum_(self.grad_scale)
        if self.options.rule.normalise:
            along = (self.grad_x * self.x).sum(dim=1, keepdim=True)
            self.grad_x.addcmul_(self.x, along, value=-1.0).mul_(inverse_x[:, None])
        return self.grad_x, self.grad_scale
