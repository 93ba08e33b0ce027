"""Cost of a range: known draws and the band that decides."""

from __future__ import annotations

import re

import numpy as np
import pytest

from study.analyses.range_cost import assess_range_cost, compute_range_cost

pytestmark = pytest.mark.split


def test_the_band_of_a_cost_decides_it() -> None:
    """The claimed value is the fixed alternative itself, so only the strict end has a width."""
    draws = np.random.default_rng(0).normal([0.02, 0.0, 0.0, 0.0, 0.0], 0.01, (400, 5))
    within, beyond, evidence = assess_range_cost(draws, draws[:, :1], 0.005, "claimed values cost")
    assert within < 0.95
    assert beyond < 0.95
    found = re.search(r"cost (\S+) \((\S+) to (\S+)\); tolerance 0.0050: within it", evidence)
    assert found is not None, evidence
    mean, low, high = map(float, found.groups())
    assert low <= mean < 0.005 < high


def test_costs_of_identical_draws_by_hand() -> None:
    reference = np.tile([0.5, 0.9, 0.7], (20, 1))
    inside = np.tile([0.8, 0.6], (20, 1))
    cost = compute_range_cost(reference, inside, 0.2)
    assert (cost.mean, cost.low, cost.high) == pytest.approx((0.3, 0.3, 0.3))
    assert (cost.probability_within, cost.probability_beyond) == (0.0, 1.0)
    cost = compute_range_cost(reference, inside, 0.4)
    assert (cost.probability_within, cost.probability_beyond) == (1.0, 0.0)


def test_values_better_than_all_others_cost_nothing() -> None:
    reference, inside = np.full((10, 2), 0.5), np.full((10, 1), 0.7)
    cost = compute_range_cost(reference, inside, 0.1)
    assert cost.mean == pytest.approx(-0.2)
    assert cost.high == pytest.approx(0.0)
    assert cost.probability_within == 1.0


@pytest.mark.parametrize("tolerance", [0.01, 0.03, 0.05, 0.08])
def test_the_ends_of_the_band_agree_with_the_probabilities(tolerance: float) -> None:
    rng = np.random.default_rng(1)
    reference = rng.normal([0.5, 0.48, 0.44], 0.01, (2000, 3))
    cost = compute_range_cost(reference, reference[:, 1:], tolerance)
    assert (cost.high <= tolerance) == (cost.probability_within >= 0.95)
    assert (cost.low > tolerance) == (cost.probability_beyond >= 0.95)
