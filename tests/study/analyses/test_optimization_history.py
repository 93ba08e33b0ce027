"""Optimisation history: which trials count, and what moves the best score."""

from __future__ import annotations

from dataclasses import replace

import pandas as pd
import pytest

from study.analyses.optimization_history import analyse_optimization_history
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


def test_only_full_length_search_trials_move_the_best_score() -> None:
    problem = SyntheticLoss(make_unit_space("a", ["x"]), make_additive_response([0.3]))
    table = make_table([problem], SyntheticPlan(trials=4, sobol_share=1.0, repeats=2, bayes=False))
    trials = table.trials.copy()
    search = trials.index[trials["origin"] != "repeat"]
    assert len(search) == 5
    trials.loc[search, "score"] = [0.2, 0.9, 0.1, 0.4, 0.3]
    trials.loc[search[1], "state"] = "stopped"
    trials.loc[search[1], "epochs"] = 3
    trials.loc[trials["origin"] == "repeat", "score"] = 0.99
    shuffled = trials.sample(frac=1.0, random_state=0)
    rows = analyse_optimization_history(replace(table, trials=shuffled))
    assert rows["score"].tolist() == [0.2, 0.9, 0.1, 0.4, 0.3], "in the order of proposal"
    assert rows["best"].tolist() == [0.2, 0.2, 0.2, 0.4, 0.4]
    assert rows["spent"].tolist() == [27, 30, 57, 84, 111]


class TestContract(TableAnalysisContract):
    columns = ("loss", "trial", "origin", "spent", "score", "best")

    def analyse(self, table: TrialTable) -> pd.DataFrame:
        return analyse_optimization_history(table)
