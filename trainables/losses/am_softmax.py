"""AM-softmax, also CosFace: cross-entropy over cosines with a margin on the own class.

Wang et al., "Additive Margin Softmax for Face Verification", 2018, arXiv:1801.05599; Wang et al.,
"CosFace", CVPR 2018, arXiv:1801.09414.
"""

from __future__ import annotations

from torch import Tensor, nn

from trainables.losses.base.proxy_loss import LossSetup, ProxyLoss
from trainables.losses.base.scale import ScaleMode, SimilarityScale
from trainables.losses.base.softmax_head import SoftmaxHead


class CosineMargin(nn.Module):
    """Own similarity -> s - m."""

    def __init__(self, m: float) -> None:
        super().__init__()
        self.m = m

    def forward(self, similarity: Tensor) -> Tensor:
        """Return the own logit before scaling."""
        return similarity - self.m


def build_am_softmax(
    setup: LossSetup,
    *,
    gamma: float,
    m: float,
    temperature_mode: ScaleMode = "fixed",
    anneal_ratio: float = 4.0,
    label_smoothing: float = 0.0,
    proxies_per_class: int = 1,
) -> ProxyLoss:
    """Build the cross-entropy of gamma (cos - m [own class])."""
    head = SoftmaxHead(
        SimilarityScale(gamma, mode=temperature_mode, ratio=anneal_ratio, param="gamma"),
        positive=CosineMargin(m),
        label_smoothing=label_smoothing,
        budget=setup.budget,
    )
    return ProxyLoss(setup, head, proxies_per_class=proxies_per_class)
