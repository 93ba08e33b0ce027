"""Leaderboard: which trials compete, and what a row contains."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from study.analyses.leaderboard import (
    UNTRAINED_BACKBONE_LABEL,
    analyse_leaderboard,
    find_incumbent_trial,
    select_published_trials,
)
from study.trials.table import PARAM_PREFIX, TrialTable
from tests.support.analysis_contract import TableAnalysisContract
from tests.support.synthetic_tables import (
    SyntheticLoss,
    SyntheticPlan,
    make_additive_response,
    make_table,
    make_unit_space,
)

pytestmark = pytest.mark.split


@pytest.fixture
def table() -> TrialTable:
    """A search with stopped trials, repeats and a sweep."""
    problem = SyntheticLoss(make_unit_space("a", ["x"]), make_additive_response([0.3]), noise=0.01)
    return make_table([problem], SyntheticPlan(trials=20, sweep={"x": (0.7,)}))


def _with_score(table: TrialTable, index: int, score: float) -> TrialTable:
    trials = table.trials.copy()
    trials.loc[index, "score"] = score
    return replace(table, trials=trials)


@pytest.mark.parametrize("origin", ["repeat", "sweep"])
def test_repeats_and_sweeps_do_not_compete(table: TrialTable, origin: str) -> None:
    before = find_incumbent_trial(table, "a")
    assert before is not None
    index = int(table.trials.index[table.trials["origin"] == origin][0])
    after = find_incumbent_trial(_with_score(table, index, 0.99), "a")
    assert after is not None
    assert after["trial"] == before["trial"]


def test_stopped_trials_compete_only_while_no_trial_is_complete(table: TrialTable) -> None:
    stopped = table.trials["state"] == "stopped"
    assert stopped.any()
    lucky = _with_score(table, int(table.trials.index[stopped][0]), 0.99)
    best = find_incumbent_trial(lucky, "a")
    assert best is not None
    assert best["state"] == "finished"
    only_stopped = replace(lucky, trials=lucky.trials[stopped])
    best = find_incumbent_trial(only_stopped, "a")
    assert best is not None
    assert best["score"] == 0.99
    assert find_incumbent_trial(replace(table, trials=table.trials.iloc[:0]), "a") is None


def test_a_row_counts_states_and_averages_repeats(table: TrialTable) -> None:
    (row,) = analyse_leaderboard(table).query("loss == 'a'").to_dict("records")
    trials = table.trials
    for state in ("finished", "stopped", "diverged", "failed", "running"):
        assert row[state] == (trials["state"] == state).sum()
    assert row["trials"] == len(trials)
    assert row["epochs"] == trials["epochs"].sum()
    best = find_incumbent_trial(table, "a")
    assert best is not None
    assert row["best"] == best["score"]
    same = (trials["point"] == best["point"]) & (trials["trial"] != best["trial"])
    assert row["repeated"] == pytest.approx(trials.loc[same, "score"].mean())


def test_losses_and_the_untrained_backbone_are_sorted_by_score() -> None:
    problems = [
        SyntheticLoss(make_unit_space(name, ["x"]), make_additive_response([0.1], top=top))
        for name, top in (("low", 0.1), ("high", 0.6))
    ]
    rows = analyse_leaderboard(make_table(problems, SyntheticPlan(trials=6)))
    assert rows["loss"].tolist() == ["high", UNTRAINED_BACKBONE_LABEL, "low"]
    assert rows["best"].iloc[1] == 0.21
    unknown = replace(make_table(problems, SyntheticPlan(trials=6)), baseline={})
    assert UNTRAINED_BACKBONE_LABEL not in set(analyse_leaderboard(unknown)["loss"])


def test_published_trials_are_found_by_value_whatever_their_origin(table: TrialTable) -> None:
    published = select_published_trials(table, "a")
    assert (published[PARAM_PREFIX + "x"] == 0.5).all()
    assert "published" in set(published["origin"])
    trials = table.trials.copy()
    index = trials.index[trials["origin"] == "sobol"][0]
    trials.loc[index, PARAM_PREFIX + "x"] = 0.5 * (1 + 1e-12)
    again = select_published_trials(replace(table, trials=trials), "a")
    assert len(again) == len(published) + 1
    assert select_published_trials(table, "a", split="test").empty


def test_a_loss_without_scores_comes_last() -> None:
    problems = [
        SyntheticLoss(make_unit_space(name, ["x"]), make_additive_response([0.1]))
        for name in ("a", "b")
    ]
    table = make_table(problems, SyntheticPlan(trials=6))
    unscored = table.trials["score"].where(table.trials["loss"] != "a")
    rows = analyse_leaderboard(replace(table, trials=table.trials.assign(score=unscored)))
    assert rows["loss"].tolist()[-1] == "a"
    assert np.isnan(rows["best"].iloc[-1])


class TestContract(TableAnalysisContract):
    columns = (
        "loss",
        "best",
        "repeated",
        "published",
        "seed_sigma",
        "trials",
        "finished",
        "stopped",
        "diverged",
        "failed",
        "running",
        "epochs",
        "seconds",
    )

    @pytest.fixture
    def table(self, contract_table: TrialTable) -> TrialTable:
        return contract_table

    def analyse(self, table: TrialTable) -> pd.DataFrame:
        return analyse_leaderboard(table)
