"""How do the scores of a batch against all classes become a softmax-type loss?"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn.functional import logsigmoid

from trainables.losses.blocks import Budget
from trainables.losses.class_core import class_scores
from trainables.losses.class_rule import Rule
from trainables.losses.classes import Classes
from trainables.losses.samples import Samples
from trainables.losses.scale import Scale

Positive = Callable[[Tensor], Tensor]


class ClassHead(nn.Module):
    """Mean over the batch of -log(own class's share), for any margin on the own class.

    With n = log-sum-exp over the wrong classes and p the own logit: log(1 + exp(n - p)), or
    n - p where the own class is left out of the sum (classic Proxy-NCA; may be negative).

    Args:
        scale: Factor of every logit.
        rule: How proxies become logits of wrong classes.
        positive: Own similarity -> own logit before scaling (the margin); None is the identity.
        own_in_sum: Whether the own class is in the denominator.
        label_smoothing: Target mass spread evenly over the wrong classes (the convention of the
            Proxy-NCA reference code: the own class keeps 1 - smoothing, not a share more).
        budget: Memory for similarities.
    """

    def __init__(
        self,
        scale: Scale,
        *,
        rule: Rule | None = None,
        positive: Positive | None = None,
        own_in_sum: bool = True,
        label_smoothing: float = 0.0,
        budget: Budget | None = None,
    ) -> None:
        super().__init__()
        if not 0.0 <= label_smoothing < 1.0:
            raise ValueError(f"`0 <= label_smoothing < 1` must hold, but got {label_smoothing}.")
        self.scale, self.rule, self.positive = scale, rule or Rule(), positive
        self.own_in_sum, self.label_smoothing = own_in_sum, label_smoothing
        self.budget = budget or Budget()

    def forward(self, samples: Samples, labels: Tensor, classes: Classes) -> Tensor:
        """The loss over all classes."""
        return self.with_spread(samples, labels, classes)[0]

    def with_spread(
        self, samples: Samples, labels: Tensor, classes: Classes
    ) -> tuple[Tensor, Tensor | None]:
        """The loss, and the summed distances among each class's proxies if the rule has them."""
        scale = self.scale()
        scores = class_scores(
            samples.embeddings,
            labels,
            classes.segments,
            scale,
            rule=self.rule,
            between=samples.between,
            with_total=self.label_smoothing > 0,
            budget=self.budget,
            reducer=classes.reducer,
        )
        own = scores.positive if self.positive is None else self.positive(scores.positive)
        own = own * scale
        losses = self._losses(scores.negatives, own, scores.total, classes.count)
        return losses.mean(), scores.spread

    def _losses(
        self, negatives: Tensor, own: Tensor, total: Tensor | None, n_classes: int
    ) -> Tensor:
        if total is not None and n_classes > 1:
            sum_ = torch.logaddexp(negatives, own) if self.own_in_sum else negatives
            spread = self.label_smoothing / (n_classes - 1)
            return sum_ - (1.0 - self.label_smoothing) * own - spread * total
        if self.own_in_sum:
            return -logsigmoid(own - negatives)
        return negatives - own
