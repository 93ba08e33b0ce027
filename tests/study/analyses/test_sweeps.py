"""Sweeps: which trials belong to one, and how they are grouped."""

from __future__ import annotations

from dataclasses import replace

import pandas as pd
import pytest

from study.analyses import sweeps
from study.analyses.findings import analyse_study
from study.trials.table import PARAM_PREFIX, TrialTable
from tests.support.analysis_contract import SurrogateAnalysisContract, TableAnalysisContract
from tests.support.analysis_inputs import SWEPT_POSITIONS, make_swept_table
from tests.support.synthetic_tables import (
    SyntheticLoss,
    SyntheticPlan,
    make_additive_response,
    make_table,
    make_unit_space,
)

pytestmark = pytest.mark.split


def _with_requested_point(table: TrialTable, reason: str) -> TrialTable:
    """Return the table with its best trial run again as a requested point, not as a sweep."""
    best = table.trials.loc[[table.trials["score"].idxmax()]]
    extra = best.assign(trial="a-9999", origin="sweep", anchor=reason, swept="", seed=77)
    return replace(table, trials=pd.concat([table.trials, extra], ignore_index=True))


def test_requested_points_are_not_a_sweep() -> None:
    plan = SyntheticPlan(trials=12, sweep={"x": (0.1, 0.9)})
    table = make_table(
        [SyntheticLoss(make_unit_space("a", ["x", "y"]), make_additive_response([0.2, 0.1]))], plan
    )
    before, after = (
        sweeps.analyse_sweeps(t, "a") for t in (table, _with_requested_point(table, "refine"))
    )
    assert set(after["swept"]) == {"x"}
    pd.testing.assert_frame_equal(before, after)
    findings = analyse_study(_with_requested_point(table, "claim"), n_suggestions=1)
    assert len(findings.losses["a"].sweeps) == len(before)


def test_a_sweep_counts_seeds_not_trials() -> None:
    plan = SyntheticPlan(trials=4, sweep={"x": (0.1,)})
    table = make_table(
        [SyntheticLoss(make_unit_space("a", ["x"]), make_additive_response([0.2]))], plan
    )
    swept = table.trials[table.trials["origin"] == "sweep"]
    again = swept.assign(trial=[f"a-{900 + i}" for i in range(len(swept))])
    twice = replace(table, trials=pd.concat([table.trials, again], ignore_index=True))
    pd.testing.assert_frame_equal(
        sweeps.analyse_sweeps(table, "a"), sweeps.analyse_sweeps(twice, "a")
    )


def test_the_winning_trial_is_not_evidence_for_its_own_point() -> None:
    table = make_swept_table()
    base = table.trials[(table.trials["origin"] == "published")]
    lucky = base.assign(trial="a-9999", origin="bayes", score=0.9, seed=99)
    more = replace(table, trials=pd.concat([table.trials, lucky], ignore_index=True))
    pd.testing.assert_frame_equal(
        sweeps.analyse_sweeps(more, "a"), sweeps.analyse_sweeps(table, "a")
    )


def test_sweeps_around_the_incumbents_of_two_searches_stay_apart() -> None:
    table = make_swept_table()
    swept = table.trials[table.trials["origin"] == "sweep"]
    old = swept.assign(
        anchor="incumbent", trial="old-" + swept["trial"], **{PARAM_PREFIX + "y": 0.7}
    )
    new = swept.assign(
        anchor="incumbent", trial="new-" + swept["trial"], **{PARAM_PREFIX + "y": 0.9}
    )
    new["number"] += 1000
    both = replace(table, trials=pd.concat([table.trials, old, new], ignore_index=True))
    by_anchor = {s.anchor: s for s in sweeps.collect_sweeps(both, "a")}
    assert set(by_anchor) == {"published", "incumbent", "earlier incumbent"}
    assert by_anchor["incumbent"].base_params["y"] == 0.9
    assert by_anchor["earlier incumbent"].base_params["y"] == 0.7
    assert len(sweeps.analyse_sweeps(both, "a")) == 3 * len(SWEPT_POSITIONS)


def test_anchors_are_the_published_point_and_the_incumbent() -> None:
    table = make_swept_table()
    assert sweeps.get_anchor_params(table, "a", "published") == {"x": 0.5, "y": 0.5}
    search = table.trials[~table.trials["origin"].isin(["sweep", "repeat"])]
    (best,) = search.nlargest(1, "score").to_dict("records")
    expected = {k: best[PARAM_PREFIX + k] for k in ("x", "y")}
    assert sweeps.get_anchor_params(table, "a", "incumbent") == expected
    empty = replace(table, trials=table.trials.iloc[:0])
    assert sweeps.get_anchor_params(empty, "a", "incumbent") is None


def test_the_size_of_a_sweep_names_the_smallest_number_of_seeds() -> None:
    table = make_swept_table(positions=(0.1, 0.9), seeds=3)
    (sweep,) = sweeps.collect_sweeps(table, "a")
    assert sweep.size_text == "2 values x 3 seeds from the published point"
    last = table.trials.index[-1]
    (sweep,) = sweeps.collect_sweeps(replace(table, trials=table.trials.drop(last)), "a")
    assert sweep.size_text == "2 values x 2 seeds from the published point"


class TestContract(TableAnalysisContract):
    columns = ("swept", "anchor", "value", "mean", "low", "high", "seeds", "diverged")

    def analyse(self, table: TrialTable) -> pd.DataFrame:
        return sweeps.analyse_sweeps(table, "a")


class TestPredictionContract(SurrogateAnalysisContract):
    columns = ("value", "mean", "low", "high")

    def analyse(self, table: TrialTable) -> pd.DataFrame:
        (sweep,) = sweeps.collect_sweeps(table, "a")
        return sweeps.predict_sweep(self.surrogate, sweep)
