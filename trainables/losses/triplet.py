"""Triplet loss: a sample must be closer to its class than to any other, by a margin.

Batch hard: Hermans et al., "In Defense of the Triplet Loss", 2017, arXiv:1703.07737. Semi-hard:
Schroff et al., "FaceNet", CVPR 2015, arXiv:1503.03832. Distances are Euclidean between unit
vectors (not squared), so the margin lies on a scale from 0 to 2.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

from trainables.losses.base.pairs import PairMasks, make_pair_masks, pairwise_distances
from trainables.losses.base.proxy_loss import LossSetup, check_batch
from trainables.losses.kernels.own_entries import can_read_values

TripletMining = Literal["hard", "semihard"]
MAX_DISTANCES_PER_MINING_STEP = 2**22
"""Number of distances that semi-hard mining compares at once; bounds its memory."""


class TripletLoss(nn.Module):
    """Mean hinge of d(a, p) - d(a, n) + margin over the mined triplets.

    Args:
        setup: Classes and dimension.
        margin: How much closer the positive must be.
        mining: "hard" takes the farthest positive and the nearest negative of each anchor that has
            both. "semihard" takes all triplets whose negative is farther than the positive but
            within the margin. Without any triplet the loss is zero.
    """

    def __init__(self, setup: LossSetup, *, margin: float, mining: TripletMining) -> None:
        super().__init__()
        if mining not in ("hard", "semihard"):
            raise ValueError(f"`mining` must be hard or semihard, but got {mining!r}")
        self.n_classes, self.dim, self.margin, self.mining = (
            setup.n_classes,
            setup.dim,
            margin,
            mining,
        )

    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        """Return the loss of (batch, dim) embeddings with int64 labels."""
        check_batch(embeddings, labels, n_classes=self.n_classes, dim=self.dim)
        d = pairwise_distances(embeddings)
        pairs = make_pair_masks(labels)
        if self.mining == "hard":
            return self._mean_hard_hinge(d, pairs)
        if can_read_values(labels):
            gaps = self._mine_semihard_gaps(d, pairs)
            # A sum over no triplets keeps the graph: the gradient is zero, not missing.
            return (gaps + self.margin).relu().sum() / max(len(gaps), 1)
        return self._mean_semihard_hinge(d, pairs)

    def _mean_hard_hinge(self, d: Tensor, pairs: PairMasks) -> Tensor:
        same, other = pairs
        farthest = d.masked_fill(~same, -torch.inf).amax(dim=1)
        nearest = d.masked_fill(~other, torch.inf).amin(dim=1)
        # Without one kind of pairs the gap is -inf, and its hinge and gradient are zero.
        hinges = (farthest - nearest + self.margin).relu()
        n_triplets = (same.any(dim=1) & other.any(dim=1)).sum()
        return hinges.sum() / n_triplets.clamp(min=1)

    def _mean_semihard_hinge(self, d: Tensor, pairs: PairMasks) -> Tensor:
        """Return the mean over the triplets of `_mine_semihard_gaps` without listing them.

        In the sorted distances of an anchor to other classes, the negatives of each positive are
        consecutive. Their numbers give the weight of every distance in the sum of the hinges.
        """
        constant, is_same = d.detach(), pairs.same.to(d.dtype)
        ordered, order = constant.masked_fill(~pairs.other, torch.inf).sort(dim=1)
        first = torch.searchsorted(ordered, constant, right=True)
        last = torch.searchsorted(ordered, constant + self.margin, right=True)
        last = torch.maximum(first, last)
        n_negatives = (last - first) * is_same
        # Every range of negatives adds one to each of them: sums of +1 at its start, -1 at its end.
        steps = is_same.new_zeros(len(d), len(d) + 1)
        steps.scatter_add_(1, first, is_same).scatter_add_(1, last, -is_same)
        n_positives = torch.empty_like(d).scatter_(1, order, steps.cumsum(dim=1)[:, :-1])
        n_triplets = n_negatives.sum()
        total = (d * (n_negatives - n_positives)).sum() + self.margin * n_triplets
        return total / n_triplets.clamp(min=1)

    def _mine_semihard_gaps(self, d: Tensor, pairs: PairMasks) -> Tensor:
        same, other = pairs
        constant, triplets = d.detach(), []
        pairs_per_step = max(1, MAX_DISTANCES_PER_MINING_STEP // len(d))
        for listed in torch.split(torch.nonzero(same), pairs_per_step):
            anchor, positive = listed.T
            gaps = constant[anchor, positive][:, None] - constant[anchor]  # (positive pairs, batch)
            pair, negative = torch.nonzero(
                other[anchor] & (gaps < 0) & (gaps >= -self.margin), as_tuple=True
            )
            triplets.append(torch.stack([anchor[pair], positive[pair], negative]))
        a, p, n = torch.cat(triplets, dim=1)
        return d[a, p] - d[a, n]


def build_triplet(
    setup: LossSetup, *, margin: float, mining: TripletMining = "hard"
) -> TripletLoss:
    """Build the hinge on the difference of distances over hard or semi-hard triplets."""
    return TripletLoss(setup, margin=margin, mining=mining)
