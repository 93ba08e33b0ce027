"""ArcFace: cross-entropy over cosines with a margin on the angle of the own class.

Deng et al., CVPR 2019, arXiv:1801.07698. The gradient is the exact one, sin(t + m) / sin(t), not
the straight-through gradient of InsightFace's code. Beyond t = pi - m, where cos(t + m) would rise
again, the usual continuation cos(t) - m sin(m) is used.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from trainables.losses.base.proxy_loss import LossSetup, ProxyLoss
from trainables.losses.base.scale import ScaleMode, SimilarityScale
from trainables.losses.base.softmax_head import SoftmaxHead


class AngularMargin(nn.Module):
    """Own similarity cos(t) -> cos(t + m), m in radians.

    The derivative with respect to the cosine grows as 1 / sin(t), while that of the cosine with
    respect to the vectors shrinks as sin(t). The sine is bounded away from zero in the derivative,
    not in the value, so that the product stays finite at +-1.
    """

    def __init__(self, m: float) -> None:
        super().__init__()
        if not 0.0 <= m <= math.pi / 2:
            raise ValueError(f"`0 <= m <= pi/2` (radians) must hold, but got {m}")
        self.m = m

    def forward(self, similarity: Tensor) -> Tensor:
        """Return the own logit before scaling."""
        smallest = torch.finfo(similarity.dtype).eps
        square = (1.0 - similarity) * (1.0 + similarity)
        sine = square.clamp(min=smallest).sqrt()
        sine = sine + (square.detach().clamp(min=0.0).sqrt() - sine.detach())
        turned = similarity * math.cos(self.m) - sine * math.sin(self.m)
        beyond = similarity - self.m * math.sin(self.m)
        return torch.where(similarity >= -math.cos(self.m), turned, beyond)


def build_arcface(
    setup: LossSetup,
    *,
    gamma: float,
    m: float,
    temperature_mode: ScaleMode = "fixed",
    anneal_ratio: float = 4.0,
    label_smoothing: float = 0.0,
    proxies_per_class: int = 1,
) -> ProxyLoss:
    """Build the cross-entropy of gamma cos(angle + m [own class])."""
    head = SoftmaxHead(
        SimilarityScale(gamma, mode=temperature_mode, ratio=anneal_ratio, param="gamma"),
        positive=AngularMargin(m),
        label_smoothing=label_smoothing,
        budget=setup.budget,
    )
    return ProxyLoss(setup, head, proxies_per_class=proxies_per_class)
