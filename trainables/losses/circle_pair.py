"""Circle loss with pair labels: every sample an anchor for the others of the batch.

Sun et al., CVPR 2020, arXiv:2002.10857, eq. 6. How the anchors of a batch are reduced is not in the
paper and differs between public codes, so it is a choice here; see `PairSoftplus`.
"""

from __future__ import annotations

from torch import Tensor, nn

from trainables.losses.pair_softplus import PairSoftplus, Reduction
from trainables.losses.proxy_loss import Setup


class CircleLogits(nn.Module):
    """gamma [s + m]_+ (s - m) and -gamma [1 + m - s]_+ (s - 1 + m), the weights detached."""

    def __init__(self, *, gamma: float, m: float) -> None:
        super().__init__()
        if not gamma > 0:
            raise ValueError(f"`gamma > 0` must hold, but got {gamma}.")
        self.gamma, self.m = gamma, m

    def forward(self, s: Tensor) -> tuple[Tensor, Tensor]:
        """Logits of every pair as a negative and as a positive."""
        known = s.detach()
        negative = self.gamma * (known + self.m).relu() * (s - self.m)
        positive = -self.gamma * (1.0 + self.m - known).relu() * (s - (1.0 - self.m))
        return negative, positive


def circle_pair(
    setup: Setup, *, gamma: float, m: float, reduction: Reduction = "valid"
) -> PairSoftplus:
    """Eq. 6 at pair level, per anchor."""
    return PairSoftplus(setup, CircleLogits(gamma=gamma, m=m), reduction=reduction)
