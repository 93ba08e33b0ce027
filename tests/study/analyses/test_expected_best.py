"""Expected best score: brute force, the trials that count, and coverage of the band."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from study.analyses import expected_best
from study.trials.table import TrialTable
from tests.support.analysis_contract import TableAnalysisContract
from tests.support.synthetic_tables import (
    SyntheticLoss,
    SyntheticPlan,
    make_additive_response,
    make_table,
    make_unit_space,
)

pytestmark = pytest.mark.split


def test_expected_best_matches_brute_force() -> None:
    scores = np.random.default_rng(0).random(12)
    rows = expected_best.compute_tuning_curve(scores, max_trials=12)
    rng = np.random.default_rng(1)
    draws = np.array([rng.choice(scores, 3, replace=False).max() for _ in range(20000)])
    assert rows["expected"].iloc[2] == pytest.approx(draws.mean(), abs=0.005)
    assert rows["expected"].iloc[11] == pytest.approx(scores.max())
    assert (rows["low"] <= rows["median"]).all()
    assert (rows["median"] <= rows["high"]).all()


def test_only_sobol_trials_count() -> None:
    problem = SyntheticLoss(make_unit_space("a", ["x", "y"]), make_additive_response([0.3, 0.1]))
    table = make_table([problem], SyntheticPlan(trials=40))
    sobol = table.trials[table.trials["origin"] == "sobol"]
    rows = expected_best.analyse_expected_best(table, "a")
    assert rows["expected"].iloc[0] == pytest.approx(sobol["score"].mean())
    few = make_table([problem], SyntheticPlan(trials=6, bayes=False))
    assert expected_best.analyse_expected_best(few, "a").empty


def test_tuning_curve_bands_hold_for_all_n_at_once() -> None:
    """Scores 1 - u^2 with u uniform: the median best of n is known exactly."""
    n = np.arange(1, 101)
    truth = 1 - (1 - 0.5 ** (1 / n)) ** 2
    covered = 0
    for seed in range(60):
        scores = 1 - np.random.default_rng(seed).random(40) ** 2
        rows = expected_best.compute_tuning_curve(scores)
        covered += bool(((rows["low"] <= truth) & (truth <= rows["high"])).all())
    assert covered >= 48, covered


def test_diverged_trials_count_as_the_worst_score() -> None:
    problem = SyntheticLoss(make_unit_space("a", ["x"]), make_additive_response([0.3]))
    table = make_table([problem], SyntheticPlan(trials=20, sobol_share=1.0, bayes=False, repeats=1))
    trials = table.trials.copy()
    is_sobol = trials["origin"] == "sobol"
    is_best = is_sobol & (trials["score"] == trials.loc[is_sobol, "score"].max())
    trials.loc[is_best, "state"] = "diverged"
    trials.loc[is_best, "score"] = np.nan
    scores = trials.loc[is_sobol & ~is_best, "score"]
    rows = expected_best.analyse_expected_best(replace(table, trials=trials), "a")
    assert rows["expected"].iloc[0] == pytest.approx((scores.sum() + scores.min()) / 20)
    assert rows["expected"].iloc[19] == pytest.approx(scores.max())
    assert rows["expected"].iloc[20:].isna().all(), "there are only 20 trials"


class TestContract(TableAnalysisContract):
    columns = ("n", "expected", "median", "low", "high")

    def analyse(self, table: TrialTable) -> pd.DataFrame:
        return expected_best.analyse_expected_best(table, "a")
