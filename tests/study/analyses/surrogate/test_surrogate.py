"""Surrogate model: refusals, model selection and draws."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from study.analyses.surrogate.cross_validation import SurrogateKind
from study.analyses.surrogate.observations import LossObservations, collect_observations
from study.analyses.surrogate.seed_noise import estimate_seed_noise
from study.analyses.surrogate.surrogate import (
    Refusal,
    SurrogateModel,
    fit_surrogate,
    min_trials_to_fit,
    refuse_importance,
    refuse_response,
)
from tests.support.analysis_inputs import fit_model
from tests.support.synthetic_tables import (
    Array,
    SyntheticLoss,
    SyntheticPlan,
    make_additive_response,
    make_table,
    make_unit_space,
)

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(("repeats", "points"), [(2, 2), (3, 3)])
def test_few_repeats_do_not_excuse_a_poor_model(repeats: int, points: int) -> None:
    """Waves too short for 40 trials: what the model does not explain is not seed noise."""

    def waves(u: Array) -> Array:
        return np.asarray(0.5 + 0.02 * np.sin(12 * np.pi * u[:, 0]) * np.sin(10 * np.pi * u[:, 1]))

    plan = SyntheticPlan(trials=40, repeated_points=points, repeats=repeats)
    for seed in range(3):
        problem = SyntheticLoss(
            make_unit_space("a", list("xyz"), published=0.3), waves, noise=0.004
        )
        table = make_table([problem], plan, seed=seed)
        assert refuse_response(fit_model(table), estimate_seed_noise(table, "a")) is not None


def test_curves_of_a_flat_response_are_not_refused() -> None:
    accepted = 0
    for seed in range(6):
        flat = SyntheticLoss(
            make_unit_space("a", list("xyz")), make_additive_response([0.0, 0.0, 0.0]), noise=0.006
        )
        table = make_table([flat], SyntheticPlan(trials=40), seed=seed)
        accepted += refuse_response(fit_model(table), estimate_seed_noise(table, "a")) is None
    assert accepted >= 4


def test_nothing_but_noise_gives_no_importances() -> None:
    space = make_unit_space("a", list("abc"))
    table = make_table([SyntheticLoss(space, lambda u: np.full(len(u), 0.5), noise=0.02)])
    refusal = refuse_importance(fit_model(table))
    assert isinstance(refusal, Refusal)
    assert "importances need 50%" in refusal.reason


def test_too_few_trials_are_refused_with_the_number_needed() -> None:
    table = make_table(
        [SyntheticLoss(make_unit_space("a", list("abcdef")), make_additive_response([0.2] * 6))],
        SyntheticPlan(trials=10, repeats=1),
    )
    refusal = fit_surrogate(collect_observations(table, "a"))
    assert isinstance(refusal, Refusal)
    assert "18 are needed to model 6 hyperparameters" in refusal.reason


def _make_observations(**changes: object) -> LossObservations:
    table = make_table(
        [SyntheticLoss(make_unit_space("a", ["x"]), make_additive_response([0.2]))],
        SyntheticPlan(trials=16),
    )
    return replace(collect_observations(table, "a"), **changes)  # type: ignore[arg-type]


def test_data_that_cannot_be_modelled_are_refused_with_a_reason() -> None:
    n = len(_make_observations())
    cases = {
        "same score": _make_observations(scores=np.full(n, 0.5)),
        "Every trial diverged": _make_observations(diverged=np.ones(n, dtype=bool)),
        "No hyperparameter was searched": _make_observations(
            params=(), distributions=(), units=np.zeros((n, 0))
        ),
        "No trial has a score": _make_observations().select_rows(np.zeros(n, dtype=bool)),
    }
    for reason, observations in cases.items():
        refusal = fit_surrogate(observations)
        assert isinstance(refusal, Refusal)
        assert reason in refusal.reason


@pytest.mark.parametrize(("params", "needed"), [(1, 12), (4, 12), (5, 15), (10, 30)])
def test_three_points_per_param_and_at_least_twelve_are_needed(params: int, needed: int) -> None:
    assert min_trials_to_fit(params) == needed


@pytest.mark.parametrize("kind", ["gp", "forest"])
def test_a_requested_model_is_used_whatever_cross_validation_says(kind: SurrogateKind) -> None:
    model = fit_surrogate(_make_observations(), kind=kind, n_draws=32, n_bootstrap=2)
    assert isinstance(model, SurrogateModel)
    assert model.kind == kind == model.selected_cv_result.kind
    assert {result.kind for result in model.cv_results} >= {"gp", "forest"}
    assert model.draw_scores(np.array([[0.1], [0.9]])).shape == (32, 2)
    assert model.has_jumps == (kind == "forest")


@pytest.mark.xdist_group("analysis_contract")
def test_draws_do_not_depend_on_the_chunk_and_average_to_the_mean(
    contract_surrogate: SurrogateModel,
) -> None:
    units = np.random.default_rng(0).random((7, 2))
    draws = contract_surrogate.draw_scores(units)
    assert contract_surrogate.draw_scores(units, chunk=3) == pytest.approx(draws, abs=1e-4)
    assert contract_surrogate.predict_mean(units) == pytest.approx(draws.mean(axis=0))


@pytest.mark.xdist_group("analysis_contract")
def test_divergence_pulls_the_score_towards_the_worst(contract_surrogate: SurrogateModel) -> None:
    assert contract_surrogate.divergence_model is not None
    without = replace(contract_surrogate, divergence_model=None)
    diverging, safe = np.array([[0.97, 0.7]]), np.array([[0.5, 0.7]])
    loss_of = {
        name: float(without.predict_mean(units)[0] - contract_surrogate.predict_mean(units)[0])
        for name, units in (("diverging", diverging), ("safe", safe))
    }
    assert loss_of["diverging"] > 10 * max(loss_of["safe"], 0.0)


@pytest.mark.xdist_group("analysis_contract")
def test_good_settings_are_about_as_good_as_the_best(contract_surrogate: SurrogateModel) -> None:
    good = contract_surrogate.good_settings
    assert good.shape == (32, 2)
    anywhere = np.random.default_rng(0).random((200, 2))
    scores = contract_surrogate.predict_mean(good)
    assert scores.min() > np.quantile(contract_surrogate.predict_mean(anywhere), 0.75)
