"""Margin loss: a boundary beta between close and distant pairs, with a margin on both sides.

Wu et al., "Sampling Matters in Deep Embedding Learning", ICCV 2017, arXiv:1706.07567, over all
triplets of the batch instead of sampled ones, averaged over the positive hinges.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from trainables.losses.base.pairs import make_pair_masks, pairwise_distances
from trainables.losses.base.proxy_loss import LossSetup, check_batch


class MarginLoss(nn.Module):
    """[margin + d(a, p) - beta]_+ + [margin + beta - d(a, n)]_+.

    The two hinges of a triplet are independent. Over all triplets a positive pair counts once for
    each negative of its anchor, so two (batch, batch) sums with these counts give the loss.

    Args:
        setup: Classes and dimension.
        margin: Half width of the band around the boundary.
        beta: The boundary, a Euclidean distance of unit vectors (0 to 2); its initial value if
            learned.
        learn_beta: Whether the boundary is a parameter.
        nu: Weight of the term nu * beta that keeps a learned boundary small.
    """

    def __init__(
        self, setup: LossSetup, *, margin: float, beta: float, learn_beta: bool, nu: float
    ) -> None:
        super().__init__()
        self.n_classes, self.dim = setup.n_classes, setup.dim
        self.margin, self.nu, self.learn_beta = margin, nu, learn_beta
        self.beta: float | Tensor = nn.Parameter(torch.tensor(beta)) if learn_beta else beta

    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        """Return the loss of (batch, dim) embeddings with int64 labels."""
        check_batch(embeddings, labels, n_classes=self.n_classes, dim=self.dim)
        d = pairwise_distances(embeddings)
        same, other = make_pair_masks(labels)
        pull_weight = same * other.sum(dim=1, keepdim=True)
        push_weight = other * same.sum(dim=1, keepdim=True)
        pull = (d - self.beta + self.margin).relu()
        push = (self.beta - d + self.margin).relu()
        n_positive = (pull_weight * (pull > 0)).sum() + (push_weight * (push > 0)).sum()
        total = (pull * pull_weight).sum() + (push * push_weight).sum()
        loss = total / n_positive.clamp(min=1)
        return loss + self.nu * self.beta if self.learn_beta else loss


def build_margin(
    setup: LossSetup,
    *,
    margin: float,
    beta: float = 1.2,
    learn_beta: bool = False,
    nu: float = 0.0,
) -> MarginLoss:
    """Build hinges on both sides of a boundary between close and distant pairs."""
    return MarginLoss(setup, margin=margin, beta=beta, learn_beta=learn_beta, nu=nu)
