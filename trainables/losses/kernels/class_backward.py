"""Backward of the class scores: gradients of embeddings, proxies and scale, block by block."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from trainables.losses.kernels.blocks import LOG2_E, ProxyBlock, widened_output, write_gradient
from trainables.losses.kernels.centre_spread import add_spread_gradient
from trainables.losses.kernels.centres import log2_inverse_temperature, proxy_gradients
from trainables.losses.kernels.class_forward import BlockSimilarities
from trainables.losses.kernels.logits import ClassLogits
from trainables.losses.kernels.mixture import InterpolatedBatch
from trainables.losses.kernels.options import KernelOptions
from trainables.losses.kernels.own_entries import can_read_values

# Above any exponential that is used without a level, and still in range times 1 / norm of a proxy.
_LARGEST_SHARE = 1e18


class BackwardScan:
    """Accumulates gradients block by block; overwrites the similarities of each block.

    Args:
        samples: Embeddings, of length one if the rule normalises.
        negatives: The result of forward.
        grads: Gradients of negatives, positive, total and spread; None for unused ones.
        logits: As in forward.
        options: As in forward.
        grad_proxies: Output for the gradient of each segment, or None if it needs none.
        with_scale: Whether the scale needs a gradient.
    """

    def __init__(
        self,
        samples: InterpolatedBatch,
        negatives: Tensor,
        grads: Sequence[Tensor | None],
        logits: ClassLogits,
        options: KernelOptions,
        grad_proxies: list[Tensor | None],
        *,
        with_scale: bool,
    ) -> None:
        x = samples.x
        self.x, self.samples, self.logits, self.options = x, samples, logits, options
        of_negatives, of_positive, of_total, self.grad_spread = grads
        none = torch.zeros_like(negatives)
        # Derivative of the logits, except for the factor of `multiply_by_slope_`.
        self._slope = logits.scale * logits.weight
        self.factor = none if of_negatives is None else of_negatives * self._slope
        # Without a wrong class negatives are -inf, and every entry belongs to the own class.
        self.level, self._floored = none, False
        if logits.levelled:
            self.level = (negatives * LOG2_E).clamp_(min=torch.finfo(x.dtype).min)
            self._floored = logits.may_underflow(self.level)
        else:
            self.factor = self.factor * torch.exp(-negatives).clamp_(max=_LARGEST_SHARE)
        self.own = none if of_positive is None else of_positive
        self.grad_total = None if of_total is None else of_total * self._slope
        self.grad_proxies, self.with_scale = grad_proxies, with_scale
        self.grad_x = torch.zeros_like(x)
        self.grad_scale, self.grad_factor = x.new_zeros(()), samples.new_factor_gradient()
        self.folded = self._fold_row_factor()

    def _fold_row_factor(self) -> bool:
        """Multiply the embeddings, not the similarities, by the factor of the rows if possible.

        It saves a pass over the similarities. Own gradients are then relative to the factor.
        """
        if self.grad_total is not None or self.samples.factor is not None:
            return False
        # On a GPU the check below would wait for the device.
        if not can_read_values(self.x):
            return False
        relative = self.own / self.factor
        if not float(relative.abs().max()) < _LARGEST_SHARE:
            return False
        self.own, self.x = relative, self.x * self.factor[:, None]
        return True

    def add_block(
        self, block: ProxyBlock, p: Tensor, similarities: BlockSimilarities, products: Tensor | None
    ) -> None:
        """Add the gradients of a block; `products` are those of its centres, for the spread."""
        classes, own = similarities.classes, block.own
        # d loss / d S: softmax over the wrong classes, then by index the own class.
        g = self.logits.exp2_logits(classes, self.level, floored=self._floored)
        if not self.folded:
            g.mul_(self.factor[:, None])
        if self.grad_total is not None:
            g.add_(self.grad_total[:, None])
        if block.unused is not None:
            g.masked_fill_(block.unused, 0.0)
        if self.with_scale:
            own.write_(g, 0.0)
            slopes = self.logits.scale_slopes(classes, g)
            self.grad_scale += self._sum_over_batch(slopes) / self._slope
        self.logits.multiply_by_slope_(g, classes)
        own.write_(g, own.select_rows(self.own))
        grad_segment = self.grad_proxies[block.segment]
        if grad_segment is None:
            self._add_products(p, g, similarities, None, products, block.unused)
            return
        with widened_output(grad_segment[block.start : block.stop], self.x.dtype) as out:
            self._add_products(p, g, similarities, out, products, block.unused)

    def _sum_over_batch(self, rows: Tensor) -> Tensor:
        """Return the sum of the rows over the batch, weighted by the factor if it is folded."""
        return self.factor @ rows if self.folded else rows.sum(dim=0)

    def _add_products(
        self,
        p: Tensor,
        g: Tensor,
        similarities: BlockSimilarities,
        out: Tensor | None,
        products: Tensor | None,
        unused: Tensor | None,
    ) -> None:
        """Add the two matrix products, with the normalisation of the proxies folded in."""
        rule, unit = self.options.rule, self.logits.unit
        scaled, inverse_p = similarities.classes, similarities.inverse_p
        if similarities.pooled is not None:
            # From here on the K proxies of a class are treated as K classes: (batch, classes x K).
            g = proxy_gradients(
                g, similarities.pooled, rule.centre_temperature, unit, self.logits.buffers
            )
            g = g.flatten(0, 1).T
            scaled, unit = (
                similarities.pooled.proxies.flatten(0, 1).T,
                log2_inverse_temperature(rule.centre_temperature),
            )
            p, inverse_p = p.flatten(0, 1), inverse_p.flatten()
        along = None
        if rule.normalise:
            # Normalisation removes the component of the gradient along the proxy.
            along = (
                self._sum_over_batch(scaled.mul_(g))
                .mul_(inverse_p)
                .mul_(inverse_p)
                .mul_(1.0 / unit)
            )
            if self.grad_factor is not None:
                self.samples.add_factor_gradient_(
                    self.grad_factor, scaled.sum(dim=1).mul_(1.0 / unit)
                )
            g.mul_(inverse_p)
        g = self.samples.fold_gradient_(g)
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
        factor = self.grad_spread
        if unused is not None:
            factor = factor * ~unused[:, None, None]
        add_spread_gradient(out, centres, products, inverse, factor, less)

    def finish_gradients(self, inverse_x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the gradients of the raw embeddings and of the scale, summed over shards."""
        self.options.reducer.all_reduce_sum_(self.grad_x)
        self.options.reducer.all_reduce_sum_(self.grad_scale)
        if self.grad_factor is not None:
            self.options.reducer.all_reduce_sum_(self.grad_factor)
        if self.folded:
            self.grad_x.mul_(self.factor[:, None])
        if self.options.rule.normalise:
            x = self.samples.x
            along = (self.grad_x * x).sum(dim=1, keepdim=True)
            self.grad_x.addcmul_(x, along, value=-1.0).mul_(inverse_x[:, None])
        return self.grad_x, self.grad_scale
