"""Circle loss with class labels: cross-entropy with self-paced weights of the similarities.

Sun et al., CVPR 2020, arXiv:2002.10857, eq. 6 with one positive, the own proxy. The weights
[1 + m - s_p]_+ and [s_n + m]_+ are constants in backward, as the gradients in section 3.3 of the
paper require.
"""

from __future__ import annotations

from torch import Tensor, nn

from trainables.losses.base.proxy_loss import LossSetup, ProxyLoss
from trainables.losses.base.scale import ScaleMode, SimilarityScale
from trainables.losses.base.softmax_head import SoftmaxHead
from trainables.losses.kernels.options import SimilarityRule


class CirclePositiveLogit(nn.Module):
    """Own similarity -> [1 + m - s]_+ (s - (1 - m)), the weight detached."""

    def __init__(self, m: float) -> None:
        super().__init__()
        self.m = m

    def forward(self, similarity: Tensor) -> Tensor:
        """Return the own logit before scaling."""
        weight = (1.0 + self.m - similarity.detach()).relu()
        return weight * (similarity - (1.0 - self.m))


def build_circle(
    setup: LossSetup,
    *,
    gamma: float,
    m: float,
    temperature_mode: ScaleMode = "fixed",
    anneal_ratio: float = 4.0,
    label_smoothing: float = 0.0,
    proxies_per_class: int = 1,
) -> ProxyLoss:
    """Build log(1 + sum_j exp(gamma a_n (s_n - m)) exp(-gamma a_p (s_p - 1 + m)))."""
    head = SoftmaxHead(
        SimilarityScale(gamma, mode=temperature_mode, ratio=anneal_ratio, param="gamma"),
        rule=SimilarityRule(circle_margin=m),
        positive=CirclePositiveLogit(m),
        label_smoothing=label_smoothing,
        budget=setup.budget,
    )
    return ProxyLoss(setup, head, proxies_per_class=proxies_per_class)
