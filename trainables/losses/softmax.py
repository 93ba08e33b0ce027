"""Softmax cross-entropy over inner products: the plain classifier as a baseline.

Without normalisation and bias it is the unified loss with inner products and gamma = 1 (Sun et al.,
CVPR 2020, section 2). It is the only loss here that depends on the lengths of the vectors.
"""

from __future__ import annotations

from trainables.losses.base.proxy_loss import LossSetup, ProxyLoss
from trainables.losses.base.scale import SimilarityScale
from trainables.losses.base.softmax_head import SoftmaxHead
from trainables.losses.kernels.options import SimilarityRule


def build_softmax(
    setup: LossSetup, *, label_smoothing: float = 0.0, proxies_per_class: int = 1
) -> ProxyLoss:
    """Build the cross-entropy of x . p."""
    head = SoftmaxHead(
        SimilarityScale(1.0),
        rule=SimilarityRule(normalise=False),
        label_smoothing=label_smoothing,
        budget=setup.budget,
    )
    return ProxyLoss(setup, head, proxies_per_class=proxies_per_class)
