"""Triplet loss: a sample is nearer to its class than to any other, by a margin.

Batch hard: Hermans et al., "In Defense of the Triplet Loss", 2017, arXiv:1703.07737. Semi-hard:
Schroff et al., "FaceNet", CVPR 2015, arXiv:1503.03832. Distances are Euclidean between unit
vectors (not squared), so the margin lies on a scale from 0 to 2.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

from trainables.losses.pairs import distances, pairs_of
from trainables.losses.proxy_loss import Setup, check_batch

Mining = Literal["hard", "semihard"]
MINED = 2**22
"""Distances looked at together for semi-hard triplets."""


class TripletLoss(nn.Module):
    """Mean hinge of d(a, p) - d(a, n) + margin over the mined triplets.

    Args:
        setup: Classes and dimension.
        margin: How much nearer the positive must be.
        mining: "hard": per anchor the farthest positive and the nearest negative, anchors
            without either left out. "semihard": all triplets whose negative is farther than the
            positive but within the margin. No such triplet: zero.
    """

    def __init__(self, setup: Setup, *, margin: float, mining: Mining) -> None:
        super().__init__()
        if mining not in ("hard", "semihard"):
            raise ValueError(f"`mining` must be hard or semihard, but got {mining!r}.")
        self.n_classes, self.dim, self.margin, self.mining = (
            setup.n_classes,
            setup.dim,
            margin,
            mining,
        )

    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        """The loss of (batch, dim) embeddings with int64 labels."""
        check_batch(embeddings, labels, n_classes=self.n_classes, dim=self.dim)
        d = distances(embeddings)
        gaps = self._hard(d, labels) if self.mining == "hard" else self._semihard(d, labels)
        # A sum over nothing keeps the graph: the gradient is zero, not missing.
        return (gaps + self.margin).relu().sum() / max(len(gaps), 1)

    def _hard(self, d: Tensor, labels: Tensor) -> Tensor:
        same, other = pairs_of(labels)
        farthest = d.masked_fill(~same, -torch.inf).amax(dim=1)
        nearest = d.masked_fill(~other, torch.inf).amin(dim=1)
        return (farthest - nearest)[same.any(dim=1) & other.any(dim=1)]

    def _semihard(self, d: Tensor, labels: Tensor) -> Tensor:
        same, other = pairs_of(labels)
        fixed, found = d.detach(), []
        # As many positive pairs at a time as their rows of distances fit into the memory stated.
        for pairs in torch.split(torch.nonzero(same), max(1, MINED // len(labels))):
            anchor, positive = pairs.T
            gaps = fixed[anchor, positive][:, None] - fixed[anchor]  # (positive pairs, batch)
            pair, negative = torch.nonzero(
                other[anchor] & (gaps < 0) & (gaps >= -self.margin), as_tuple=True
            )
            found.append(torch.stack([anchor[pair], positive[pair], negative]))
        a, p, n = torch.cat(found, dim=1)
        return d[a, p] - d[a, n]


def triplet(setup: Setup, *, margin: float, mining: Mining = "hard") -> TripletLoss:
    """Hinge on the difference of distances over hard or semi-hard triplets."""
    return TripletLoss(setup, margin=margin, mining=mining)
