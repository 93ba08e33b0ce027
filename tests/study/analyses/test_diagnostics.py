"""Diagnostics of search spaces, budgets and results."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from optuna.distributions import FloatDistribution, IntDistribution

from search_spaces.space import PublishedPoint
from study.analyses import diagnostics
from study.analyses.findings import analyse_study
from study.analyses.surrogate.seed_noise import estimate_seed_noise
from study.trials.table import TrialTable
from tests.support.analysis_contract import TableAnalysisContract
from tests.support.analysis_inputs import make_space
from tests.support.synthetic_tables import (
    Array,
    SyntheticLoss,
    SyntheticPlan,
    make_additive_response,
    make_table,
    make_unit_space,
)

pytestmark = pytest.mark.split


def _rules(frame: pd.DataFrame) -> set[str]:
    return set(frame["rule"])


def test_warnings_about_spaces() -> None:
    linear = make_space(lr=FloatDistribution(1e-5, 1e-1))
    assert "linear over decades" in _rules(diagnostics.check_spaces({"a": linear}))
    logged = make_space(lr=FloatDistribution(1e-5, 1e-1, log=True), n=IntDistribution(1, 8))
    rules = _rules(diagnostics.check_spaces({"a": logged}, trials=50, sobol=20))
    assert rules == {"published out of range"}
    coupled = make_space(
        proxy_lr=FloatDistribution(1e-4, 1.0, log=True),
        adam_eps=FloatDistribution(1e-8, 1.0, log=True),
    )
    rules = _rules(diagnostics.check_spaces({"a": coupled}, trials=5, sobol=2))
    assert rules >= {"coupled knobs", "budget too small", "too few space-filling trials"}
    edge = replace(logged, published=(PublishedPoint("", {"lr": 1e-1, "n": 2}),))
    assert "published on a bound" in _rules(diagnostics.check_spaces({"a": edge}))
    shared = replace(
        edge, published=(*edge.published, PublishedPoint("again", {"lr": 1e-1, "n": 3}))
    )
    bounds = diagnostics.check_spaces({"a": shared})
    assert len(bounds[bounds["rule"] == "published on a bound"]) == 1
    twins = {n: replace(logged, loss=n) for n in ("norm_softmax", "proxy_nca_pp")}
    assert "alias" in _rules(diagnostics.check_spaces(twins))
    assert any(
        "same function" in line
        for line in diagnostics.check_planned_spaces(twins, trials=40, sobol=16)
    )
    smoothed = replace(
        make_space(lr=FloatDistribution(1e-5, 1e-1), label_smoothing=FloatDistribution(0.0, 0.2)),
        loss="norm_softmax",
    )
    assert "alias" not in _rules(diagnostics.check_spaces({**twins, "norm_softmax": smoothed}))


def test_warnings_about_results() -> None:
    def rising(u: Array) -> Array:
        return np.asarray(0.3 + 0.3 * u[:, 0])

    table = make_table([SyntheticLoss(make_unit_space("a", ["x", "y"]), rising, noise=0.001)])
    found = diagnostics.check_results(table)
    assert "optimum on a bound" in _rules(found)
    assert "x" in set(found.loc[found["rule"] == "optimum on a bound", "knob"])
    inside = make_table(
        [
            SyntheticLoss(
                make_unit_space("a", ["x", "y"]), make_additive_response([0.2, 0.2], best=0.5)
            )
        ]
    )
    assert "optimum on a bound" not in _rules(diagnostics.check_results(inside))
    slow = make_table(
        [
            SyntheticLoss(
                make_unit_space("a", ["x"]), make_additive_response([0.1]), tau=60.0, noise=0.001
            )
        ]
    )
    assert "epochs too few" in _rules(diagnostics.check_results(slow))
    single = make_table(
        [SyntheticLoss(make_unit_space("a", ["x"]), make_additive_response([0.1]))],
        SyntheticPlan(repeats=1),
    )
    assert "no repeats" in _rules(diagnostics.check_results(single))


@pytest.mark.parametrize("repeats", [1, 3])
@pytest.mark.parametrize("rises", [True, False])
def test_a_search_that_still_improves_gets_a_warning(repeats: int, rises: bool) -> None:
    problem = SyntheticLoss(
        make_unit_space("a", ["x", "y"]), make_additive_response([0.1, 0.1]), noise=0.001
    )
    table = make_table([problem], SyntheticPlan(trials=30, repeats=repeats, stop=False))
    trials = table.trials.copy()
    searched = trials["origin"].isin(["published", "sobol", "bayes"])
    order = trials.loc[searched].drop_duplicates("point").set_index("point")["number"]
    trend = trials["point"].map(order).astype(float) / 100
    noise = np.random.default_rng(0).normal(scale=0.001, size=len(trials))
    trials["score"] = 0.1 + (trend if rises else -trend) + noise
    found = diagnostics.check_results(replace(table, trials=trials))
    messages = found.loc[found["rule"] == "still improving", "message"].tolist()
    assert len(messages) == rises
    assert all(("seed noise unknown" in text) == (repeats == 1) for text in messages)


def test_a_budget_that_was_too_small_gets_a_warning() -> None:
    space = make_unit_space("a", ["x", "y", "z", "w"])
    small = make_table(
        [SyntheticLoss(space, make_additive_response([0.1] * 4))], SyntheticPlan(trials=6)
    )
    budget = {"budget too small", "too few space-filling trials"}
    assert budget <= _rules(analyse_study(small, n_suggestions=1).diagnostics)
    large = make_table(
        [SyntheticLoss(space, make_additive_response([0.1] * 4))], SyntheticPlan(trials=80)
    )
    assert not budget & _rules(diagnostics.check_table_spaces(large))
    # While a study runs, its planned budget counts.
    running = replace(small, protocol={**small.protocol, "trials_per_loss": 80})
    assert not budget & _rules(diagnostics.check_table_spaces(running))


def test_a_failed_repeat_is_not_a_seed_and_gets_a_warning() -> None:
    problem = SyntheticLoss(
        make_unit_space("a", ["x", "y"]), make_additive_response([0.3, 0.1]), noise=0.001
    )
    table = make_table([problem], SyntheticPlan(trials=20, bayes=False))
    before = estimate_seed_noise(table, "a").degrees_of_freedom
    failed = table.trials.index[table.trials["origin"] == "repeat"][:2]
    trials = table.trials.copy()
    trials.loc[failed, "state"], trials.loc[failed, "score"] = "failed", np.nan
    table = replace(table, trials=trials)
    assert estimate_seed_noise(table, "a").degrees_of_freedom == before - 2
    message = diagnostics.check_results(table).set_index("rule")["message"]["failed trials"]
    assert message.startswith("2 trials failed")
    assert "2 of them were repeats" in message


class TestContract(TableAnalysisContract):
    columns = diagnostics.DIAGNOSTIC_COLUMNS

    @pytest.fixture
    def table(self, contract_table: TrialTable) -> TrialTable:
        trials = contract_table.trials
        return replace(contract_table, trials=trials[trials["seed"] == 0])

    def analyse(self, table: TrialTable) -> pd.DataFrame:
        return diagnostics.check_results(table)
