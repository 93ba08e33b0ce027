"""SoftTriple: several centres per class with soft assignment and a merging regulariser.

Qian et al., ICCV 2019, arXiv:1909.05235; parameters as in the authors' code, where gamma is the
temperature (0.1) of the assignment to centres.
"""

from __future__ import annotations

from torch import Tensor, nn

from trainables.losses.am_softmax import CosineMargin
from trainables.losses.base.classes import StepClasses
from trainables.losses.base.proxy_loss import LossSetup, ProxyLoss
from trainables.losses.base.scale import ScaleMode, SimilarityScale
from trainables.losses.base.softmax_head import SoftmaxHead
from trainables.losses.kernels.mixture import EmbeddingBatch
from trainables.losses.kernels.options import SimilarityRule


class SoftTripleHead(nn.Module):
    """Cross-entropy of the pooled similarities plus tau times the mean spread of the centres.

    The regulariser covers trained centres only; synthetic classes have no centres of their own.
    """

    def __init__(self, classes: SoftmaxHead, *, tau: float) -> None:
        super().__init__()
        self.classes, self.tau = classes, tau

    def forward(self, samples: EmbeddingBatch, labels: Tensor, classes: StepClasses) -> Tensor:
        """Return the loss over all classes."""
        loss, spread = self.classes.loss_and_spread(samples, labels, classes)
        if spread is None:
            return loss
        centres = classes.segments[0].proxies.shape[1]
        return loss + (self.tau / (classes.n_trained_classes * centres * (centres - 1))) * spread


def build_soft_triple(
    setup: LossSetup,
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
    """Build the cross-entropy of lambda (S_c - delta [own class]) plus tau R.

    S_c is the similarity to class c, pooled over its `centers` centres.
    """
    if not gamma > 0:
        raise ValueError(f"`gamma > 0` (a temperature) must hold, but got {gamma}")
    if not tau >= 0:
        raise ValueError(f"`tau >= 0` must hold, but got {tau}")
    head = SoftmaxHead(
        SimilarityScale(lambda_, mode=temperature_mode, ratio=anneal_ratio, param="lambda_"),
        rule=SimilarityRule(centre_temperature=gamma, with_spread=tau > 0 and centers > 1),
        positive=CosineMargin(delta),
        label_smoothing=label_smoothing,
        budget=setup.budget,
    )
    return ProxyLoss(setup, SoftTripleHead(head, tau=tau), proxies_per_class=centers)
