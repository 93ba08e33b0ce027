"""ProxyNCA++: the probability of the own proxy, at a low temperature.

Teh, DeVries and Taylor, ECCV 2020, arXiv:2004.01113, with temperature. The distance is the
squared Euclidean one between unit vectors, as in the authors' code: -d^2 / T is 2 cos / T plus a
constant, so this is NormSoftmax at half the temperature. The paper's other five changes (pooling,
layer norm, sampling, fast proxies, ...) are knobs of the training.
"""

from __future__ import annotations

from trainables.losses.class_head import ClassHead
from trainables.losses.proxy_loss import ProxyLoss, Setup
from trainables.losses.scale import Scale, ScaleMode


def proxy_nca_pp(
    setup: Setup,
    *,
    temperature: float,
    temperature_mode: ScaleMode = "fixed",
    anneal_ratio: float = 4.0,
    label_smoothing: float = 0.0,
    proxies_per_class: int = 1,
) -> ProxyLoss:
    """Cross-entropy of -d^2 / temperature, the own class included in the sum."""
    if not temperature > 0:
        raise ValueError(f"`temperature > 0` must hold, but got {temperature}.")
    head = ClassHead(
        Scale(2.0 / temperature, mode=temperature_mode, ratio=anneal_ratio),
        label_smoothing=label_smoothing,
        budget=setup.budget,
    )
    return ProxyLoss(setup, head, proxies_per_class=proxies_per_class)
