"""Circle loss with pair labels: every sample is an anchor for the others of the batch.

Sun et al., CVPR 2020, arXiv:2002.10857, eq. 6. The paper does not define the reduction over the
anchors of a batch, and public codes differ, so it is a hyperparameter; see `PairSoftplusLoss`.
"""

from __future__ import annotations

from torch import Tensor, nn

from trainables.losses.base.pair_softplus import PairReduction, PairSoftplusLoss
from trainables.losses.base.proxy_loss import LossSetup


class CircleLogits(nn.Module):
    """gamma [s + m]_+ (s - m) and -gamma [1 + m - s]_+ (s - 1 + m), the weights detached."""

    def __init__(self, *, gamma: float, m: float) -> None:
        super().__init__()
        if not gamma > 0:
            raise ValueError(f"`gamma > 0` must hold, but got {gamma}")
        self.gamma, self.m = gamma, m

    def forward(self, s: Tensor) -> tuple[Tensor, Tensor]:
        """Return the logits of every pair as a negative and as a positive."""
        constant = s.detach()
        negative = self.gamma * (constant + self.m).relu() * (s - self.m)
        positive = -self.gamma * (1.0 + self.m - constant).relu() * (s - (1.0 - self.m))
        return negative, positive


def build_circle_pair(
    setup: LossSetup, *, gamma: float, m: float, reduction: PairReduction = "valid"
) -> PairSoftplusLoss:
    """Build eq. 6 at pair level, per anchor."""
    return PairSoftplusLoss(setup, CircleLogits(gamma=gamma, m=m), reduction=reduction)
