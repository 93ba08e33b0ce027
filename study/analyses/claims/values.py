"""Which values of a knob does a claim speak of?"""

from __future__ import annotations

import numpy as np
from optuna.distributions import BaseDistribution, CategoricalDistribution

from search_spaces.claims import BetterValue, GoodValue, Sensitive, StableRange
from search_spaces.scale import to_unit
from search_spaces.space import in_range
from study.analyses.samples import Array, unit_levels

KnobTest = StableRange | GoodValue | BetterValue | Sensitive
Side = float | str | tuple[float, float]
"""A value of a knob, or a range of a numeric one."""


def range_grid(
    distribution: BaseDistribution, knob: str, low: float | None, high: float | None
) -> Array | str:
    """Positions over the searched part of a claimed range, or why there are none."""
    if isinstance(distribution, CategoricalDistribution):
        within = choices_within(distribution, low, high)
        return to_unit(distribution, within) if within else f"No choice of {knob} is in the range."
    bounds = float(distribution.low), float(distribution.high)  # type: ignore[attr-defined]
    wanted = bounds[0] if low is None else low, bounds[1] if high is None else high
    inside = max(wanted[0], bounds[0]), min(wanted[1], bounds[1])
    if inside[0] > inside[1]:
        return f"The study searched {knob} only in {bounds[0]:g}–{bounds[1]:g}."
    ends = to_unit(distribution, inside)
    log = bool(getattr(distribution, "log", False))
    whole = to_unit(distribution, wanted) if min(wanted) > 0 or not log else ends
    if (ends[1] - ends[0]) < 0.5 * (whole[1] - whole[0]):
        return f"Less than half of the claimed range of {knob} was searched."
    return np.linspace(float(ends[0]), float(ends[1]), 9)


def choices_within(
    distribution: CategoricalDistribution, low: float | None, high: float | None
) -> list[float]:
    """The numbers among the choices that a range holds (None: open to that side)."""
    return [
        c
        for c in distribution.choices
        if isinstance(c, int | float)
        and not isinstance(c, bool)
        and (low is None or c >= low)
        and (high is None or c <= high)
    ]


def place(distribution: BaseDistribution, knob: str, value: float | str) -> Array | str:
    """Position of one claimed value, or why it has none."""
    if not in_range(distribution, value):
        return f"{knob} = {value} is outside what was searched."
    return to_unit(distribution, [value])


def side_grid(distribution: BaseDistribution, knob: str, side: Side) -> Array | str:
    """Positions of one side of a comparison."""
    if isinstance(side, tuple):
        return range_grid(distribution, knob, *side)
    return place(distribution, knob, side)


def words(side: Side) -> str:
    """A side of a comparison for people."""
    return f"{side[0]:g}–{side[1]:g}" if isinstance(side, tuple) else str(side)


def claimed_grid(
    distribution: BaseDistribution, test: StableRange | GoodValue | Sensitive
) -> Array | str:
    """Positions of all that the claim speaks of, or why there are none."""
    match test:
        case StableRange():
            return range_grid(distribution, test.knob, test.low, test.high)
        case GoodValue():
            return place(distribution, test.knob, test.value)
        case Sensitive():
            return whole_grid(distribution)


def whole_grid(distribution: BaseDistribution) -> Array:
    """Positions over all that was searched."""
    levels = unit_levels(distribution, most=9)
    return np.linspace(0.0, 1.0, 9) if levels is None else levels


def within(distribution: BaseDistribution, units: Array, grid: Array) -> np.ndarray:
    """Which positions a claim speaks of, given its grid."""
    if isinstance(distribution, CategoricalDistribution):
        return np.asarray((np.abs(units[:, None] - grid[None, :]) < 1e-9).any(axis=1))
    # A value of its own is hit by what is as good as it; an end of a range is sharp.
    slack = 0.02 if len(grid) == 1 else 1e-6
    return np.asarray((units >= grid.min() - slack) & (units <= grid.max() + slack))
