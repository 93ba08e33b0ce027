"""The points of one loss that neither its paper nor the Sobol sequence gives."""

from __future__ import annotations

from typing import Any

from search_spaces.space import Value
from study.plan import Plan
from study.tuning.mirror import Mirror
from study.tuning.sampling import grid_points, make_sampler, sampler_name, sampler_record
from trainables.seeding import derive

_NEEDS_FULL_VALUES = ("gp", "cmaes")


class Chooser:
    """The sampler of one loss.

    It sees a mirror of the record in memory; one that cannot use stopped trials (GP, CMA-ES) is
    shown a value corrected to full length.

    Args:
        plan: The study.
        loss: Registry name.
    """

    def __init__(self, plan: Plan, loss: str) -> None:
        self._plan, self._loss, self._space = plan, loss, plan.spaces[loss]
        self._seed = plan.file.search.seed
        self._name = sampler_name(plan.file.search.sampler, self._space, plan.points(loss))
        # The space-filling part is the start-up; a study without one still needs a few points.
        self._startup = 0 if plan.sobol(loss, 0) >= 4 else 4
        self._grid: list[dict[str, Value]] = []
        self.mirror = Mirror(self._space)

    @property
    def needs_full_values(self) -> bool:
        """Whether stopped trials must be told with a score of full length."""
        return self._name in _NEEDS_FULL_VALUES

    def record(self) -> dict[str, Any]:
        """The sampler with every setting."""
        return sampler_record(self._name, startup=self._startup, space=self._space)

    def choose(self, index: int) -> dict[str, Value]:
        """Its point `index`. Only what is recorded and how many were asked matter."""
        if self._name == "grid":
            return self._grid_points()[index]
        sampler = make_sampler(
            self._name,
            seed=derive(self._seed, "sampler", self._loss, index) % 2**32,
            startup=self._startup,
        )
        return self.mirror.ask(sampler)

    def _grid_points(self) -> list[dict[str, Value]]:
        if not self._grid:
            totals = [self._plan.chosen(self._loss, i) for i in range(len(self._plan.stages))]
            self._grid = grid_points(self._space, totals, seed=self._seed)
        return self._grid
