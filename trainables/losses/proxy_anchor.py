"""Proxy-Anchor: every proxy is an anchor for all samples of the batch.

Kim et al., CVPR 2020, arXiv:2003.13911. Computed in log space, so that no alpha overflows.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from trainables.losses.base.classes import StepClasses
from trainables.losses.base.proxy_loss import LossSetup, ProxyLoss
from trainables.losses.kernels.anchor_scores import compute_anchor_scores
from trainables.losses.kernels.blocks import MemoryBudget
from trainables.losses.kernels.mixture import EmbeddingBatch


class ProxyAnchorHead(nn.Module):
    """Mean pull of the classes present in the batch plus mean push of all classes.

    The loss is not a mean over samples: it depends on the composition of the batch, so it is
    computed on the complete batch and never averaged over parts of it.
    """

    def __init__(self, *, alpha: float, delta: float, budget: MemoryBudget) -> None:
        super().__init__()
        self.alpha, self.delta, self.budget = alpha, delta, budget

    def forward(self, samples: EmbeddingBatch, labels: Tensor, classes: StepClasses) -> Tensor:
        """Return the loss over all classes."""
        push, positive = compute_anchor_scores(
            samples.embeddings,
            labels,
            classes.segments,
            alpha=self.alpha,
            delta=self.delta,
            between=samples.between,
            budget=self.budget,
            reducer=classes.shard_reducer,
            unused=classes.unused,
        )
        pull = _mean_soft_maximum(-self.alpha * (positive - self.delta), labels)
        return pull + push / classes.n_classes


def _mean_soft_maximum(values: Tensor, labels: Tensor) -> Tensor:
    """Return the mean over the classes in the batch of log(1 + sum exp(value)) of their samples.

    Absent classes pull nothing, so they must not dilute the mean of those present.
    """
    ordered, order = labels.sort()
    # Number of the class of each sample, from 0; at most as many as samples, so shapes are fixed.
    numbers = (ordered[1:] != ordered[:-1]).cumsum(dim=0)
    index = torch.zeros_like(labels).scatter_(0, order[1:], numbers)
    # exp(0) is the 1 in log(1 + sum): the maximum starts at 0.
    maxima = torch.zeros_like(values)
    maxima = maxima.scatter_reduce(0, index, values.detach(), "amax", include_self=True)
    sums = torch.exp(-maxima).index_add(0, index, torch.exp(values - maxima[index]))
    # An unused number has the soft maximum log(1) = 0.
    return (maxima + sums.log()).sum() / (index.amax() + 1)


def build_proxy_anchor(setup: LossSetup, *, alpha: float, delta: float) -> ProxyLoss:
    """Build soft maxima over the samples of each class, with a margin delta."""
    if not (math.isfinite(alpha) and alpha > 0):
        raise ValueError(f"`alpha > 0` must hold, but got {alpha}")
    return ProxyLoss(setup, ProxyAnchorHead(alpha=alpha, delta=delta, budget=setup.budget))
