"""Positions in [0, 1] on the sampling scale, and back."""

from __future__ import annotations

import numpy as np
import pytest
from optuna.distributions import BaseDistribution

from search_spaces.space import Choice, Float, Int, ParamValue
from search_spaces.unit_scale import from_unit, to_unit

pytestmark = pytest.mark.split


@pytest.mark.parametrize(
    ("distribution", "values", "positions"),
    [
        (Float(-1.0, 3.0), [-1.0, 0.0, 3.0], [0.0, 0.25, 1.0]),
        (Float(1e-4, 1.0, log=True), [1e-4, 1e-3, 1e-2, 1.0], [0.0, 0.25, 0.5, 1.0]),
        (Float(2.0, 2.0), [2.0], [0.5]),
        # Each of the four integers has a cell of width 1/4.
        (Int(1, 4), [1, 2, 3, 4], [0.125, 0.375, 0.625, 0.875]),
        (Int(0, 20, step=10), [0, 10, 20], [1 / 6, 0.5, 5 / 6]),
        (Choice(["avg", "max"]), ["max", "avg"], [0.75, 0.25]),
    ],
    ids=str,
)
def test_positions_of_known_values(
    distribution: BaseDistribution, values: list[ParamValue], positions: list[float]
) -> None:
    np.testing.assert_allclose(to_unit(distribution, values), positions, rtol=1e-12, atol=1e-12)
    restored = [from_unit(distribution, position) for position in positions]
    if isinstance(values[0], str):
        assert restored == values
    else:
        assert restored == pytest.approx(values, rel=1e-12)


def test_logarithmic_integers_have_cells_of_half_a_step() -> None:
    distribution = Int(1, 8, log=True)
    (first,) = to_unit(distribution, [1])
    assert first == pytest.approx(np.log(2.0) / np.log(8.5 / 0.5))
    assert [from_unit(distribution, u) for u in to_unit(distribution, range(1, 9))] == list(
        range(1, 9)
    )


@pytest.mark.parametrize(
    ("distribution", "low", "high"),
    [
        (Float(0.5, 4.0, log=True), 0.5, 4.0),
        (Int(3, 9), 3, 9),
        (Choice(["a", "b", "c"]), "a", "c"),
    ],
    ids=str,
)
def test_positions_outside_are_clipped(
    distribution: BaseDistribution, low: ParamValue, high: ParamValue
) -> None:
    assert from_unit(distribution, -0.5) == pytest.approx(low)
    assert from_unit(distribution, 1.5) == pytest.approx(high)


def test_values_are_rounded_to_the_steps_of_a_range() -> None:
    assert from_unit(Float(0.0, 1.0, step=0.25), 0.6) == pytest.approx(0.5)
    assert from_unit(Int(0, 20, step=10), 0.4) == 10
    assert isinstance(from_unit(Int(0, 20, step=10), 0.4), int)
