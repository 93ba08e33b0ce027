"""The registered model is the one that the report recommends."""

from __future__ import annotations

from dataclasses import replace

import pandas as pd
import pytest

from study.analyses.findings import analyse_study
from study.analyses.leaderboard import analyse_leaderboard, find_incumbent_trial
from study.report.summary import leading_loss, summarise_findings
from study.runner.winner import find_winning_trial
from study.trials.table import TrialTable
from tests.support.demo_study import make_demo_problems
from tests.support.synthetic_tables import SyntheticPlan, make_table

FIRST_SEED = 100


@pytest.fixture(scope="module")
def table() -> TrialTable:
    """Two losses, their best points confirmed."""
    return make_table(make_demo_problems()[1:], SyntheticPlan(trials=8, confirm=3))


def test_the_best_point_of_today_wins_over_one_confirmed_before(table: TrialTable) -> None:
    loss = str(analyse_leaderboard(table)["loss"].iloc[0])
    best = find_incumbent_trial(table, loss)
    assert best is not None
    tested = table.trials[(table.trials["loss"] == loss) & (table.trials["split"] == "test")]
    older = tested.assign(
        point="older",
        score=tested["score"] + 0.2,
        number=tested["number"] - 1000,
        trial=[f"{trial}-older" for trial in tested["trial"]],
    )
    both = replace(table, trials=pd.concat([older, table.trials], ignore_index=True))
    row = find_winning_trial(both, loss, seed=FIRST_SEED)
    assert row is not None
    assert row["point"] == best["point"]
    assert row["seed"] == FIRST_SEED
    assert find_winning_trial(both, loss, seed=-1) is None
    assert find_winning_trial(both, "", seed=FIRST_SEED) is None


def test_the_winning_loss_is_the_headlines(table: TrialTable) -> None:
    first, second = analyse_leaderboard(table)["loss"].iloc[:2]
    worse = (table.trials["loss"] == first) & (table.trials["split"] == "test")
    scores = table.trials["score"].where(~worse, table.trials["score"] - 0.5)
    findings = analyse_study(replace(table, trials=table.trials.assign(score=scores)))
    assert leading_loss(findings) == second
    assert summarise_findings(findings).headline.startswith(f"Use {second}")
