"""SoftTriple: several centres per class, softly chosen, and drawn together when not needed.

Qian et al., ICCV 2019, arXiv:1909.05235, with its regulariser; parameters as in the authors'
code, where gamma is a temperature (0.1) of the choice among centres.
"""

from __future__ import annotations

from torch import Tensor, nn

from trainables.losses.am_softmax import CosineMargin
from trainables.losses.class_head import ClassHead
from trainables.losses.class_rule import Rule
from trainables.losses.classes import Classes
from trainables.losses.proxy_loss import ProxyLoss, Setup
from trainables.losses.samples import Samples
from trainables.losses.scale import Scale, ScaleMode


class SoftTripleHead(nn.Module):
    """Cross-entropy of the pooled similarities plus tau times the mean spread of the centres.

    Only trained centres are drawn together; synthetic classes have no centres of their own.
    """

    def __init__(self, classes: ClassHead, *, tau: float) -> None:
        super().__init__()
        self.classes, self.tau = classes, tau

    def forward(self, samples: Samples, labels: Tensor, classes: Classes) -> Tensor:
        """The loss over all classes."""
        loss, spread = self.classes.with_spread(samples, labels, classes)
        if spread is None:
            return loss
        centres = classes.segments[0].proxies.shape[1]
        return loss + (self.tau / (classes.trained * centres * (centres - 1))) * spread


def soft_triple(
    setup: Setup,
    *,
    lambda_: float,
    gamma: float,
    tau: float,
    delta: float,
    centers: int,
    temperature_mode: ScaleMode = "fixed",
    anneal_ratio: float = 4.0,
    label_smoothing: float = 0.0,
) -> ProxyLoss:
    """Cross-entropy of lambda (S_c - delta [own class]) + tau R, S_c over `centers` per class."""
    if not gamma > 0:
        raise ValueError(f"`gamma > 0` (a temperature) must hold, but got {gamma}.")
    if not tau >= 0:
        raise ValueError(f"`tau >= 0` must hold, but got {tau}.")
    head = ClassHead(
        Scale(lambda_, mode=temperature_mode, ratio=anneal_ratio, knob="lambda_"),
        rule=Rule(centre_temperature=gamma, with_spread=tau > 0 and centers > 1),
        positive=CosineMargin(delta),
        label_smoothing=label_smoothing,
        budget=setup.budget,
    )
    return ProxyLoss(setup, SoftTripleHead(head, tau=tau), proxies_per_class=centers)
