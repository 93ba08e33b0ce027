"""Asynchronous successive halving (ASHA): the pruner of the first trials of a search.

Li et al., MLSys 2020, arXiv:1810.05934, with the epoch as the resource: at each rung a trial must
be among the best 1/reduction of all trials that ever reached that rung. Each loss has its own
population, because losses converge at different speeds. The state consists of the scores at the
rungs only, so it is rebuilt from the recorded learning curves after a restart.

A rung is disabled once evidence speaks against it: if trials that are never stopped (published and
Sobol points) finish in an order that has little to do with their order at the rung, learning curves
cross, and stopping there would discard the best trials.

Ranks decide only while few trials have finished. With enough finished trials,
`study.search.curve_prediction` predicts final scores and decides instead.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Mapping, Sequence

MIN_RANK_CORRELATION = 0.7
"""Rank correlation between scores at a rung and final scores below which the rung is disabled."""
MIN_TRIALS_FOR_CORRELATION = 6
"""Number of full-length trials needed before the rank correlation is used."""


class SuccessiveHalving:
    """Pruner of one loss: its rungs and the scores recorded there.

    Args:
        epochs: Length of a full trial; there is no rung at this epoch.
        grace: No trial is stopped before this epoch.
        reduction: At a rung the best 1/reduction of the trials continue.
    """

    def __init__(self, *, epochs: int, grace: int, reduction: int) -> None:
        if grace < 1 or reduction < 2:
            raise ValueError(
                f"`grace >= 1` and `reduction >= 2` must hold, but got {grace=}, {reduction=}"
            )
        self.milestones: list[int] = []
        milestone = grace
        while milestone < epochs:
            self.milestones.append(milestone)
            milestone *= reduction
        self._reduction = reduction
        self._rung_scores: dict[int, dict[str, float]] = {m: {} for m in self.milestones}
        self._sorted_scores: dict[int, list[float]] = {m: [] for m in self.milestones}
        self._final_scores: dict[str, float] = {}
        self._unreliable_rungs: dict[int, bool] = {}

    def add_final_score(self, trial: str, score: float) -> None:
        """Add the final score of a trial that could not be stopped, as evidence on the rungs."""
        self._final_scores[trial] = score
        self._unreliable_rungs.clear()

    def is_rung_unreliable(self, milestone: int) -> bool:
        """Whether scores at a rung are known to be poorly correlated with final scores."""
        if milestone not in self._unreliable_rungs:
            scores = self._rung_scores[milestone]
            pairs = [(scores[t], s) for t, s in self._final_scores.items() if t in scores]
            pairs = [pair for pair in pairs if all(map(math.isfinite, pair))]
            self._unreliable_rungs[milestone] = (
                len(pairs) >= MIN_TRIALS_FOR_CORRELATION
                and _rank_correlation(pairs) < MIN_RANK_CORRELATION
            )
        return self._unreliable_rungs[milestone]

    def report_score(self, trial: str, epoch: int, score: float) -> bool:
        """Record a score and return whether the trial should stop here.

        A trial that skipped a milestone (it resumed from a later checkpoint) is judged at the first
        epoch it reports after the milestone.
        """
        stop = False
        for milestone in self.milestones:
            scores = self._rung_scores[milestone]
            if epoch >= milestone and trial not in scores:
                scores[trial] = score
                if math.isfinite(score):
                    bisect.insort(self._sorted_scores[milestone], score)
                stop = self._is_below_threshold(milestone, score)
        return stop

    def should_stop_at(self, trial: str, epoch: int) -> bool:
        """Whether a trial whose score was recorded at this epoch should stop there."""
        if epoch not in self._rung_scores or trial not in self._rung_scores[epoch]:
            return False
        return self._is_below_threshold(epoch, self._rung_scores[epoch][trial])

    def replay_curve(self, trial: str, curve: Mapping[int, float]) -> None:
        """Record the learning curve of a trial without any decision."""
        for epoch in sorted(curve):
            self.report_score(trial, epoch, curve[epoch])

    def _is_below_threshold(self, milestone: int, score: float) -> bool:
        is_low = score < self._promotion_threshold(self._sorted_scores[milestone])
        return is_low and not self.is_rung_unreliable(milestone)

    def _promotion_threshold(self, scores: Sequence[float]) -> float:
        """Return the score that the best 1/reduction reach: a linearly interpolated quantile."""
        if len(scores) < 2:
            return -math.inf
        position = (len(scores) - 1) * (1.0 - 1.0 / self._reduction)
        below = int(position)
        above = min(below + 1, len(scores) - 1)
        return scores[below] + (position - below) * (scores[above] - scores[below])


def _rank_correlation(pairs: Sequence[tuple[float, float]]) -> float:
    """Return Spearman's rank correlation; 1 if either side is constant.

    A constant side is no evidence against a rung, and the coefficient is undefined there.
    """
    from scipy.stats import spearmanr

    rung_scores, final_scores = zip(*pairs, strict=True)
    if len(set(rung_scores)) == 1 or len(set(final_scores)) == 1:
        return 1.0
    return float(spearmanr(rung_scores, final_scores).statistic)
