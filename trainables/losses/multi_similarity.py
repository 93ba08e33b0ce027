"""Multi-Similarity loss: soft maxima over the mined positives and negatives of each anchor.

Wang et al., CVPR 2019, arXiv:1904.06627, with the pair mining of the paper.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

from trainables.losses.base.pairs import PairMasks, make_pair_masks, pairwise_cosines
from trainables.losses.base.proxy_loss import LossSetup, check_batch

PairMining = Literal["margin", "none"]


class MultiSimilarityLoss(nn.Module):
    """Mean over anchors of pull + push.

    pull = log(1 + sum_p exp(-alpha (s_p - base))) / alpha,
    push = log(1 + sum_n exp(beta (s_n - base))) / beta.

    Args:
        setup: Classes and dimension.
        alpha: Sharpness over positives.
        beta: Sharpness over negatives.
        base: The similarity that separates them (lambda in the paper).
        mining: "margin" keeps a pair only if it is within `epsilon` of the hardest pair of the
            other kind; "none" keeps all pairs.
        epsilon: Slack of the mining.
    """

    def __init__(
        self,
        setup: LossSetup,
        *,
        alpha: float,
        beta: float,
        base: float,
        mining: PairMining,
        epsilon: float,
    ) -> None:
        super().__init__()
        for name, value in (("alpha", alpha), ("beta", beta)):
            if not value > 0:
                raise ValueError(f"`{name} > 0` must hold, but got {value}")
        self.n_classes, self.dim = setup.n_classes, setup.dim
        self.alpha, self.beta, self.base = alpha, beta, base
        self.mining, self.epsilon = mining, epsilon

    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        """Return the loss of (batch, dim) embeddings with int64 labels."""
        check_batch(embeddings, labels, n_classes=self.n_classes, dim=self.dim)
        s = pairwise_cosines(embeddings)
        pairs = make_pair_masks(labels)
        if self.mining == "margin":
            pairs = self._mine_pairs(s.detach(), pairs)
        pull = _soft_maximum(-self.alpha * (s - self.base), pairs.same) / self.alpha
        push = _soft_maximum(self.beta * (s - self.base), pairs.other) / self.beta
        return (pull + push).mean()

    def _mine_pairs(self, s: Tensor, pairs: PairMasks) -> PairMasks:
        hardest_same = s.masked_fill(~pairs.same, torch.inf).amin(dim=1, keepdim=True)
        hardest_other = s.masked_fill(~pairs.other, -torch.inf).amax(dim=1, keepdim=True)
        return PairMasks(
            pairs.same & (s - self.epsilon < hardest_other),
            pairs.other & (s + self.epsilon > hardest_same),
        )


def _soft_maximum(logits: Tensor, mask: Tensor) -> Tensor:
    zero = logits.new_zeros(len(logits), 1)  # exp(0) is the 1 in log(1 + sum)
    return torch.cat([logits.masked_fill(~mask, -torch.inf), zero], dim=1).logsumexp(dim=1)


def build_multi_similarity(
    setup: LossSetup,
    *,
    alpha: float,
    beta: float,
    base: float = 0.5,
    mining: PairMining = "margin",
    epsilon: float = 0.1,
) -> MultiSimilarityLoss:
    """Build soft maxima over mined pairs: alpha for positives, beta for negatives."""
    return MultiSimilarityLoss(
        setup, alpha=alpha, beta=beta, base=base, mining=mining, epsilon=epsilon
    )
