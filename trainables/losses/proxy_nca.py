"""Proxy-NCA as in its paper: the own proxy against all others, without itself in the sum.

Movshovitz-Attias et al., "No Fuss Distance Metric Learning Using Proxies", ICCV 2017,
arXiv:1703.07464, with scale * squared Euclidean distance of unit vectors. The softmax that keeps
the own class in the sum is often called Proxy-NCA too; here it is `proxy_nca_pp`.
"""

from __future__ import annotations

from trainables.losses.base.proxy_loss import LossSetup, ProxyLoss
from trainables.losses.base.scale import ScaleMode, SimilarityScale
from trainables.losses.base.softmax_head import SoftmaxHead


def build_proxy_nca(
    setup: LossSetup,
    *,
    scale: float,
    temperature_mode: ScaleMode = "fixed",
    anneal_ratio: float = 4.0,
    label_smoothing: float = 0.0,
    proxies_per_class: int = 1,
) -> ProxyLoss:
    """Build scale d^2(own) + log sum_{other classes} exp(-scale d^2); it may be negative."""
    if setup.n_classes < 2:
        raise ValueError(f"proxy_nca: `n_classes >= 2` must hold, but got {setup.n_classes}")
    if not scale > 0:
        raise ValueError(f"`scale > 0` must hold, but got {scale}")
    head = SoftmaxHead(
        # -scale d^2 = 2 scale cos - 2 scale, and the constant cancels.
        SimilarityScale(2.0 * scale, mode=temperature_mode, ratio=anneal_ratio),
        own_in_sum=False,
        label_smoothing=label_smoothing,
        budget=setup.budget,
    )
    return ProxyLoss(setup, head, proxies_per_class=proxies_per_class)
