"""Which values of a hyperparameter is a claim about?"""

from __future__ import annotations

import numpy as np
from optuna.distributions import BaseDistribution, CategoricalDistribution

from search_spaces.claims import BetterValue, GoodValue, Sensitive, StableRange
from search_spaces.space import in_range
from search_spaces.unit_scale import to_unit
from study.analyses.surrogate.observations import FloatArray, get_unit_levels

ParamTest = StableRange | GoodValue | BetterValue | Sensitive
ComparisonSide = float | str | tuple[float, float]
"""A value of a hyperparameter, or a range of a numeric one."""


def build_range_grid(
    distribution: BaseDistribution, param: str, low: float | None, high: float | None
) -> FloatArray | str:
    """Return positions over the searched part of a claimed range, or why there are none."""
    if isinstance(distribution, CategoricalDistribution):
        within = find_choices_within(distribution, low, high)
        if not within:
            return f"No choice of {param} lies in the claimed range."
        return to_unit(distribution, within)
    bounds = float(distribution.low), float(distribution.high)  # type: ignore[attr-defined]
    claimed = bounds[0] if low is None else low, bounds[1] if high is None else high
    inside = max(claimed[0], bounds[0]), min(claimed[1], bounds[1])
    if inside[0] > inside[1]:
        return f"The study searched {param} only in {bounds[0]:g}–{bounds[1]:g}."
    ends = to_unit(distribution, inside)
    log = bool(getattr(distribution, "log", False))
    claimed_ends = to_unit(distribution, claimed) if min(claimed) > 0 or not log else ends
    if (ends[1] - ends[0]) < 0.5 * (claimed_ends[1] - claimed_ends[0]):
        return f"Less than half of the claimed range of {param} was searched."
    return np.linspace(float(ends[0]), float(ends[1]), 9)


def find_choices_within(
    distribution: CategoricalDistribution, low: float | None, high: float | None
) -> list[float]:
    """Return the numeric choices within a range (None: unbounded on that side)."""
    return [
        c
        for c in distribution.choices
        if isinstance(c, int | float)
        and not isinstance(c, bool)
        and (low is None or c >= low)
        and (high is None or c <= high)
    ]


def build_value_grid(
    distribution: BaseDistribution, param: str, value: float | str
) -> FloatArray | str:
    """Return the position of one claimed value, or why it has none."""
    if not in_range(distribution, value):
        return f"{param} = {value} is outside the searched range."
    return to_unit(distribution, [value])


def build_side_grid(
    distribution: BaseDistribution, param: str, side: ComparisonSide
) -> FloatArray | str:
    """Return the positions of one side of a comparison, or why it has none."""
    if isinstance(side, tuple):
        return build_range_grid(distribution, param, *side)
    return build_value_grid(distribution, param, side)


def format_side(side: ComparisonSide) -> str:
    """Format one side of a comparison for display."""
    return f"{side[0]:g}–{side[1]:g}" if isinstance(side, tuple) else str(side)


def build_claimed_grid(
    distribution: BaseDistribution, test: StableRange | GoodValue | Sensitive
) -> FloatArray | str:
    """Return the positions of all values that the claim is about, or why there are none."""
    match test:
        case StableRange():
            return build_range_grid(distribution, test.knob, test.low, test.high)
        case GoodValue():
            return build_value_grid(distribution, test.knob, test.value)
        case Sensitive():
            return build_full_grid(distribution)


def build_full_grid(distribution: BaseDistribution) -> FloatArray:
    """Return positions over the complete searched range."""
    levels = get_unit_levels(distribution, max_levels=9)
    return np.linspace(0.0, 1.0, 9) if levels is None else levels


def mask_claimed_positions(
    distribution: BaseDistribution, units: FloatArray, grid: FloatArray
) -> np.ndarray:
    """Return which positions the claim is about, given its grid."""
    if isinstance(distribution, CategoricalDistribution):
        return np.asarray((np.abs(units[:, None] - grid[None, :]) < 1e-9).any(axis=1))
    # A single value matches what is close to it; the ends of a range are exact.
    slack = 0.02 if len(grid) == 1 else 1e-6
    return np.asarray((units >= grid.min() - slack) & (units <= grid.max() + slack))
