"""Importance: Sobol indices of functions with known answers."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import optuna
import pandas as pd
import pytest
from optuna.distributions import FloatDistribution

from search_spaces.space import Hyperparameter, SearchSpace
from study.analyses import importance
from study.analyses.surrogate.surrogate import SurrogateModel
from study.trials.table import TrialTable
from tests.support.analysis_contract import SurrogateAnalysisContract
from tests.support.analysis_inputs import fit_model
from tests.support.synthetic_tables import (
    ISHIGAMI_FIRST,
    ISHIGAMI_TOTAL,
    Array,
    Response,
    SyntheticLoss,
    SyntheticPlan,
    ishigami_response,
    make_additive_response,
    make_sobol_g_response,
    make_table,
    make_unit_space,
)

pytestmark = [pytest.mark.split, pytest.mark.slow]


SOBOL_ONLY = SyntheticPlan(trials=128, sobol_share=1.0, bayes=False, stop=False)


def _by_param(model: SurrogateModel) -> dict[str, dict[str, float]]:
    rows = importance.analyse_importance(model).params.to_dict("records")
    return {str(r["knob"]): {str(k): v for k, v in r.items() if k != "knob"} for r in rows}


def test_ishigami_shares_and_interaction() -> None:
    space = make_unit_space("a", ["x1", "x2", "x3"])
    table = make_table([SyntheticLoss(space, ishigami_response, noise=0.1, lag=3.0)], SOBOL_ONLY)
    model = fit_model(table)
    found = _by_param(model)
    for name, first, total in zip(
        space.searched_params, ISHIGAMI_FIRST, ISHIGAMI_TOTAL, strict=True
    ):
        assert found[name]["first"] == pytest.approx(first, abs=0.03)
        assert found[name]["total"] == pytest.approx(total, abs=0.04)
    top = importance.analyse_importance(model).pairs.iloc[0]
    assert (top["knob"], top["other"]) == ("x1", "x3")
    assert top["share"] == pytest.approx(0.2437, abs=0.04)


def test_a_search_with_stopped_trials_tells_noise_from_roughness() -> None:
    """With too few rows, the waves would pass for noise, and nothing would interact."""
    space = make_unit_space("a", ["x1", "x2", "x3"])
    problem = SyntheticLoss(space, ishigami_response, noise=0.15, lag=3.0)
    model = fit_model(make_table([problem], SyntheticPlan(trials=120, tpe=True)))
    assert 0.5 < model.noise_sd / 0.15 < 2.0
    assert model.selected_cv_result.r2 > 0.85
    found = _by_param(model)
    assert found["x2"]["total"] - found["x2"]["first"] < 0.04, "it acts alone"
    assert found["x3"]["total"] - found["x3"]["first"] > 0.15, "it acts only with another one"


def test_sobol_g_shares() -> None:
    response_of, first, total = make_sobol_g_response([0.0, 1.0, 4.5, 9.0])
    space = make_unit_space("a", list("abcd"))
    plan = SyntheticPlan(trials=200, sobol_share=1.0, bayes=False, stop=False)
    found = _by_param(fit_model(make_table([SyntheticLoss(space, response_of, noise=0.01)], plan)))
    for i, name in enumerate(space.searched_params):
        assert found[name]["first"] == pytest.approx(first[i], abs=0.05)
        assert found[name]["total"] == pytest.approx(total[i], abs=0.05)


def _log_table() -> TrialTable:
    """Make a study in which the learning rate, on its log scale, has 80 % of the variance."""
    space = SearchSpace(
        loss="a",
        paper="made up",
        scientific={
            "margin": Hyperparameter(FloatDistribution(0.0, 1.0), "m", "test"),
            "lr": Hyperparameter(FloatDistribution(1e-6, 1e-1, log=True), "η", "test"),
        },
    )

    def score(u: Array) -> Array:
        return np.asarray(0.5 + 0.2 * u[:, 1] + 0.1 * u[:, 0])

    return make_table([SyntheticLoss(space, score, noise=0.005)], SOBOL_ONLY)


def test_log_params_count_on_their_own_scale_where_optuna_does_not() -> None:
    table = _log_table()
    found = _by_param(fit_model(table))
    assert found["lr"]["first"] == pytest.approx(0.8, abs=0.05)
    assert found["margin"]["first"] == pytest.approx(0.2, abs=0.05)
    study = optuna.create_study(direction="maximize")
    spaces = table.spaces["a"].distributions
    for row in table.trials_of("a").to_dict("records"):
        point = {k: row["knob." + k] for k in spaces}
        study.add_trial(optuna.create_trial(params=point, distributions=spaces, value=row["score"]))
    fanova = optuna.importance.get_param_importances(
        study, evaluator=optuna.importance.FanovaImportanceEvaluator(seed=0)
    )
    assert fanova["lr"] < 0.5, "Optuna's fANOVA respects log scales now: update the docs"


def test_early_stopping_and_clustered_trials_keep_the_ranking() -> None:
    weights = (0.3, 0.2, 0.05, 0.0)
    truth = np.array(weights) ** 2 / np.sum(np.array(weights) ** 2)
    for seed in range(3):
        table = make_table(
            [
                SyntheticLoss(
                    make_unit_space("a", list("abcd")), make_additive_response(weights), noise=0.006
                )
            ],
            SyntheticPlan(trials=100, sobol_share=0.3),
            seed=seed,
        )
        stopped = (table.trials["state"] == "stopped").mean()
        assert stopped > 0.1, "no trial was stopped, so this tests nothing"
        found = _by_param(fit_model(table))
        error = sum(abs(found[k]["first"] - t) for k, t in zip("abcd", truth, strict=True))
        assert error < 0.2
        assert max(found, key=lambda k: found[k]["first"]) == "a"


def _exact_indices(response: Response, params: int, **options: Any) -> importance.SobolIndices:
    """Return the indices of the function itself: a surrogate with a single, exact draw."""
    surrogate: Any = SimpleNamespace(
        observations=SimpleNamespace(params=tuple("abcdef"[:params])),
        draw_scores=lambda units: response(units)[None],
    )
    values = importance.evaluate_saltelli_design(surrogate, n=8192)
    return importance.indices_from_values(values, **options)


def test_indices_of_an_exact_function() -> None:
    indices = _exact_indices(ishigami_response, 3)
    assert indices.first_order[0] == pytest.approx(ISHIGAMI_FIRST, abs=0.005)
    assert indices.total[0] == pytest.approx(ISHIGAMI_TOTAL, abs=0.005)
    assert indices.pairs[0] == pytest.approx([0.0, 0.2437, 0.0], abs=0.01)


def test_a_floor_removes_the_variance_of_failures() -> None:
    def failing(u: Array) -> Array:
        return np.where(u[:, 0] > 0.8, -10.0, u[:, 1])

    assert _exact_indices(failing, 2).total[0, 0] > 0.95
    assert _exact_indices(failing, 2, floor=0.0).total[0, 1] > 0.6


def test_a_single_param_has_no_pairs() -> None:
    indices = _exact_indices(lambda u: u[:, 0], 1)
    assert indices.first_order[0] == pytest.approx([1.0], abs=0.01)
    assert indices.pairs.shape == (1, 0)


class TestParamsContract(SurrogateAnalysisContract):
    columns = (
        "knob",
        "first",
        "first_low",
        "first_high",
        "total",
        "total_low",
        "total_high",
    )

    def analyse(self, table: TrialTable) -> pd.DataFrame:
        return importance.analyse_importance(self.surrogate).params


class TestPairsContract(SurrogateAnalysisContract):
    columns = ("knob", "other", "share", "low", "high")

    def analyse(self, table: TrialTable) -> pd.DataFrame:
        return importance.analyse_importance(self.surrogate).pairs
