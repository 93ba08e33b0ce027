"""Divergence model: probabilities, and when there is none."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from study.analyses.surrogate.divergence_model import (
    MIN_DIVERGED_TRIALS,
    fit_divergence_model,
)
from study.analyses.surrogate.observations import LossObservations
from tests.support.analysis_inputs import bowl_response, make_observations

pytestmark = pytest.mark.split


@pytest.fixture(scope="module")
def observations() -> LossObservations:
    """Sixty trials, of which those beyond 0.7 of the first hyperparameter diverged."""
    observations = make_observations(bowl_response)
    return replace(observations, diverged=observations.units[:, 0] > 0.7)


def test_the_probability_is_high_where_trials_diverged(observations: LossObservations) -> None:
    model = fit_divergence_model(observations)
    assert model is not None
    draws = model(np.array([[0.95, 0.5], [0.2, 0.5]]))
    assert draws.shape == (8, 2)
    assert ((draws >= 0.0) & (draws <= 1.0)).all()
    assert draws[:, 0].mean() > 0.9
    assert draws[:, 1].mean() < 0.1


@pytest.mark.parametrize("count", [0, MIN_DIVERGED_TRIALS - 1])
def test_few_diverged_trials_are_not_modelled(observations: LossObservations, count: int) -> None:
    diverged = np.arange(len(observations)) < count
    assert fit_divergence_model(replace(observations, diverged=diverged)) is None


def test_nothing_is_modelled_if_every_trial_diverged(observations: LossObservations) -> None:
    everything = np.ones(len(observations), dtype=bool)
    assert fit_divergence_model(replace(observations, diverged=everything)) is None


def test_the_last_epoch_of_a_trial_does_not_matter(observations: LossObservations) -> None:
    """A diverged trial is short because it diverged; its length must not predict divergence."""
    units = np.random.default_rng(0).random((9, 2))
    shortened = replace(observations, epochs=np.where(observations.diverged, 2.0, 27.0))
    first, second = (fit_divergence_model(each) for each in (observations, shortened))
    assert first is not None
    assert second is not None
    assert first(units) == pytest.approx(second(units))
