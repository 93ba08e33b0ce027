"""Pair loss log(1 + sum over negatives * sum over positives), with three reductions."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

from trainables.losses.base.pairs import make_pair_masks, pairwise_cosines
from trainables.losses.base.proxy_loss import LossSetup, check_batch

PairReduction = Literal["valid", "all", "batch"]


class UnifiedLogits(nn.Module):
    """gamma (s + m) for a negative pair, -gamma s for a positive one."""

    def __init__(self, *, gamma: float, m: float) -> None:
        super().__init__()
        if not gamma > 0:
            raise ValueError(f"`gamma > 0` must hold, but got {gamma}")
        self.gamma, self.m = gamma, m

    def forward(self, s: Tensor) -> tuple[Tensor, Tensor]:
        """Return the logits of every pair as a negative and as a positive."""
        return self.gamma * (s + self.m), -self.gamma * s


class PairSoftplusLoss(nn.Module):
    """softplus(logsumexp over negatives + logsumexp over positives).

    The value for a batch depends on the reduction, by nearly a factor of two:

    - "valid": one term per anchor, mean over the anchors that have both kinds of pairs
      (pytorch-metric-learning, except for vanishing terms);
    - "all": the same terms, divided by the batch size (fast-reid);
    - "batch": one term for the batch, over all its unordered pairs (TinyZeaMays' code).

    Args:
        setup: Classes and dimension.
        logits: Module that maps similarities to (logits as negatives, logits as positives).
        reduction: One of the above.
    """

    def __init__(self, setup: LossSetup, logits: nn.Module, *, reduction: PairReduction) -> None:
        super().__init__()
        if reduction not in ("valid", "all", "batch"):
            raise ValueError(f"`reduction` must be valid, all or batch, but got {reduction!r}")
        self.n_classes, self.dim = setup.n_classes, setup.dim
        self.logits, self.reduction = logits, reduction

    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        """Return the loss of (batch, dim) embeddings; 0 if a batch lacks one kind of pairs."""
        check_batch(embeddings, labels, n_classes=self.n_classes, dim=self.dim)
        negative, positive = self.logits(pairwise_cosines(embeddings))
        same, other = make_pair_masks(labels)
        if self.reduction == "batch":
            shape = (1, -1)
            same, other = same.triu().reshape(shape), other.triu().reshape(shape)
            negative, positive = negative.reshape(shape), positive.reshape(shape)
        valid = same.any(dim=1, keepdim=True) & other.any(dim=1, keepdim=True)
        # Rows without one kind of pairs are not masked: a sum over nothing has no finite gradient.
        sums = _masked_logsumexp(negative, valid & ~other) + _masked_logsumexp(
            positive, valid & ~same
        )
        losses = torch.logaddexp(sums, torch.zeros_like(sums)).masked_fill(~valid, 0.0)
        terms = len(embeddings) if self.reduction == "all" else valid.sum().clamp(min=1)
        return losses.sum() / terms


def _masked_logsumexp(logits: Tensor, excluded: Tensor) -> Tensor:
    return logits.masked_fill(excluded, -torch.inf).logsumexp(dim=1, keepdim=True)
