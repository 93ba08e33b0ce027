"""The Gaussian process has the right gradient, posterior and expected improvement."""

from __future__ import annotations

import numpy as np
import pytest

from study.search import gp_model
from study.search.gp_model import GPModel, compress_low_tail, fit_posterior


def test_the_gradient_of_the_likelihood_is_right() -> None:
    rng = np.random.default_rng(0)
    units = rng.random((12, 2))
    gaps = gp_model._squared_differences(units, units, np.array([False, True]))
    values, at, tiny = rng.standard_normal(12), np.array([-0.5, 0.2, 0.3, -2.0]), 1e-6
    gradient = gp_model._negative_log_likelihood(at, gaps, values)[1]
    for i, step in enumerate(tiny * np.eye(4)):
        up, down = (
            gp_model._negative_log_likelihood(at + s, gaps, values)[0] for s in (step, -step)
        )
        assert gradient[i] == pytest.approx((up - down) / (2 * tiny), rel=1e-4)


def test_noise_is_averaged_out() -> None:
    """Two seeds of a point have the same posterior mean."""
    units = np.repeat(np.random.default_rng(0).random((12, 2)), 2, axis=0)
    luck = np.tile([0.3, -0.3], 12)
    model = fit_posterior(units, units[:, 0] + luck, [False, False])
    assert np.ptp(model.denoised_scores.reshape(12, 2), axis=1).max() < 1e-6
    inside = model.predict_moments(units)[1]
    assert (model.predict_moments(np.array([[5.0, 5.0]]))[1] > inside).all()


def test_one_very_low_score_does_not_set_the_scale() -> None:
    scores = np.array([0.4, 0.42, 0.45, 0.46, 0.47, -1000.0])
    values = compress_low_tail(scores)
    assert (np.argsort(values) == np.argsort(scores)).all()
    assert values[4] - values[0] > 0.3
    assert np.isfinite(compress_low_tail(np.full(4, 0.5))).all()


def make_model(**changes: float) -> GPModel:
    points = np.array([[0.1], [0.5], [0.9]])
    return GPModel(
        points,
        np.array([0.0, 1.0, 0.5]),
        np.full(3, changes.get("noise", 1e-6)),
        choices=np.array([False]),
        lengths=np.array([0.3]),
        signal=1.0,
    )


def test_the_posterior_interpolates_and_returns_to_the_prior() -> None:
    model = make_model()
    mean, spread = model.predict_moments(np.array([[0.1], [0.5], [0.9], [50.0]]))
    assert mean == pytest.approx([0.0, 1.0, 0.5, 0.0], abs=1e-4)
    assert spread[:3].max() < 0.01
    assert spread[3] == pytest.approx(1.0)


def test_choices_differ_or_not_at_any_distance() -> None:
    model = GPModel(
        np.array([[0.25], [0.75]]),
        np.array([1.0, -1.0]),
        np.full(2, 1e-6),
        choices=np.array([True]),
        lengths=np.array([1.0]),
        signal=1.0,
    )
    spread = model.predict_moments(np.array([[0.25], [0.3], [0.9]]))[1]
    assert spread[0] < 0.01
    assert spread[1] == pytest.approx(spread[2])


@pytest.mark.parametrize("position", [0.3, 0.52, 0.7, 5.0])
def test_the_expected_improvement_is_the_integral(position: float) -> None:
    model = make_model()
    (mean,), (spread,) = model.predict_moments(np.array([[position]]))
    z = np.linspace(-12, 12, 400_001)
    gain = np.maximum(mean + spread * z - model.denoised_scores.max(), 0.0)
    integral = np.trapezoid(gain * np.exp(-0.5 * z**2) / np.sqrt(2 * np.pi), z)
    (value,) = model.log_expected_improvement(np.array([[position]]))
    assert value == pytest.approx(np.log(integral), abs=1e-3)


def test_the_expected_improvement_is_finite_where_it_underflows() -> None:
    """Points that hardly improve are still ordered."""
    points = np.concatenate([np.linspace(0, 1, 40)[:, None], [[0.1000001], [0.5]]])
    assert np.isfinite(make_model().log_expected_improvement(points)).all()


def test_fantasies_keep_the_mean_and_remove_the_uncertainty() -> None:
    model, point = make_model(), np.array([[0.3]])
    mean, spread = model.predict_moments(point)
    conditioned = model.condition_on_fantasies(point)
    new_mean, new_spread = conditioned.predict_moments(point)
    assert new_mean == pytest.approx(mean, abs=1e-4)
    assert new_spread < 0.01 < spread
    assert model.condition_on_fantasies(np.zeros((0, 1))) is model
