"""Is the registered model the one that the report tells people to use?"""

from __future__ import annotations

from dataclasses import replace

import pandas as pd
import pytest

from study.analyses.findings import find
from study.analyses.leaderboard import analyse, incumbent
from study.finishing import winning_trial
from study.report.answer import answer, leader
from study.table import TrialTable
from tests.study.demo import demo_problems
from tests.study.synthetic import Plan, make_table

FIRST_SEED = 100


@pytest.fixture(scope="module")
def table() -> TrialTable:
    """Two losses, their best points confirmed."""
    return make_table(demo_problems()[1:], Plan(trials=8, confirm=3))


def test_the_best_point_of_today_wins_over_one_confirmed_before(table: TrialTable) -> None:
    loss = str(analyse(table)["loss"].iloc[0])
    best = incumbent(table, loss)
    assert best is not None
    tested = table.trials[(table.trials["loss"] == loss) & (table.trials["split"] == "test")]
    older = tested.assign(
        point="older",
        score=tested["score"] + 0.2,
        number=tested["number"] - 1000,
        trial=[f"{trial}-older" for trial in tested["trial"]],
    )
    both = replace(table, trials=pd.concat([older, table.trials], ignore_index=True))
    row = winning_trial(both, loss, seed=FIRST_SEED)
    assert row is not None
    assert row["point"] == best["point"]
    assert row["seed"] == FIRST_SEED
    assert winning_trial(both, loss, seed=-1) is None
    assert winning_trial(both, "", seed=FIRST_SEED) is None


def test_the_winning_loss_is_the_headlines(table: TrialTable) -> None:
    first, second = analyse(table)["loss"].iloc[:2]
    worse = (table.trials["loss"] == first) & (table.trials["split"] == "test")
    scores = table.trials["score"].where(~worse, table.trials["score"] - 0.5)
    findings = find(replace(table, trials=table.trials.assign(score=scores)))
    assert leader(findings) == second
    assert answer(findings).headline.startswith(f"Use {second}")
