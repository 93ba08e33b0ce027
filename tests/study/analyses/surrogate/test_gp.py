"""Gaussian process: kernel choice, predictions and sample paths."""

from __future__ import annotations

import numpy as np
import pytest

from study.analyses.surrogate import gp
from study.analyses.surrogate.hyperparameters import GPHyperparameters, NegativeLogPosterior
from study.analyses.surrogate.observations import LossObservations
from study.analyses.surrogate.score_transform import ScoreTransform
from tests.support.analysis_inputs import (
    bowl_response,
    fit_process,
    kinked_response,
    make_observations,
)

pytestmark = pytest.mark.split


def test_the_evidence_tells_kinks_from_bowls() -> None:
    assert fit_process(make_observations(bowl_response))[0].smoothness == "analytic"
    assert fit_process(make_observations(kinked_response))[0].smoothness == "rough"


def _make_posterior(
    observations: LossObservations, *, log_noise_variance: float = -9.0
) -> gp.GPPosterior:
    """Condition a smooth process with prior length scales on the observations."""
    transform = ScoreTransform.from_scores(observations.scores)
    theta = NegativeLogPosterior(observations, transform).prior_mean
    theta[-2:] = -16.0, log_noise_variance
    return gp.GPPosterior(observations, GPHyperparameters(theta, "smooth"), transform)


def test_predictions_interpolate_almost_noise_free_scores() -> None:
    observations = make_observations(bowl_response, trials=30, noise=0.0)
    posterior = _make_posterior(observations)
    mean, deviation = posterior.predict(observations.units, observations.epochs)
    assert posterior.score_transform.to_score(mean) == pytest.approx(observations.scores, abs=0.002)
    anywhere = np.random.default_rng(0).random((50, 2))
    mean, _ = posterior.predict(anywhere, np.full(50, observations.full_epochs))
    error = posterior.score_transform.to_score(mean) - bowl_response(anywhere)
    assert np.abs(error).max() < 0.02
    far = posterior.predict(np.array([[0.5, 0.5]]), np.array([1.0]))[1]
    assert far[0] > 3 * deviation.mean(), "the first epoch was never observed"


def test_sample_paths_have_the_moments_of_the_posterior() -> None:
    observations = make_observations(kinked_response, trials=16)
    posterior = _make_posterior(observations, log_noise_variance=-3.0)
    units = np.random.default_rng(1).random((12, 2))
    # Each call draws new random features, whose own error averages out.
    draws = np.concatenate([posterior.draw_sample_paths(200, seed=s)(units) for s in range(20)])
    mean, deviation = posterior.predict(units, np.full(12, observations.full_epochs))
    noise = np.exp(-3.0) + np.exp(-16.0)
    expected_sd = np.sqrt(deviation**2 - noise) * posterior.score_transform.scale
    assert draws.mean(axis=0) == pytest.approx(
        posterior.score_transform.to_score(mean), abs=4 * expected_sd.max() / np.sqrt(4000)
    )
    assert draws.std(axis=0) == pytest.approx(expected_sd, rel=0.1)


def test_the_noise_is_that_of_repeated_trials() -> None:
    observations = make_observations(bowl_response, trials=20)
    posterior = _make_posterior(observations, log_noise_variance=-2.0)
    expected = np.sqrt(np.exp(-2.0) + np.exp(-16.0)) * posterior.score_transform.scale
    assert posterior.noise_sd == pytest.approx(expected)


def test_a_mixture_adds_the_variance_between_its_parts() -> None:
    observations = make_observations(bowl_response, trials=16)
    first = _make_posterior(observations)
    second = _make_posterior(observations, log_noise_variance=0.0)
    units, epochs = np.array([[0.2, 0.9], [0.5, 0.5]]), np.full(2, observations.full_epochs)
    (m1, s1), (m2, s2) = (p.predict(units, epochs) for p in (first, second))
    mean, deviation = gp.predict_mixture([first, second], units, epochs)
    assert mean == pytest.approx((m1 + m2) / 2)
    assert deviation**2 == pytest.approx((s1**2 + s2**2) / 2 + ((m1 - m2) / 2) ** 2)
    alone = gp.predict_mixture([first], units, epochs)
    assert alone[0] == pytest.approx(m1)
    assert alone[1] == pytest.approx(s1)
