"""Grids of the values that claims are about."""

from __future__ import annotations

import numpy as np
import pytest
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)

from search_spaces.claims import GoodValue, Sensitive, StableRange
from study.analyses.claims.values import (
    build_claimed_grid,
    build_full_grid,
    build_range_grid,
    build_side_grid,
    build_value_grid,
    find_choices_within,
    format_side,
    mask_claimed_positions,
)

pytestmark = pytest.mark.split

LINEAR = FloatDistribution(0.0, 2.0)
LOG = FloatDistribution(1e-4, 1.0, log=True)
SIZES = CategoricalDistribution((16, 32, 64, "auto", True))


def test_a_range_is_clipped_to_what_was_searched() -> None:
    grid = build_range_grid(LINEAR, "x", 1.0, 3.0)
    assert isinstance(grid, np.ndarray)
    assert (grid[0], grid[-1]) == (0.5, 1.0)
    open_ended = build_range_grid(LINEAR, "x", None, 1.0)
    assert isinstance(open_ended, np.ndarray)
    assert (open_ended[0], open_ended[-1]) == (0.0, 0.5)


def test_a_log_range_is_measured_in_decades() -> None:
    grid = build_range_grid(LOG, "lr", 1e-3, 1e-1)
    assert isinstance(grid, np.ndarray)
    assert (grid[0], grid[-1]) == pytest.approx((0.25, 0.75))


@pytest.mark.parametrize(
    ("distribution", "low", "high", "reason"),
    [
        (LINEAR, 3.0, 4.0, "only in 0–2"),
        (LINEAR, 1.5, 9.0, "Less than half"),
        (SIZES, 100.0, None, "No choice of x"),
    ],
)
def test_a_range_that_was_not_searched_says_why(
    distribution: BaseDistribution, low: float, high: float | None, reason: str
) -> None:
    found = build_range_grid(distribution, "x", low, high)
    assert isinstance(found, str)
    assert reason in found


def test_only_numbers_among_the_choices_lie_in_a_range() -> None:
    assert find_choices_within(SIZES, 20.0, None) == [32, 64]
    assert find_choices_within(SIZES, None, 32.0) == [16, 32]
    assert find_choices_within(SIZES, 0.0, 2.0) == [], "True is not the number 1"


def test_a_value_has_one_position_or_a_reason() -> None:
    assert build_value_grid(LINEAR, "x", 0.5) == pytest.approx([0.25])
    assert "x = 7.0" in str(build_value_grid(LINEAR, "x", 7.0))
    assert build_side_grid(LINEAR, "x", 1.0) == pytest.approx([0.5])
    side = build_side_grid(LINEAR, "x", (0.0, 1.0))
    assert isinstance(side, np.ndarray)
    assert (side.min(), side.max()) == (0.0, 0.5)


def test_each_kind_of_claim_has_its_grid() -> None:
    stable = build_claimed_grid(LINEAR, StableRange("x", 0.0, 1.0))
    assert isinstance(stable, np.ndarray)
    assert stable.max() == 0.5
    assert build_claimed_grid(LINEAR, GoodValue("x", 2.0)) == pytest.approx([1.0])
    sensitive = build_claimed_grid(LINEAR, Sensitive("x"))
    assert isinstance(sensitive, np.ndarray)
    assert (sensitive.min(), sensitive.max()) == (0.0, 1.0)
    assert len(build_full_grid(IntDistribution(1, 3))) == 3


def test_claimed_positions_are_exact_for_ranges_and_choices_and_near_for_values() -> None:
    units = np.array([0.2, 0.3, 0.31, 0.5, 0.6])
    in_range = mask_claimed_positions(LINEAR, units, np.linspace(0.3, 0.5, 9))
    assert in_range.tolist() == [False, True, True, True, False]
    at_value = mask_claimed_positions(LINEAR, units, np.array([0.3]))
    assert at_value.tolist() == [False, True, True, False, False]
    choices = CategoricalDistribution(("a", "b"))
    at_choice = mask_claimed_positions(choices, np.array([0.25, 0.75]), np.array([0.75]))
    assert at_choice.tolist() == [False, True]


def test_sides_are_formatted_as_a_range_or_a_value() -> None:
    assert format_side((0.1, 2.0)) == "0.1–2"
    assert format_side("max") == "max"
