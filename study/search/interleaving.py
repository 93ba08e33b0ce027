"""Interleaving of space-filling (Sobol) points with the sampler's points.

A search starts with a few Sobol points for the sampler to learn from. After that, one Sobol point
follows every third sampled point, and the remaining ones come last. Running all Sobol points first
would spend 40 % of the budget, at full length, before the search for good values begins. With
interleaving the search begins early, and a study that is interrupted still has enough space-filling
points for a first analysis. The order depends on counts only, so a resumed or extended study
continues as an uninterrupted one would have.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from study.config.plan import Plan

PointSource = Literal["sobol", "bayes"]
STARTUP_POINTS_PER_PARAM = 1.5
"""Number of Sobol points per hyperparameter before the sampler's model is used."""
MIN_STARTUP_POINTS = 4
SAMPLER_POINTS_PER_SOBOL_POINT = 3
"""Number of sampled points per further Sobol point, while sampled points remain."""


@dataclass(frozen=True)
class PointCounts:
    """Number of points from each source."""

    n_sobol: int
    n_sampled: int


class PointInterleaver:
    """Decides the source of each point in the search of one loss.

    Args:
        plan: Plan of the study.
        loss: Registry name of the loss.
    """

    def __init__(self, plan: Plan, loss: str) -> None:
        self._plan, self._loss = plan, loss
        self._n_startup = n_startup_points(len(plan.spaces[loss].distributions))

    def next_source(self, stage: int, started: PointCounts, *, n_ended: int) -> PointSource | None:
        """Return the source of the next point of a stage; None if all points were started.

        Args:
            stage: Index of the stage.
            started: Points started so far.
            n_ended: Points that ended with a score.
        """
        before = self._planned_up_to(stage - 1) if stage else PointCounts(0, 0)
        return choose_source(
            started, before, self._planned_up_to(stage), n_ended=n_ended, n_startup=self._n_startup
        )

    def _planned_up_to(self, stage: int) -> PointCounts:
        return PointCounts(
            self._plan.n_sobol_points(self._loss, stage),
            self._plan.n_sampler_points(self._loss, stage),
        )


def n_startup_points(n_params: int) -> int:
    """Return how many space-filling points must have ended before the sampler is used."""
    return max(MIN_STARTUP_POINTS, math.ceil(STARTUP_POINTS_PER_PARAM * n_params))


def choose_source(
    started: PointCounts, before: PointCounts, upto: PointCounts, *, n_ended: int, n_startup: int
) -> PointSource | None:
    """Return the source of the next point; None if all points of a stage were started.

    Args:
        started: Points started so far.
        before: Points planned before the stage.
        upto: Points planned up to the end of the stage.
        n_ended: Points of either source that ended with a score.
        n_startup: Points that must have ended before the sampler is used. With many parallel
            trials, further Sobol points start while these run.
    """
    sobol_left = upto.n_sobol - started.n_sobol
    sampled_left = upto.n_sampled - started.n_sampled
    if sobol_left <= 0:
        return "bayes" if sampled_left > 0 else None
    if sampled_left <= 0 or started.n_sobol < n_startup or n_ended < n_startup:
        return "sobol"
    sobol_in_stage = started.n_sobol - max(before.n_sobol, n_startup)
    sampled_in_stage = started.n_sampled - before.n_sampled
    is_sobol_due = sampled_in_stage >= SAMPLER_POINTS_PER_SOBOL_POINT * (sobol_in_stage + 1)
    return "sobol" if is_sobol_due else "bayes"
