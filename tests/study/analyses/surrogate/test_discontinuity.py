"""Discontinuities: found where they are, and nowhere else."""

from __future__ import annotations

import numpy as np
import pytest

from study.analyses.surrogate import discontinuity
from study.analyses.surrogate.hyperparameters import GPHyperparameters, NegativeLogPosterior
from study.analyses.surrogate.score_transform import ScoreTransform
from tests.support.analysis_inputs import (
    bowl_response,
    fit_process,
    kinked_response,
    make_observations,
    step_response,
)

pytestmark = pytest.mark.split


def test_a_jump_is_found_where_it_is_and_nowhere_else() -> None:
    observations = make_observations(step_response)
    fitted, transform = fit_process(observations)
    assert fitted.jump is not None
    assert fitted.jump.param == 0
    tried = np.sort(observations.units[:, 0])
    below, above = tried[tried <= 0.7].max(), tried[tried > 0.7].min()
    for draw in discontinuity.sample_locations(observations, transform, fitted, count=20, seed=0):
        assert draw.jump is not None
        assert below - 1e-9 <= draw.jump.position <= above + 1e-9
    for smooth in (bowl_response, kinked_response):
        assert fit_process(make_observations(smooth))[0].jump is None


def test_a_process_without_a_jump_has_no_positions_to_sample() -> None:
    observations = make_observations(bowl_response, trials=16)
    transform = ScoreTransform.from_scores(observations.scores)
    prior = NegativeLogPosterior(observations, transform).prior_mean
    smooth = GPHyperparameters(prior, "smooth")
    found = discontinuity.sample_locations(observations, transform, smooth, count=5, seed=0)
    assert found == [smooth]


def test_too_few_trials_on_a_side_have_no_jump() -> None:
    """Seven trials cannot have four on each side of any position."""
    observations = make_observations(step_response, trials=7)
    observations = observations.select_rows(np.arange(7))
    transform = ScoreTransform.from_scores(observations.scores)
    objective = NegativeLogPosterior(observations, transform)
    smooth = GPHyperparameters(objective.prior_mean, "smooth")
    found = discontinuity.find_discontinuity(
        observations, transform, smooth, lowest=1e9, max_rows=180, seed=0
    )
    assert found is None
