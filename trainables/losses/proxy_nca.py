"""Proxy-NCA in its paper's form: the own proxy against all others, itself not among them.

Movshovitz-Attias et al., "No Fuss Distance Metric Learning Using Proxies", ICCV 2017,
arXiv:1703.07464, with scale * squared Euclidean distance of unit vectors. Often called
Proxy-NCA is the softmax that keeps the own class in the sum; that one is `proxy_nca_pp` here.
"""

from __future__ import annotations

from trainables.losses.class_head import ClassHead
from trainables.losses.proxy_loss import ProxyLoss, Setup
from trainables.losses.scale import Scale, ScaleMode


def proxy_nca(
    setup: Setup,
    *,
    scale: float,
    temperature_mode: ScaleMode = "fixed",
    anneal_ratio: float = 4.0,
    label_smoothing: float = 0.0,
    proxies_per_class: int = 1,
) -> ProxyLoss:
    """scale d^2(own) + log sum over the other classes of exp(-scale d^2); may be negative."""
    if setup.n_classes < 2:
        raise ValueError("proxy_nca compares with other classes: `n_classes >= 2` must hold.")
    if not scale > 0:
        raise ValueError(f"`scale > 0` must hold, but got {scale}.")
    head = ClassHead(
        # -scale d^2 = 2 scale cos - 2 scale, and the constant cancels.
        Scale(2.0 * scale, mode=temperature_mode, ratio=anneal_ratio),
        own_in_sum=False,
        label_smoothing=label_smoothing,
        budget=setup.budget,
    )
    return ProxyLoss(setup, head, proxies_per_class=proxies_per_class)
