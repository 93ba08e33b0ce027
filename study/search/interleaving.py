"""Is the next point a space-filling one or one of the sampler's?

A few Sobol points give the sampler something to start from; after that one more comes after every
third of its own, and what is left of them at the end. One part after the other would spend 40 % of
the budget, at full length, before the search for good settings begins. So it begins early, and a
study that is cut short still has enough space-filling points for a first answer. The order depends
on counts alone: a resumed or extended study goes on as an uninterrupted one would have.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from study.plan import Plan

Part = Literal["sobol", "bayes"]
START_PER_KNOB = 1.5
"""Sobol points for each knob before the sampler's model is worth asking."""
LEAST_START = 4
PACE = 3
"""Points of the sampler for each further Sobol point, while it has some left."""


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
    return max(LEAST_START, math.ceil(START_PER_KNOB * knobs))


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
    sobol_here = asked.sobol - max(before.sobol, start)
    return "sobol" if asked.chosen - before.chosen >= PACE * (sobol_here + 1) else "bayes"
