"""Hyperparameters of the process: gradients, posterior spread and row selection."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from study.analyses.surrogate.encoding import ResponseDiscontinuity
from study.analyses.surrogate.hyperparameters import (
    GPHyperparameters,
    NegativeLogPosterior,
    sample_hyperparameters,
)
from study.analyses.surrogate.kernel import KERNEL_SMOOTHNESSES, KernelSmoothness
from study.analyses.surrogate.score_transform import ScoreTransform
from tests.support.analysis_inputs import (
    fit_process,
    kinked_response,
    make_observations,
    step_response,
)

pytestmark = pytest.mark.split


@pytest.mark.parametrize("smoothness", KERNEL_SMOOTHNESSES)
@pytest.mark.parametrize("at", [None, ResponseDiscontinuity(0, 0.7)])
def test_gradients_are_slopes(
    smoothness: KernelSmoothness, at: ResponseDiscontinuity | None
) -> None:
    observations = make_observations(step_response, trials=20)
    transform = ScoreTransform.from_scores(observations.scores)
    objective = NegativeLogPosterior(observations, transform, smoothness=smoothness, jump=at)
    theta = objective.prior_mean + 0.1
    step = 1e-5 * np.eye(len(theta))
    slopes = np.array([(objective(theta + s)[0] - objective(theta - s)[0]) / 2e-5 for s in step])
    free = np.ones(len(theta), dtype=bool)
    free[-2] = objective.has_repeated_trials  # else the seed's variance is fixed
    assert objective(theta)[1][free] == pytest.approx(slopes[free], abs=1e-5)


def test_hyperparameters_vary_as_far_as_the_trials_leave_them_open() -> None:
    few, many = (make_observations(kinked_response, trials=n, noise=0.02) for n in (16, 120))
    spreads = []
    for observations in (few, many):
        fitted, transform = fit_process(observations)
        draws = sample_hyperparameters(observations, transform, fitted, count=40, seed=0)
        spreads.append(np.std([draw.theta for draw in draws], axis=0)[:2].mean())
    assert spreads[0] > 1.2 * spreads[1] > 0.0


def test_theta_holds_logarithms_of_length_scales_ratios_and_variances() -> None:
    theta = np.log([0.5, 2.0, 3.0, 4.0, 0.6, 0.7, 0.01, 0.02])
    found = GPHyperparameters(theta, "smooth")
    assert found.n_groups == 2
    assert found.length_scales == pytest.approx([0.5, 2.0])
    assert found.joint_length_scales == pytest.approx([1.5, 8.0])
    assert found.additive_variance == pytest.approx(0.3), "shared by the two groups"
    assert found.joint_variance == pytest.approx(0.7)
    assert found.trial_variance == pytest.approx(0.01)
    assert found.noise_variance == pytest.approx(0.02)


def test_minimising_lowers_the_objective_and_respects_the_bounds() -> None:
    observations = make_observations(kinked_response, trials=24)
    objective = NegativeLogPosterior(observations, ScoreTransform.from_scores(observations.scores))
    value, theta = objective.minimise_from(objective.prior_mean + 100.0, 30)
    assert value < objective(objective.prior_mean)[0]
    low, high = objective.bounds.T
    assert ((theta >= low) & (theta <= high)).all()


def test_too_many_rows_keep_last_epochs_and_sobol_points_first() -> None:
    observations = make_observations(kinked_response, trials=40)
    n = len(observations)
    observations = replace(
        observations,
        trial=np.arange(n) // 2,
        point=np.arange(n) // 2,
        last=np.arange(n) % 2 == 0,
        blind=np.arange(n) < n // 2,
    )
    transform = ScoreTransform.from_scores(observations.scores)
    rows = NegativeLogPosterior(observations, transform, max_rows=n // 4).rows
    assert len(rows) == n // 4
    assert rows.last.all()
    assert rows.blind.all()
    rows = NegativeLogPosterior(observations, transform, max_rows=n).rows
    assert rows is observations
