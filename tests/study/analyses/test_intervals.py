"""Student-t interval of a mean."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import ttest_1samp

from study.analyses.intervals import compute_mean_interval

pytestmark = pytest.mark.split


@pytest.mark.parametrize("n", [2, 5, 30])
def test_the_interval_is_that_of_a_one_sample_t_test(n: int) -> None:
    values = np.random.default_rng(0).normal(0.5, 0.1, n)
    found = compute_mean_interval(values)
    low, high = ttest_1samp(values, 0.0).confidence_interval(0.95)
    assert (found.mean, found.low, found.high) == pytest.approx((values.mean(), low, high))
    assert found.sigma == pytest.approx(np.std(values, ddof=1))


def test_a_single_value_has_a_mean_only_and_no_value_has_nothing() -> None:
    single = compute_mean_interval(np.array([0.5]))
    assert single.mean == 0.5
    assert np.isnan(single[1:]).all()
    assert np.isnan(compute_mean_interval(np.array([]))).all()


def test_equal_values_have_an_interval_of_width_zero() -> None:
    assert compute_mean_interval(np.full(4, 0.25)) == (0.25, 0.25, 0.25, 0.0)
