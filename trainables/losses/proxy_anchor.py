"""Proxy-Anchor: every proxy is an anchor for the whole batch.

Kim et al., CVPR 2020, arXiv:2003.13911. In log space, so that no alpha overflows.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from trainables.losses.anchor_core import anchor_scores
from trainables.losses.blocks import Budget
from trainables.losses.classes import Classes
from trainables.losses.proxy_loss import ProxyLoss, Setup
from trainables.losses.samples import Samples


class AnchorHead(nn.Module):
    """Pull of the classes present (a mean over those) plus push of all classes (a mean over all).

    Not a mean over samples: it changes with the composition of the batch, so it is computed on
    the whole batch, never averaged over parts of it.
    """

    def __init__(self, *, alpha: float, delta: float, budget: Budget) -> None:
        super().__init__()
        self.alpha, self.delta, self.budget = alpha, delta, budget

    def forward(self, samples: Samples, labels: Tensor, classes: Classes) -> Tensor:
        """The loss over all classes."""
        push, positive = anchor_scores(
            samples.embeddings,
            labels,
            classes.segments,
            alpha=self.alpha,
            delta=self.delta,
            between=samples.between,
            budget=self.budget,
            reducer=classes.reducer,
        )
        pull = _soft_maxima(-self.alpha * (positive - self.delta), labels)
        # Absent classes pull nothing, so they must not dilute the mean of those present.
        return pull.mean() + push / classes.count


def _soft_maxima(values: Tensor, labels: Tensor) -> Tensor:
    """log(1 + sum exp(value)) over the samples of each class present."""
    classes, index = torch.unique(labels, return_inverse=True)
    # exp(0) is the 1 in log(1 + sum): the maximum starts at 0.
    maxima = values.new_zeros(len(classes))
    maxima = maxima.scatter_reduce(0, index, values.detach(), "amax", include_self=True)
    sums = torch.exp(-maxima).index_add(0, index, torch.exp(values - maxima[index]))
    return maxima + sums.log()


def proxy_anchor(setup: Setup, *, alpha: float, delta: float) -> ProxyLoss:
    """Soft maxima over each class's samples, pulled and pushed to a margin delta."""
    if not (math.isfinite(alpha) and alpha > 0):
        raise ValueError(f"`alpha > 0` must hold, but got {alpha}.")
    return ProxyLoss(setup, AnchorHead(alpha=alpha, delta=delta, budget=setup.budget))
