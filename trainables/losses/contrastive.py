"""Contrastive loss: pairs of a class within one distance, other pairs beyond another.

Hadsell et al., "Dimensionality Reduction by Learning an Invariant Mapping", CVPR 2006, in the form
of the Metric Learning Reality Check: Euclidean distances of unit vectors, hinges not squared.
"""

from __future__ import annotations

from torch import Tensor, nn

from trainables.losses.base.pairs import make_pair_masks, pairwise_distances
from trainables.losses.base.proxy_loss import LossSetup, check_batch


class ContrastiveLoss(nn.Module):
    """Mean of [d - pos_margin]_+ over same-class pairs plus that of [margin - d]_+ over the others.

    Each mean is over the pairs with a positive hinge, so that easy pairs do not dilute it.
    """

    def __init__(self, setup: LossSetup, *, margin: float, pos_margin: float) -> None:
        super().__init__()
        self.n_classes, self.dim = setup.n_classes, setup.dim
        self.margin, self.pos_margin = margin, pos_margin

    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        """Return the loss of (batch, dim) embeddings with int64 labels."""
        check_batch(embeddings, labels, n_classes=self.n_classes, dim=self.dim)
        d = pairwise_distances(embeddings)
        same, other = make_pair_masks(labels)
        pull = _mean_nonzero((d - self.pos_margin).relu() * same)
        return pull + _mean_nonzero((self.margin - d).relu() * other)


def _mean_nonzero(hinges: Tensor) -> Tensor:
    return hinges.sum() / (hinges > 0).sum().clamp(min=1)


def build_contrastive(
    setup: LossSetup, *, margin: float, pos_margin: float = 0.0
) -> ContrastiveLoss:
    """Build hinges on the distances of pairs; `margin` is that of different classes."""
    return ContrastiveLoss(setup, margin=margin, pos_margin=pos_margin)
