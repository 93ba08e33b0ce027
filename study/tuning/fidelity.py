"""What would a trial that was stopped early have reached?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from study.jobs import Outcome


class FullLength:
    """Corrects the scores of stopped trials to full length, from those that were finished.

    A stopped trial is taken to gain what finished ones gained from the same epoch to their end
    (the median). Only the epochs at which trials are stopped are remembered.

    Args:
        milestones: Epochs at which trials are stopped.
    """

    def __init__(self, milestones: Sequence[int]) -> None:
        self._milestones = frozenset(milestones)
        self._open: dict[str, dict[int, float]] = {}
        self._gains: dict[int, list[float]] = {}

    def report(self, trial: str, epoch: int, score: float) -> None:
        """A trial's score after an epoch."""
        if epoch in self._milestones:
            self._open.setdefault(trial, {})[epoch] = score

    def replay(self, trial: str, curve: Mapping[int, float]) -> None:
        """A recorded learning curve."""
        for epoch, score in curve.items():
            self.report(trial, epoch, score)

    def ended(self, trial: str, outcome: Outcome) -> None:
        """A trial ended; what a finished one gained is learned."""
        for epoch, score in self._open.pop(trial, {}).items():
            if outcome.state == "finished":
                self._gains.setdefault(epoch, []).append(outcome.score - score)

    def value(self, outcome: Outcome) -> float | None:
        """The score a stopped trial would have reached; None while no finished one can tell."""
        gains = self._gains.get(outcome.epochs)
        return outcome.score + float(np.median(gains)) if gains else None
