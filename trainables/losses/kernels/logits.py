"""Logits of classes and their exponentials, in few passes over the similarities.

z = scale S, or for Circle, whose [S + m]_+ (S - m) is t^2 - m^2 with t = max(S, -m),
z = scale (t^2 - m^2). Similarities are stored *scaled* by `unit`, so that they are the logits to
the base 2, the exponents of powers of 2. Those of Circle are stored as t: for t = -m the weight is
zero, so S itself is not needed.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from trainables.losses.kernels.blocks import (
    LOG2_E,
    MIN_FLOAT32_EXPONENT,
    ProxyBlock,
    ScratchBuffers,
    floored_exp2_,
)
from trainables.losses.kernels.options import SimilarityRule
from trainables.losses.kernels.own_entries import can_read_values

# Up to this scale of the cosines, e^30 and e^-30 are far from the limits of float32, even summed
# over all classes and multiplied by lengths of proxies from 1e-15 to 1e15.
_SAFE_SCALE = 30.0

# Smaller margins of Circle are not inverted.
_MIN_INVERTIBLE_MARGIN = 1e-6


class ClassLogits:
    """Logits of one call; levels are logits to the base 2.

    The scale is a number, or a tensor on a device that the host must not wait for.

    Attributes:
        unit: Factor of the scaled similarities.
        weight: Factor of the derivative that `multiply_by_slope_` leaves to its caller.
        levelled: Whether exponentials must be relative to a level of the row to stay in range.
    """

    def __init__(
        self, scale: float | Tensor, rule: SimilarityRule, buffers: ScratchBuffers
    ) -> None:
        self.scale, self.margin, self.buffers = scale, rule.circle_margin, buffers
        self._factor = scale * LOG2_E
        self.unit: float | Tensor = self._factor if self.margin is None else 1.0
        # Circle's weights t + m divided by m take one pass; a tiny m has no inverse.
        m = self.margin or 0.0
        self.weight = m if abs(m) > _MIN_INVERTIBLE_MARGIN else 1.0
        # A scale on a device is not known here.
        self.levelled = (
            not rule.normalise
            or self.margin is not None
            or isinstance(scale, Tensor)
            or scale > _SAFE_SCALE
        )
        self._offset: float | Tensor = (
            0.0 if self.margin is None else -self._factor * self.margin**2
        )
        # Lower bound of the logits.
        self._lowest = -math.inf
        if rule.normalise and not isinstance(scale, Tensor):
            self._lowest = float(-self._factor if self.margin is None else self._offset)

    def may_underflow(self, level: Tensor) -> bool:
        """Whether some 2^(logit - level) might underflow; always true on a GPU, without waiting."""
        return (
            not can_read_values(level) or self._lowest - float(level.max()) < MIN_FLOAT32_EXPONENT
        )

    def exp2_logits(self, scaled: Tensor, level: Tensor, *, floored: bool) -> Tensor:
        """Return 2^(logit - level of the row), or 2^logit if not levelled.

        `floored` prevents underflow. The result is valid until the next call.
        """
        z = self.logit_buffer(scaled)
        if not self.levelled:
            return torch.exp2(scaled, out=z)
        if self.margin is None:
            torch.sub(scaled, level[:, None], out=z)
        elif isinstance(self._factor, Tensor):
            torch.mul(scaled, scaled, out=z).mul_(self._factor)
            z.add_((self._offset - level)[:, None])
        else:
            torch.addcmul(
                (self._offset - level)[:, None], scaled, scaled, value=self._factor, out=z
            )
        return floored_exp2_(z) if floored else z.exp2_()

    def largest_logits(self, scaled: Tensor, block: ProxyBlock, among: int | None) -> Tensor:
        """Return the largest logit of each row over the wrong classes, or the first `among`."""
        own_similarities = block.own.take(scaled)
        lowest = -torch.inf if self.margin is None else 0.0
        block.own.write_(scaled, lowest)
        wrong = scaled if block.unused is None else scaled.masked_fill(block.unused, lowest)
        if self.margin is None:
            largest = wrong[:, :among].amax(dim=1)
        else:
            low, high = torch.aminmax(wrong[:, :among], dim=1)
            largest = torch.maximum(high, -low).square_().mul_(self._factor).add_(self._offset)
        block.own.write_(scaled, own_similarities)
        return largest

    def sum_logits(self, scaled: Tensor, block: ProxyBlock) -> Tensor:
        """Return the sum of the logits of the wrong classes of each row."""
        own = block.own
        if self.margin is None:
            used = scaled if block.unused is None else scaled.masked_fill(block.unused, 0.0)
            total = used.sum(dim=1)
            own.subtract_from_rows_(total, own.take(scaled))
            return total.mul_(1.0 / LOG2_E)
        terms = torch.mul(scaled, scaled, out=self.logit_buffer(scaled)).sub_(self.margin**2)
        if block.unused is not None:
            terms.masked_fill_(block.unused, 0.0)
        total = terms.sum(dim=1)
        own.subtract_from_rows_(total, own.take(scaled) ** 2 - self.margin**2)
        return total.mul_(self.scale)

    def scale_slopes(self, scaled: Tensor, g: Tensor) -> Tensor:
        """Return the sum over classes of g * dz/dscale for each row; g is zero for own classes."""
        base = scaled if self.margin is None else scaled.square().sub_(self.margin**2)
        slopes: Tensor = torch.linalg.vecdot(g, base)
        return slopes.mul_(1.0 / self.unit)

    def multiply_by_slope_(self, g: Tensor, scaled: Tensor) -> None:
        """Multiply g by dz / dS / (scale * weight): for Circle by (t + m) / weight."""
        if self.margin is not None:
            if self.weight == self.margin:
                g.addcmul_(g, scaled, value=1.0 / self.margin)
            else:
                g.mul_(scaled + self.margin)

    def logit_buffer(self, scaled: Tensor) -> Tensor:
        """Return a scratch buffer shaped like the scaled similarities."""
        return self.buffers.buffer_like("logits", scaled)
