"""Is the next point a space-filling one or one of the sampler's?

A few Sobol points give the sampler something to start from; after that the two parts advance side
by side, in the proportion of what is left of each. One part after the other would spend 40 % of the
budget, at full length, before the search for good settings begins. So it begins early, and a study
that is cut short still has about the share of space-filling points it was planned with. The answer
depends on counts alone: a resumed or extended study goes on in the order an uninterrupted one would
have had.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from study.plan import Plan

Part = Literal["sobol", "bayes"]
START_PER_KNOB = 2
"""Sobol points for each knob before the sampler's model is worth asking."""
LEAST_START = 4


@dataclass(frozen=True)
class Counts:
    """Points of both parts."""

    sobol: int
    chosen: int


class Order:
    """The order of one loss's search.

    Args:
        plan: The study.
        loss: Registry name.
    """

    def __init__(self, plan: Plan, loss: str) -> None:
        self._plan, self._loss = plan, loss
        self._start = start_points(len(plan.spaces[loss].distributions))

    def next_part(self, stage: int, asked: Counts, *, ended: int) -> Part | None:
        """Which part the next point of a stage is of; None when all were asked."""
        before = self._up_to(stage - 1) if stage else Counts(0, 0)
        return next_part(asked, before, self._up_to(stage), ended=ended, start=self._start)

    def _up_to(self, stage: int) -> Counts:
        return Counts(self._plan.sobol(self._loss, stage), self._plan.chosen(self._loss, stage))


def start_points(knobs: int) -> int:
    """Space-filling points that must have ended before the sampler chooses."""
    return max(LEAST_START, START_PER_KNOB * knobs)


def next_part(
    asked: Counts, before: Counts, upto: Counts, *, ended: int, start: int
) -> Part | None:
    """Which part the next point is of; None when all of a stage were asked.

    Args:
        asked: Points asked so far.
        before: Points planned up to the stage.
        upto: Points planned up to the stage's end.
        ended: Points that ended with a score, whatever part they are of.
        start: Points without which the sampler knows too little. With many slots more Sobol points
            are asked while these run.
    """
    sobol_left, chosen_left = upto.sobol - asked.sobol, upto.chosen - asked.chosen
    if sobol_left <= 0:
        return "bayes" if chosen_left > 0 else None
    if chosen_left <= 0 or asked.sobol < start or ended < start:
        return "sobol"
    sobol_done = (asked.sobol - max(before.sobol, start) + 1) / (
        upto.sobol - max(before.sobol, start)
    )
    chosen_done = (asked.chosen - before.chosen + 1) / (upto.chosen - before.chosen)
    return "bayes" if chosen_done <= sobol_done else "sobol"
