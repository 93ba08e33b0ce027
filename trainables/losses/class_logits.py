"""How do similarities to classes become logits and these exponentials, in few passes?

z = scale S, or for Circle, whose [S + m]_+ (S - m) is t^2 - m^2 with t = max(S, -m),
z = scale (t^2 - m^2). Similarities of Circle are held as t: where t = -m the weight is zero, so
nothing else of them is ever needed. Scale, offset and shift are one pass, the exponential another.
"""

from __future__ import annotations

import torch
from torch import Tensor

from trainables.losses.blocks import LOG2_E, Rooms, floored_exp2_
from trainables.losses.class_rule import Rule

# Cosines times this: e^-60, over all classes of the world, is still far from underflow in float32.
_SAFE_SCALE = 30.0


class Logits:
    """Logits of one call, with room for one block of them.

    `bound` is a number no logit exceeds, near enough to all of them that exponentials of the
    difference neither overflow nor underflow; None if there is no such number.
    """

    def __init__(self, scale: float, rule: Rule) -> None:
        self.scale, self.margin = scale, rule.circle_margin
        self.bound = None
        if rule.normalise and self.margin is None and scale <= _SAFE_SCALE:
            self.bound = scale
        self._offset = 0.0 if self.margin is None else -scale * self.margin**2
        self._rooms = Rooms()

    def exp(self, classes: Tensor, shift: Tensor) -> Tensor:
        """exp(z - shift of the row); valid until the next call."""
        z, factor = self.room(classes), self.scale * LOG2_E
        column = (self._offset - shift).mul_(LOG2_E)[:, None]
        if self.margin is None:
            torch.add(column, classes, alpha=factor, out=z)
        else:
            torch.addcmul(column, classes, classes, value=factor, out=z)
        return floored_exp2_(z) if self.bound is None else z.exp2_()

    def largest(self, classes: Tensor, own: tuple[Tensor, Tensor]) -> Tensor:
        """The largest logit of each row among the wrong classes."""
        kept = classes[own]
        classes[own] = -torch.inf if self.margin is None else 0.0
        if self.margin is None:
            largest = classes.amax(dim=1)
        else:
            low, high = torch.aminmax(classes, dim=1)
            largest = torch.maximum(high, -low).square_()
        classes[own] = kept
        return largest.mul_(self.scale).add_(self._offset)

    def total(self, classes: Tensor, own: tuple[Tensor, Tensor]) -> Tensor:
        """Sum over the wrong classes of each row's logits."""
        if self.margin is None:
            base, own_base = classes, classes[own]
        else:
            base, own_base = torch.mul(classes, classes, out=self.room(classes)), classes[own] ** 2
        total = base.sum(dim=1)
        total[own[0]] -= own_base
        total.mul_(self.scale)
        if self._offset:
            total.add_(self._offset * classes.shape[1])
            total[own[0]] -= self._offset
        return total

    def slope_of_scale(self, classes: Tensor, g: Tensor) -> Tensor:
        """Sum of g * dz/dscale, for g of the wrong classes alone."""
        base = classes if self.margin is None else classes.square().sub_(self.margin**2)
        return torch.dot(g.flatten(), base.flatten())

    def weigh_(self, g: Tensor, classes: Tensor) -> None:
        """Multiply d loss / dz by dz / dS over the scale: the weights of Circle, else 1."""
        if self.margin is not None:
            g.mul_(classes + self.margin)

    def room(self, classes: Tensor) -> Tensor:
        """A block of the classes' shape to write to."""
        return self._rooms.like("logits", classes)
