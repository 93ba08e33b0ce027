"""Random forest: predictions, residuals and bootstraps over points."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from study.analyses.surrogate.forest import bootstrap_points, fit_forest
from tests.support.analysis_inputs import make_observations, step_response

pytestmark = pytest.mark.split


def test_a_step_is_learned_on_both_sides() -> None:
    observations = make_observations(step_response, trials=80)
    model = fit_forest(observations, seed=0)
    units = np.array([[0.9, 0.4], [0.6, 0.4]])
    mean, _, _ = model.predict(units, np.full(2, observations.full_epochs))
    assert mean == pytest.approx(step_response(units), abs=0.1)


def test_the_deviation_adds_the_residual_to_that_of_the_trees() -> None:
    observations = make_observations(step_response, trials=40, noise=0.02)
    model = fit_forest(observations, seed=0, trees=60)
    epochs = np.full(5, observations.full_epochs)
    units = np.random.default_rng(0).random((5, 2))
    mean, deviation, trees = model.predict(units, epochs)
    votes = model.predict_per_tree(units, epochs)
    assert votes.shape == (60, 5)
    assert mean == pytest.approx(votes.mean(axis=0))
    assert trees == pytest.approx(votes.std(axis=0))
    assert model.residual_sd > 0.0
    assert deviation == pytest.approx(np.sqrt(trees**2 + model.residual_sd**2))
    few_trees = fit_forest(observations, seed=0, trees=10)
    assert few_trees.residual_sd == 0.0, "out-of-bag errors need many trees"


def test_the_same_seed_gives_the_same_forest() -> None:
    observations = make_observations(step_response, trials=20)
    units, epochs = np.random.default_rng(0).random((5, 2)), np.full(5, observations.full_epochs)
    first, second, other = (
        fit_forest(observations, seed=seed, trees=10).predict_per_tree(units, epochs)
        for seed in (0, 0, 1)
    )
    assert (first == second).all()
    assert (first != other).any()


def test_a_bootstrap_keeps_all_trials_of_a_point_together() -> None:
    observations = make_observations(step_response, trials=20)
    observations = replace(observations, point=np.arange(len(observations)) // 3)
    sizes = np.bincount(observations.point)
    drawn = bootstrap_points(observations, np.random.default_rng(0))
    counts = np.bincount(drawn.point, minlength=len(sizes))
    assert (counts % sizes == 0).all()
    assert (counts // sizes).sum() == len(sizes), "as many points as before"
    assert (counts == 0).any()
