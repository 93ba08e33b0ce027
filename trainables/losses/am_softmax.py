"""AM-softmax, also CosFace: cross-entropy over cosines with a margin on the own class.

Wang et al., "Additive Margin Softmax for Face Verification", 2018, arXiv:1801.05599; Wang et al.,
"CosFace", CVPR 2018, arXiv:1801.09414.
"""

from __future__ import annotations

from torch import Tensor, nn

from trainables.losses.class_head import ClassHead
from trainables.losses.proxy_loss import ProxyLoss, Setup
from trainables.losses.scale import Scale, ScaleMode


class CosineMargin(nn.Module):
    """Own similarity -> s - m."""

    def __init__(self, m: float) -> None:
        super().__init__()
        self.m = m

    def forward(self, similarity: Tensor) -> Tensor:
        """Own logit before scaling."""
        return similarity - self.m


def am_softmax(
    setup: Setup,
    *,
    gamma: float,
    m: float,
    temperature_mode: ScaleMode = "fixed",
    anneal_ratio: float = 4.0,
    label_smoothing: float = 0.0,
    proxies_per_class: int = 1,
) -> ProxyLoss:
    """Cross-entropy of gamma (cos - m [own class])."""
    head = ClassHead(
        Scale(gamma, mode=temperature_mode, ratio=anneal_ratio, knob="gamma"),
        positive=CosineMargin(m),
        label_smoothing=label_smoothing,
        budget=setup.budget,
    )
    return ProxyLoss(setup, head, proxies_per_class=proxies_per_class)
