"""Contrastive loss: same class within one distance, different classes beyond another.

Hadsell et al., "Dimensionality Reduction by Learning an Invariant Mapping", CVPR 2006, in the form
of the Metric Learning Reality Check: Euclidean distances of unit vectors, hinges not squared.
"""

from __future__ import annotations

from torch import Tensor, nn

from trainables.losses.pairs import distances, pairs_of
from trainables.losses.proxy_loss import Setup, check_batch


class ContrastiveLoss(nn.Module):
    """Mean of [d - pos_margin]_+ over same-class pairs plus of [margin - d]_+ over the others.

    Each mean is over the pairs whose hinge is open, so that the many easy pairs do not dilute it.
    """

    def __init__(self, setup: Setup, *, margin: float, pos_margin: float) -> None:
        super().__init__()
        self.n_classes, self.dim = setup.n_classes, setup.dim
        self.margin, self.pos_margin = margin, pos_margin

    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        """The loss of (batch, dim) embeddings with int64 labels."""
        check_batch(embeddings, labels, n_classes=self.n_classes, dim=self.dim)
        d = distances(embeddings)
        same, other = pairs_of(labels)
        pull = _mean_open((d - self.pos_margin).relu() * same)
        return pull + _mean_open((self.margin - d).relu() * other)


def _mean_open(hinges: Tensor) -> Tensor:
    return hinges.sum() / (hinges > 0).sum().clamp(min=1)


def contrastive(setup: Setup, *, margin: float, pos_margin: float = 0.0) -> ContrastiveLoss:
    """Hinges on the distances of pairs; `margin` is that of different classes."""
    return ContrastiveLoss(setup, margin=margin, pos_margin=pos_margin)
