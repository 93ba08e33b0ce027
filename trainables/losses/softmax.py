"""Softmax cross-entropy over inner products: the classifier everyone starts from.

No normalisation and no bias, so that it is the unified loss with inner products and gamma = 1
(Sun et al., CVPR 2020, section 2). Lengths count here: the only loss that is not invariant to them.
"""

from __future__ import annotations

from trainables.losses.class_head import ClassHead
from trainables.losses.class_rule import Rule
from trainables.losses.proxy_loss import ProxyLoss, Setup
from trainables.losses.scale import Scale


def softmax(setup: Setup, *, label_smoothing: float = 0.0, proxies_per_class: int = 1) -> ProxyLoss:
    """Cross-entropy of x . p."""
    head = ClassHead(
        Scale(1.0),
        rule=Rule(normalise=False),
        label_smoothing=label_smoothing,
        budget=setup.budget,
    )
    return ProxyLoss(setup, head, proxies_per_class=proxies_per_class)
