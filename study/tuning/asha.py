"""Which trials are not worth finishing?

Asynchronous successive halving (Li et al., MLSys 2020, arXiv:1810.05934) with the epoch as its
time: at each rung a trial must be among the best 1/reduction of all that ever reached that rung.
One population per loss, because losses converge at different speeds. Its whole state is the scores
at the rungs, so it is rebuilt from the recorded learning curves after a restart.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Mapping, Sequence


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
                stop = score < self._threshold(self._sorted[milestone])
        return stop

    def is_low(self, trial: str, epoch: int) -> bool:
        """Whether a trial whose score was recorded at this epoch should stop there."""
        if epoch not in self._scores or trial not in self._scores[epoch]:
            return False
        return self._scores[epoch][trial] < self._threshold(self._sorted[epoch])

    def replay(self, trial: str, curve: Mapping[int, float]) -> None:
        """Record a trial's learning curve without deciding anything."""
        for epoch in sorted(curve):
            self.report(trial, epoch, curve[epoch])

    def scores_at(self, milestone: int) -> dict[str, float]:
        """The scores recorded at a rung, by trial."""
        return dict(self._scores[milestone])

    def _threshold(self, scores: Sequence[float]) -> float:
        """The score that the best 1/reduction reach: a quantile, interpolated linearly."""
        if len(scores) < 2:
            return -math.inf
        place = (len(scores) - 1) * (1.0 - 1.0 / self._reduction)
        below = int(place)
        above = min(below + 1, len(scores) - 1)
        return scores[below] + (place - below) * (scores[above] - scores[below])
