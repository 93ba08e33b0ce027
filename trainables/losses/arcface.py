"""ArcFace: cross-entropy over cosines with a margin on the own class's angle.

Deng et al., CVPR 2019, arXiv:1801.07698. The gradient is the true one, sin(t + m) / sin(t), not
the straight-through one of InsightFace's code. Beyond t = pi - m, where cos(t + m) would rise
again, the usual continuation cos(t) - m sin(m).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from trainables.losses.class_head import ClassHead
from trainables.losses.proxy_loss import ProxyLoss, Setup
from trainables.losses.scale import Scale, ScaleMode


class AngularMargin(nn.Module):
    """Own similarity cos(t) -> cos(t + m), m in radians.

    The slope in the cosine grows as 1 / sin(t), while the cosine's own slope in the vectors
    shrinks as sin(t). In the slope, not in the value, the sine is kept from zero, so that their
    product stays finite at +-1.
    """

    def __init__(self, m: float) -> None:
        super().__init__()
        if not 0.0 <= m <= math.pi / 2:
            raise ValueError(f"`0 <= m <= pi/2` (radians) must hold, but got {m}.")
        self.m = m

    def forward(self, similarity: Tensor) -> Tensor:
        """Own logit before scaling."""
        smallest = torch.finfo(similarity.dtype).eps
        square = (1.0 - similarity) * (1.0 + similarity)
        sine = square.clamp(min=smallest).sqrt()
        sine = sine + (square.detach().clamp(min=0.0).sqrt() - sine.detach())
        turned = similarity * math.cos(self.m) - sine * math.sin(self.m)
        beyond = similarity - self.m * math.sin(self.m)
        return torch.where(similarity >= -math.cos(self.m), turned, beyond)


def arcface(
    setup: Setup,
    *,
    gamma: float,
    m: float,
    temperature_mode: ScaleMode = "fixed",
    anneal_ratio: float = 4.0,
    label_smoothing: float = 0.0,
    proxies_per_class: int = 1,
) -> ProxyLoss:
    """Cross-entropy of gamma cos(angle + m [own class])."""
    head = ClassHead(
        Scale(gamma, mode=temperature_mode, ratio=anneal_ratio, knob="gamma"),
        positive=AngularMargin(m),
        label_smoothing=label_smoothing,
        budget=setup.budget,
    )
    return ProxyLoss(setup, head, proxies_per_class=proxies_per_class)
