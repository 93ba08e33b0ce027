"""NormSoftmax and NormFace: cross-entropy over cosines at one temperature.

Zhai and Wu, "Classification is a Strong Baseline for Deep Metric Learning", BMVC 2019,
arXiv:1811.12649 (fixed temperature); Wang et al., "NormFace", ACM MM 2017, arXiv:1704.06369
(learned scale: `temperature_mode="learned"`).
"""

from __future__ import annotations

from trainables.losses.base.proxy_loss import LossSetup, ProxyLoss
from trainables.losses.base.scale import ScaleMode, SimilarityScale
from trainables.losses.base.softmax_head import SoftmaxHead
from trainables.losses.kernels.options import SimilarityRule


def build_norm_softmax(
    setup: LossSetup,
    *,
    temperature: float,
    temperature_mode: ScaleMode = "fixed",
    anneal_ratio: float = 4.0,
    label_smoothing: float = 0.0,
    proxies_per_class: int = 1,
) -> ProxyLoss:
    """Build the cross-entropy of cosine / temperature."""
    if not temperature > 0:
        raise ValueError(f"`temperature > 0` must hold, but got {temperature}")
    head = SoftmaxHead(
        SimilarityScale(1.0 / temperature, mode=temperature_mode, ratio=anneal_ratio),
        rule=SimilarityRule(),
        label_smoothing=label_smoothing,
        budget=setup.budget,
    )
    return ProxyLoss(setup, head, proxies_per_class=proxies_per_class)
