"""Circle loss with class labels: each similarity learns at its own pace.

Sun et al., CVPR 2020, arXiv:2002.10857, eq. 6 with one positive, the own proxy. The weights
[1 + m - s_p]_+ and [s_n + m]_+ are constants in backward, as the paper's gradients (its section
3.3) require.
"""

from __future__ import annotations

from torch import Tensor, nn

from trainables.losses.class_head import ClassHead
from trainables.losses.class_rule import Rule
from trainables.losses.proxy_loss import ProxyLoss, Setup
from trainables.losses.scale import Scale, ScaleMode


class CirclePositive(nn.Module):
    """Own similarity -> [1 + m - s]_+ (s - (1 - m)), the weight detached."""

    def __init__(self, m: float) -> None:
        super().__init__()
        self.m = m

    def forward(self, similarity: Tensor) -> Tensor:
        """Own logit before scaling."""
        weight = (1.0 + self.m - similarity.detach()).relu()
        return weight * (similarity - (1.0 - self.m))


def circle(
    setup: Setup,
    *,
    gamma: float,
    m: float,
    temperature_mode: ScaleMode = "fixed",
    anneal_ratio: float = 4.0,
    label_smoothing: float = 0.0,
    proxies_per_class: int = 1,
) -> ProxyLoss:
    """log(1 + sum_j exp(gamma a_n (s_n - m)) exp(-gamma a_p (s_p - 1 + m)))."""
    head = ClassHead(
        Scale(gamma, mode=temperature_mode, ratio=anneal_ratio, knob="gamma"),
        rule=Rule(circle_margin=m),
        positive=CirclePositive(m),
        label_smoothing=label_smoothing,
        budget=setup.budget,
    )
    return ProxyLoss(setup, head, proxies_per_class=proxies_per_class)
