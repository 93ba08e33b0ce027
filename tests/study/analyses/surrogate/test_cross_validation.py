"""Cross-validation: calibration factors and folds."""

from __future__ import annotations

import numpy as np
import pytest

from study.analyses.surrogate.cross_validation import (
    CrossValidationResult,
    cross_validate_forest,
    cross_validate_gp,
    estimate_calibration_factor,
)
from tests.support.analysis_inputs import bowl_response, fit_process, make_observations

pytestmark = pytest.mark.split


@pytest.mark.parametrize("noise", [0.0, 1.0, 2.0])
@pytest.mark.parametrize("wrong", [1.0, 2.0])
def test_seed_noise_does_not_hide_overconfident_draws(wrong: float, noise: float) -> None:
    """The response is off by `wrong` deviations of its draws, and every score has noise on top."""
    rng = np.random.default_rng(0)
    errors = np.abs(wrong * rng.standard_normal(4000) + noise * rng.standard_normal(4000))
    expected = np.sqrt(1.0 + noise**2)
    factor = estimate_calibration_factor(errors / expected, np.full(4000, 1.0 / expected**2))
    assert factor == pytest.approx(wrong, rel=0.1)


def test_few_errors_are_not_enough_to_widen_much() -> None:
    one = estimate_calibration_factor(np.array([4.0]), np.array([1.0]))
    many = estimate_calibration_factor(np.full(1000, 4.0), np.ones(1000))
    assert 1.0 < one < many == pytest.approx(4.0, abs=0.02)
    assert estimate_calibration_factor(np.zeros(5), np.zeros(5)) == 1.0, "only seed noise"


def test_the_calibration_is_interpolated_between_bins() -> None:
    result = CrossValidationResult("gp", 0.9, 0.9, 0.0, calibration_curve=((0.2, 1.0), (0.6, 3.0)))
    factors = result.interpolate_calibration(np.array([0.0, 0.4, 0.9]))
    assert factors == pytest.approx([1.0, 2.0, 3.0])
    uncalibrated = CrossValidationResult("gp", 0.9, 0.9, 0.0)
    assert uncalibrated.interpolate_calibration(np.array([0.1, 0.2])).tolist() == [1.0, 1.0]


def test_a_smooth_response_is_predicted_and_noise_is_not() -> None:
    smooth = make_observations(bowl_response, trials=40)
    fitted, transform = fit_process(smooth)
    good = cross_validate_gp(smooth, "gp", transform, fitted, 0)
    assert good.kind == "gp"
    assert good.r2 > 0.95
    assert 0.75 <= good.coverage <= 1.0
    assert all(factor >= 1.0 for _, factor in good.calibration_curve), "bands are never narrowed"
    forest = cross_validate_forest(smooth, 0)
    assert forest.kind == "forest"
    assert 0.3 < forest.r2 < good.r2
    assert forest.rmse > good.rmse
    assert forest.log_density < good.log_density
    noise = make_observations(lambda u: np.full(len(u), 0.5), trials=40, noise=0.02)
    assert cross_validate_forest(noise, 0).r2 < 0.3
