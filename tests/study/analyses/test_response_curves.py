"""Response curves: positions that trials support, statuses and grids."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from optuna.distributions import CategoricalDistribution, IntDistribution

from study.analyses import response_curves
from study.analyses.surrogate.observations import collect_observations
from study.analyses.surrogate.surrogate import SurrogateModel
from study.trials.table import TrialTable
from tests.support.analysis_contract import SurrogateAnalysisContract
from tests.support.analysis_inputs import make_space
from tests.support.synthetic_tables import (
    SyntheticLoss,
    SyntheticPlan,
    make_additive_response,
    make_table,
)


@pytest.mark.parametrize("distribution", [IntDistribution(1, 30), IntDistribution(0, 60)])
def test_steps_lend_support_to_each_other_and_choices_do_not(
    distribution: IntDistribution,
) -> None:
    table = make_table(
        [SyntheticLoss(make_space(n=distribution), make_additive_response([0.2]))],
        SyntheticPlan(bayes=False),
    )
    observations = collect_observations(table, "a")
    fine = np.linspace(0.0, 1.0, 81)
    supported = response_curves.has_nearby_trials(observations, "n", fine)
    assert supported.mean() > 0.9
    order = np.random.default_rng(0).permutation(len(fine))
    shuffled = response_curves.has_nearby_trials(observations, "n", fine[order])
    assert (shuffled == supported[order]).all()
    choices = CategoricalDistribution([str(i) for i in range(12)])
    observations = collect_observations(
        make_table(
            [SyntheticLoss(make_space(n=choices), make_additive_response([0.2]))], SyntheticPlan()
        ),
        "a",
    )
    levels = (np.arange(12) + 0.5) / 12
    rows = observations.select_rows(np.abs(observations.units[:, 0] - levels[5]) > 1e-9)
    assert not response_curves.has_nearby_trials(rows, "n", levels[[7, 5]])[1]


@pytest.mark.xdist_group("analysis_contract")
def test_a_curve_averages_over_the_other_params(contract_surrogate: SurrogateModel) -> None:
    grid, others = np.array([0.2, 0.8]), np.array([[0.0, 0.1], [0.0, 0.9]])
    draws = response_curves.draw_curves(contract_surrogate, "x", grid, others)
    points = np.array([[0.2, 0.1], [0.2, 0.9], [0.8, 0.1], [0.8, 0.9]])
    expected = contract_surrogate.draw_scores(points).reshape(len(draws), 2, 2).mean(axis=2)
    assert draws == pytest.approx(expected)


@pytest.mark.xdist_group("analysis_contract")
def test_an_unknown_tolerance_leaves_every_value_undetermined(
    contract_surrogate: SurrogateModel,
) -> None:
    curves = response_curves.analyse_response_curves(contract_surrogate, tolerance=float("nan"))
    assert set(curves["status"]) <= {"undetermined", "no data"}
    assert curves["probability"].isna().all()


@pytest.mark.xdist_group("analysis_contract")
def test_a_tolerance_above_all_differences_makes_every_value_safe(
    contract_surrogate: SurrogateModel,
) -> None:
    curves = response_curves.analyse_response_curves(contract_surrogate, tolerance=100.0)
    assert set(curves.loc[curves["supported"], "status"]) == {"safe"}


class TestContract(SurrogateAnalysisContract):
    columns = (
        "region",
        "knob",
        "unit",
        "value",
        "mean",
        "low",
        "high",
        "supported",
        "probability",
        "status",
    )

    def analyse(self, table: TrialTable) -> pd.DataFrame:
        return response_curves.analyse_response_curves(self.surrogate, tolerance=0.02)
