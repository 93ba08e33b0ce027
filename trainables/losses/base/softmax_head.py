"""Softmax-type losses from the scores of a batch against all classes."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn.functional import logsigmoid

from trainables.losses.base.classes import StepClasses
from trainables.losses.base.scale import SimilarityScale
from trainables.losses.kernels.blocks import MemoryBudget
from trainables.losses.kernels.class_scores import compute_class_scores
from trainables.losses.kernels.mixture import EmbeddingBatch
from trainables.losses.kernels.options import SimilarityRule

PositiveTransform = Callable[[Tensor], Tensor]


class SoftmaxHead(nn.Module):
    """Mean over the batch of -log(probability of the own class), with any margin on that class.

    With n = logsumexp over the wrong classes and p the own logit: log(1 + exp(n - p)), or n - p
    if the own class is not in the sum (classic Proxy-NCA; may be negative).

    Args:
        scale: Factor of every logit.
        rule: How proxies become logits of wrong classes.
        positive: Maps the own similarity to the own logit before scaling (the margin); None is the
            identity.
        own_in_sum: Whether the own class is in the denominator.
        label_smoothing: Target probability distributed evenly over the wrong classes. As in the
            Proxy-NCA reference code the own class keeps 1 - smoothing and gets no part of it.
        budget: Memory for similarities.
    """

    def __init__(
        self,
        scale: SimilarityScale,
        *,
        rule: SimilarityRule | None = None,
        positive: PositiveTransform | None = None,
        own_in_sum: bool = True,
        label_smoothing: float = 0.0,
        budget: MemoryBudget | None = None,
    ) -> None:
        super().__init__()
        if not 0.0 <= label_smoothing < 1.0:
            raise ValueError(f"`0 <= label_smoothing < 1` must hold, but got {label_smoothing}")
        self.scale, self.rule, self.positive = scale, rule or SimilarityRule(), positive
        self.own_in_sum, self.label_smoothing = own_in_sum, label_smoothing
        self.budget = budget or MemoryBudget()

    def forward(self, samples: EmbeddingBatch, labels: Tensor, classes: StepClasses) -> Tensor:
        """Return the loss over all classes."""
        return self.loss_and_spread(samples, labels, classes)[0]

    def loss_and_spread(
        self, samples: EmbeddingBatch, labels: Tensor, classes: StepClasses
    ) -> tuple[Tensor, Tensor | None]:
        """Return the loss and, if the rule asks for it, the spread of the proxies of each class."""
        scale = self.scale()
        scores = compute_class_scores(
            samples.embeddings,
            labels,
            classes.segments,
            scale,
            rule=self.rule,
            between=samples.between,
            with_total=self.label_smoothing > 0,
            budget=self.budget,
            reducer=classes.shard_reducer,
            unused=classes.unused,
        )
        own = scores.positive if self.positive is None else self.positive(scores.positive)
        own = own * scale
        losses = self._sample_losses(scores.negatives, own, scores.total, classes)
        return losses.mean(), scores.spread

    def _sample_losses(
        self, negatives: Tensor, own: Tensor, total: Tensor | None, classes: StepClasses
    ) -> Tensor:
        if total is not None and classes.has_wrong_classes:
            sum_ = torch.logaddexp(negatives, own) if self.own_in_sum else negatives
            wrong_target = self.label_smoothing / (classes.n_classes - 1)
            return sum_ - (1.0 - self.label_smoothing) * own - wrong_target * total
        if self.own_in_sum:
            return -logsigmoid(own - negatives)
        return negatives - own
