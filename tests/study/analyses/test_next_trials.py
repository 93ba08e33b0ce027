"""Suggested trials: where the answer is open, and for losses without a model."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from study.analyses import next_trials
from study.analyses.claims.settling_trials import POINT_COLUMNS
from study.analyses.loss_model import LossModel
from study.analyses.surrogate.observations import collect_observations
from study.analyses.surrogate.surrogate import Refusal, fit_surrogate
from study.trials.table import PARAM_PREFIX, TrialTable
from tests.support.analysis_contract import (
    SurrogateAnalysisContract,
    make_models_without_surrogates,
)
from tests.support.analysis_inputs import fit_model
from tests.support.synthetic_tables import (
    SyntheticLoss,
    SyntheticPlan,
    make_additive_response,
    make_table,
    make_unit_space,
)


def test_suggestions_go_where_the_answer_is_open() -> None:
    """Half of the range of x was never tried: the suggestions must go there."""
    space = make_unit_space("a", ["x", "y"])
    table = make_table(
        [SyntheticLoss(space, make_additive_response([0.2, 0.1]), noise=0.004)],
        SyntheticPlan(trials=60),
    )
    table = replace(table, trials=table.trials[table.trials[PARAM_PREFIX + "x"] < 0.5])
    models = {"a": LossModel(fit_model(table), None, 0.004)}
    points = next_trials.suggest_trials(table, models, n=10)
    assert len(points) == 10
    assert (points[PARAM_PREFIX + "x"] > 0.5).mean() >= 0.5
    assert points["worth"].iloc[0] == points["worth"].max()


def test_losses_without_a_model_get_sobol_points_and_others_repeats() -> None:
    space = make_unit_space("a", list("abcd"))
    small = make_table(
        [SyntheticLoss(space, make_additive_response([0.2] * 4))],
        SyntheticPlan(trials=5, repeats=1),
    )
    refusal = fit_surrogate(collect_observations(small, "a"))
    assert isinstance(refusal, Refusal)
    model = LossModel(refusal, refusal, float("nan"))
    points = next_trials.suggest_trials(small, {"a": model}, n=12)
    assert set(points["origin"]) == {"sobol"}
    single = make_table(
        [SyntheticLoss(space, make_additive_response([0.2] * 4))],
        SyntheticPlan(trials=40, repeats=1),
    )
    surrogate = fit_model(single)
    model = LossModel(surrogate, None, surrogate.noise_sd)
    points = next_trials.suggest_trials(single, {"a": model}, n=12)
    assert "repeat" in set(points["origin"])


def _make_pool() -> next_trials.CandidatePool:
    """Two curve points, of x and y, and two candidates; the first one informs about x only."""
    covariance = np.array(
        [
            [2.0, 0.0, 1.0, 0.0],
            [0.0, 3.0, 0.0, 1.5],
            [1.0, 0.0, 1.0, 0.0],
            [0.0, 1.5, 0.0, 2.0],
        ]
    )
    units, weights = np.array([[0.1, 0.5], [0.5, 0.9]]), np.array([1.0, 0.5])
    return next_trials.CandidatePool("a", units, covariance, weights, ("x", "y"), 1.0)


def test_variance_reductions_by_hand() -> None:
    pool = _make_pool()
    assert pool.compute_variance_reductions() == pytest.approx([1.0 / 2, 0.5 * 1.5**2 / 3])
    assert pool.find_narrowed_param(0) == "x"
    assert pool.find_narrowed_param(1) == "y"


def test_conditioning_removes_the_variance_and_leaves_the_original() -> None:
    pool = _make_pool()
    copied = pool.copy()
    copied.condition_on_candidate(0)
    assert copied.covariance[0, 0] == pytest.approx(2.0 - 1.0 / 2)
    assert copied.covariance[1, 1] == 3.0, "y is independent of the first candidate"
    assert copied.compute_variance_reductions()[0] < pool.compute_variance_reductions()[0]
    assert pool.covariance[0, 0] == 2.0


@pytest.mark.parametrize("tolerance", [0.02, float("nan")])
def test_there_is_no_pool_without_a_model_or_a_tolerance(tolerance: float) -> None:
    refusal = Refusal("There are too few trials.")
    assert next_trials.prepare_candidate_pool("a", refusal, tolerance) is None


def test_nothing_is_suggested_if_nothing_can_be_learned(contract_table: TrialTable) -> None:
    points = next_trials.suggest_trials(
        contract_table, make_models_without_surrogates(contract_table)
    )
    assert points.empty
    assert list(points.columns) == [*POINT_COLUMNS, "worth"]


class TestContract(SurrogateAnalysisContract):
    columns = (*POINT_COLUMNS, PARAM_PREFIX + "x", PARAM_PREFIX + "y", "worth")

    def analyse(self, table: TrialTable) -> pd.DataFrame:
        models = {"a": LossModel(self.surrogate, None, 0.02)}
        return next_trials.suggest_trials(table, models, n=3)
