"""Which trials are not worth finishing?

Asynchronous successive halving (Li et al., MLSys 2020, arXiv:1810.05934) with the epoch as its
time: at each rung a trial must be among the best 1/reduction of all that ever reached that rung.
One population per loss, because losses converge at different speeds. Its whole state is the scores
at the rungs, so it is rebuilt from the recorded learning curves after a restart.

A rung is used as long as nothing speaks against it: where trials that are never stopped (published
and Sobol points) end in an order that has little to do with their order at the rung, learning
curves cross, and stopping there would throw the best away.

Ranks decide while few trials have finished. Once there are enough of them, `outlook` foretells what
a trial will reach, and decides in their place.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Mapping, Sequence

import numpy as np

LEAST_AGREEMENT = 0.7
"""Rank correlation of the scores at a rung with the final ones, below which it stops nobody."""
LEAST_WITNESSES = 6
"""Full-length trials without which the correlation says nothing."""


class Rungs:
    """The rungs of one loss.

    Args:
        epochs: Length of a full trial; nothing is decided there.
        grace: No trial is stopped before this epoch.
        reduction: At a rung the best 1/reduction go on.
    """

    def __init__(self, *, epochs: int, grace: int, reduction: int) -> None:
        if grace < 1 or reduction < 2:
            raise ValueError(
                f"`grace >= 1` and `reduction >= 2` must hold, but got {grace=}, {reduction=}."
            )
        self.milestones: list[int] = []
        milestone = grace
        while milestone < epochs:
            self.milestones.append(milestone)
            milestone *= reduction
        self._reduction = reduction
        self._scores: dict[int, dict[str, float]] = {m: {} for m in self.milestones}
        self._sorted: dict[int, list[float]] = {m: [] for m in self.milestones}
        self._final: dict[str, float] = {}
        self._misleading: dict[int, bool] = {}

    def witness(self, trial: str, score: float) -> None:
        """A trial that could not be stopped ended with a score: what was each rung worth?"""
        self._final[trial] = score
        self._misleading.clear()

    def is_misleading(self, milestone: int) -> bool:
        """Whether the scores at a rung have shown to say little about the final ones."""
        if milestone not in self._misleading:
            scores = self._scores[milestone]
            both = [(scores[t], s) for t, s in self._final.items() if t in scores]
            both = [pair for pair in both if all(map(math.isfinite, pair))]
            self._misleading[milestone] = (
                len(both) >= LEAST_WITNESSES and _agreement(both) < LEAST_AGREEMENT
            )
        return self._misleading[milestone]

    def report(self, trial: str, epoch: int, score: float) -> bool:
        """Record a score; True when the trial should stop here.

        A trial that skipped a milestone (it continued from a later checkpoint) is judged at the
        first epoch it reports beyond it.
        """
        stop = False
        for milestone in self.milestones:
            scores = self._scores[milestone]
            if epoch >= milestone and trial not in scores:
                scores[trial] = score
                if math.isfinite(score):
                    bisect.insort(self._sorted[milestone], score)
                stop = self._is_below(milestone, score)
        return stop

    def is_low(self, trial: str, epoch: int) -> bool:
        """Whether a trial whose score was recorded at this epoch should stop there."""
        if epoch not in self._scores or trial not in self._scores[epoch]:
            return False
        return self._is_below(epoch, self._scores[epoch][trial])

    def replay(self, trial: str, curve: Mapping[int, float]) -> None:
        """Record a trial's learning curve without deciding anything."""
        for epoch in sorted(curve):
            self.report(trial, epoch, curve[epoch])

    def scores_at(self, milestone: int) -> dict[str, float]:
        """The scores recorded at a rung, by trial."""
        return dict(self._scores[milestone])

    def _is_below(self, milestone: int, score: float) -> bool:
        low = score < self._threshold(self._sorted[milestone])
        return low and not self.is_misleading(milestone)

    def _threshold(self, scores: Sequence[float]) -> float:
        """The score that the best 1/reduction reach: a quantile, interpolated linearly."""
        if len(scores) < 2:
            return -math.inf
        place = (len(scores) - 1) * (1.0 - 1.0 / self._reduction)
        below = int(place)
        above = min(below + 1, len(scores) - 1)
        return scores[below] + (place - below) * (scores[above] - scores[below])


def _agreement(pairs: Sequence[tuple[float, float]]) -> float:
    """Spearman's rank correlation; 1 where one side does not vary (it misleads nobody)."""
    from scipy.stats import rankdata

    first, second = (rankdata(column) for column in zip(*pairs, strict=True))
    if np.ptp(first) == 0 or np.ptp(second) == 0:
        return 1.0
    return float(np.corrcoef(first, second)[0, 1])
