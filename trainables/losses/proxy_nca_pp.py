"""ProxyNCA++: cross-entropy over squared distances to the proxies, at a low temperature.

Teh, DeVries and Taylor, ECCV 2020, arXiv:2004.01113. The distance is the squared Euclidean
distance between unit vectors, as in the authors' code: -d^2 / T is 2 cos / T plus a constant, so
this is NormSoftmax at half the temperature. The other changes of the paper (pooling, layer norm,
sampling, fast proxies, ...) are hyperparameters of the training.
"""

from __future__ import annotations

from trainables.losses.base.proxy_loss import LossSetup, ProxyLoss
from trainables.losses.base.scale import ScaleMode, SimilarityScale
from trainables.losses.base.softmax_head import SoftmaxHead


def build_proxy_nca_pp(
    setup: LossSetup,
    *,
    temperature: float,
    temperature_mode: ScaleMode = "fixed",
    anneal_ratio: float = 4.0,
    label_smoothing: float = 0.0,
    proxies_per_class: int = 1,
) -> ProxyLoss:
    """Build the cross-entropy of -d^2 / temperature, with the own class in the sum."""
    if not temperature > 0:
        raise ValueError(f"`temperature > 0` must hold, but got {temperature}")
    head = SoftmaxHead(
        SimilarityScale(2.0 / temperature, mode=temperature_mode, ratio=anneal_ratio),
        label_smoothing=label_smoothing,
        budget=setup.budget,
    )
    return ProxyLoss(setup, head, proxies_per_class=proxies_per_class)
