"""Unified loss of the Circle paper: the common form of triplet and softmax losses.

Sun et al., CVPR 2020, arXiv:2002.10857, eq. 1: log(1 + sum_i sum_j exp(gamma (s_n^j - s_p^i + m))).
With class labels there is one positive, the own proxy, and the loss is AM-softmax (eq. 2). With
pair labels and gamma to infinity, 1/gamma of the loss is the batch-hard triplet loss on cosines.
"""

from __future__ import annotations

from trainables.losses.am_softmax import build_am_softmax
from trainables.losses.base.pair_softplus import PairReduction, PairSoftplusLoss, UnifiedLogits
from trainables.losses.base.proxy_loss import LossSetup, ProxyLoss
from trainables.losses.base.scale import ScaleMode


def build_unified(
    setup: LossSetup,
    *,
    gamma: float,
    m: float,
    temperature_mode: ScaleMode = "fixed",
    anneal_ratio: float = 4.0,
    label_smoothing: float = 0.0,
    proxies_per_class: int = 1,
) -> ProxyLoss:
    """Build eq. 1 at class level."""
    return build_am_softmax(
        setup,
        gamma=gamma,
        m=m,
        temperature_mode=temperature_mode,
        anneal_ratio=anneal_ratio,
        label_smoothing=label_smoothing,
        proxies_per_class=proxies_per_class,
    )


def build_unified_pair(
    setup: LossSetup, *, gamma: float, m: float, reduction: PairReduction = "valid"
) -> PairSoftplusLoss:
    """Build eq. 1 at pair level, per anchor."""
    return PairSoftplusLoss(setup, UnifiedLogits(gamma=gamma, m=m), reduction=reduction)
