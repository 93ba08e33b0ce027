"""The unified loss of the Circle paper: what triplet and softmax losses have in common.

Sun et al., CVPR 2020, arXiv:2002.10857, eq. 1: log(1 + sum_i sum_j exp(gamma (s_n^j - s_p^i + m))).
With class labels there is one positive, the own proxy, and it is AM-softmax (eq. 2); with pair
labels and gamma to infinity, 1/gamma of it is the batch-hard triplet loss on cosines.
"""

from __future__ import annotations

from trainables.losses.am_softmax import am_softmax
from trainables.losses.pair_softplus import PairSoftplus, Reduction, UnifiedLogits
from trainables.losses.proxy_loss import ProxyLoss, Setup
from trainables.losses.scale import ScaleMode


def unified(
    setup: Setup,
    *,
    gamma: float,
    m: float,
    temperature_mode: ScaleMode = "fixed",
    anneal_ratio: float = 4.0,
    label_smoothing: float = 0.0,
    proxies_per_class: int = 1,
) -> ProxyLoss:
    """Eq. 1 at class level."""
    return am_softmax(
        setup,
        gamma=gamma,
        m=m,
        temperature_mode=temperature_mode,
        anneal_ratio=anneal_ratio,
        label_smoothing=label_smoothing,
        proxies_per_class=proxies_per_class,
    )


def unified_pair(
    setup: Setup, *, gamma: float, m: float, reduction: Reduction = "valid"
) -> PairSoftplus:
    """Eq. 1 at pair level, per anchor."""
    return PairSoftplus(setup, UnifiedLogits(gamma=gamma, m=m), reduction=reduction)
