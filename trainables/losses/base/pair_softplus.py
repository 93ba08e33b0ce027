"""log(1 + sum of negatives x sum of positives), over the pairs of a batch."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

from trainables.losses.pairs import cosines, pairs_of
from trainables.losses.proxy_loss import Setup, check_batch

Reduction = Literal["valid", "all", "batch"]


class UnifiedLogits(nn.Module):
    """gamma (s + m) for a negative pair, -gamma s for a positive one."""

    def __init__(self, *, gamma: float, m: float) -> None:
        super().__init__()
        if not gamma > 0:
            raise ValueError(f"`gamma > 0` must hold, but got {gamma}.")
        self.gamma, self.m = gamma, m

    def forward(self, s: Tensor) -> tuple[Tensor, Tensor]:
        """Logits of every pair as a negative and as a positive."""
        return self.gamma * (s + self.m), -self.gamma * s


class PairSoftplus(nn.Module):
    """softplus(LSE over negatives + LSE over positives).

    The same batch gives different numbers, by nearly a factor two, depending on the reduction:

    - "valid": one term per anchor, mean over the anchors that have both kinds of pairs
      (pytorch-metric-learning, but for terms that vanish);
    - "all": the same terms, divided by the size of the batch (fast-reid);
    - "batch": one term for the batch, over all its unordered pairs (TinyZeaMays' code).

    Args:
        setup: Classes and dimension.
        logits: Similarities -> logits as negatives, logits as positives.
        reduction: One of the above.
    """

    def __init__(self, setup: Setup, logits: nn.Module, *, reduction: Reduction) -> None:
        super().__init__()
        if reduction not in ("valid", "all", "batch"):
            raise ValueError(f"`reduction` must be valid, all or batch, but got {reduction!r}.")
        self.n_classes, self.dim = setup.n_classes, setup.dim
        self.logits, self.reduction = logits, reduction

    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        """The loss of (batch, dim) embeddings with int64 labels; 0 without both kinds of pairs."""
        check_batch(embeddings, labels, n_classes=self.n_classes, dim=self.dim)
        negative, positive = self.logits(cosines(embeddings))
        same, other = pairs_of(labels)
        if self.reduction == "batch":
            shape = (1, -1)
            same, other = same.triu().reshape(shape), other.triu().reshape(shape)
            negative, positive = negative.reshape(shape), positive.reshape(shape)
        valid = same.any(dim=1) & other.any(dim=1)
        sums = _lse(negative[valid], other[valid]) + _lse(positive[valid], same[valid])
        losses = torch.logaddexp(sums, torch.zeros_like(sums))
        terms = len(losses) if self.reduction != "all" else len(embeddings)
        return losses.sum() / max(terms, 1)


def _lse(logits: Tensor, mask: Tensor) -> Tensor:
    return logits.masked_fill(~mask, -torch.inf).logsumexp(dim=1)
