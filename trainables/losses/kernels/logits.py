"""How do similarities to classes become logits and these exponentials, in few passes?

z = scale S, or for Circle, whose [S + m]_+ (S - m) is t^2 - m^2 with t = max(S, -m),
z = scale (t^2 - m^2). Similarities are *held* times `unit`, so that what is held is the logit to
the base 2, ready for its exponential. Circle's are held as t: where t = -m the weight is zero, so
nothing else of them is ever needed.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from trainables.losses.blocks import LEAST_EXPONENT, LOG2_E, Rooms, floored_exp2_
from trainables.losses.class_rule import Rule

# Cosines times this: e^30 and e^-30, over all classes of the world and with proxies of lengths from
# 1e-15 to 1e15 beside them, are far from the ends of float32.
_SAFE_SCALE = 30.0

# Circle's margins below this are not divided by.
_LEAST_MARGIN = 1e-6


class Logits:
    """Logits of one call, with room for one block of them; levels are logits to the base 2.

    `unit` is what similarities are held times of, `weight` is what `weigh_` leaves to others.
    `levelled` says whether exponentials have to be taken relative to a level of the row, lest they
    leave the range.
    """

    def __init__(self, scale: float, rule: Rule, rooms: Rooms) -> None:
        self.scale, self.margin, self.rooms = scale, rule.circle_margin, rooms
        self._factor = scale * LOG2_E
        self.unit = self._factor if self.margin is None else 1.0
        # With m taken out of Circle's weights t + m these are one pass; a tiny m has no inverse.
        m = self.margin or 0.0
        self.weight = m if abs(m) > _LEAST_MARGIN else 1.0
        self.levelled = not rule.normalise or self.margin is not None or scale > _SAFE_SCALE
        self._offset = 0.0 if self.margin is None else -self._factor * self.margin**2
        # No logit is below this.
        lowest = -self._factor if self.margin is None else self._offset
        self._lowest = lowest if rule.normalise else -math.inf

    def floor(self, level: Tensor) -> bool:
        """Whether some 2^(logit - level) might underflow; a GPU is not waited for: it might."""
        return level.device.type != "cpu" or self._lowest - float(level.max()) < LEAST_EXPONENT

    def exp(self, held: Tensor, level: Tensor, *, floored: bool) -> Tensor:
        """2^(logit - level of the row), or 2^logit if not levelled; valid until the next call.

        `floored` keeps results from underflow.
        """
        z = self.room(held)
        if not self.levelled:
            return torch.exp2(held, out=z)
        if self.margin is None:
            torch.sub(held, level[:, None], out=z)
        else:
            torch.addcmul((self._offset - level)[:, None], held, held, value=self._factor, out=z)
        return floored_exp2_(z) if floored else z.exp2_()

    def largest(self, held: Tensor, own: tuple[Tensor, Tensor], among: int | None) -> Tensor:
        """The level of each row's largest logit among the wrong classes, or the first few."""
        kept = held[own]
        held[own] = -torch.inf if self.margin is None else 0.0
        if self.margin is None:
            largest = held[:, :among].amax(dim=1)
        else:
            low, high = torch.aminmax(held[:, :among], dim=1)
            largest = torch.maximum(high, -low).square_().mul_(self._factor).add_(self._offset)
        held[own] = kept
        return largest

    def total(self, held: Tensor, own: tuple[Tensor, Tensor]) -> Tensor:
        """Sum over the wrong classes of each row's logits."""
        if self.margin is None:
            total = held.sum(dim=1)
            total[own[0]] -= held[own]
            return total.mul_(1.0 / LOG2_E)
        total = torch.mul(held, held, out=self.room(held)).sub_(self.margin**2).sum(dim=1)
        total[own[0]] -= held[own] ** 2 - self.margin**2
        return total.mul_(self.scale)

    def slope_of_scale(self, held: Tensor, g: Tensor) -> Tensor:
        """Sum over the classes of g * dz/dscale for each row, for g of the wrong classes alone."""
        base = held if self.margin is None else held.square().sub_(self.margin**2)
        slopes: Tensor = torch.linalg.vecdot(g, base)
        return slopes.mul_(1.0 / self.unit)

    def weigh_(self, g: Tensor, held: Tensor) -> None:
        """Multiply d loss / dz by dz / dS over scale * weight: for Circle by (t + m) / weight."""
        if self.margin is not None:
            if self.weight == self.margin:
                g.addcmul_(g, held, value=1.0 / self.margin)
            else:
                g.mul_(held + self.margin)

    def room(self, held: Tensor) -> Tensor:
        """A block of the held similarities' shape to write to."""
        return self.rooms.like("logits", held)
