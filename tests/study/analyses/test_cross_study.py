"""Ranges and rankings that several studies share."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import numpy as np
import pandas as pd
import pytest

from study.analyses import cross_study
from study.analyses.findings import StudyFindings, analyse_study
from study.analyses.surrogate.surrogate import Refusal
from study.report.comparison import compare_reports
from study.trials.table import TrialTable
from tests.support.synthetic_tables import (
    SyntheticLoss,
    SyntheticPlan,
    make_additive_response,
    make_table,
    make_unit_space,
)

pytestmark = pytest.mark.split


@pytest.mark.slow
def test_ranges_common_to_two_studies() -> None:
    def shifted(best: float) -> TrialTable:
        problem = SyntheticLoss(
            make_unit_space("a", ["x", "y"]),
            make_additive_response([0.3, 0.0], best=best),
            noise=0.003,
        )
        return make_table([problem], SyntheticPlan(trials=50), tolerance=0.01)

    near = [analyse_study(shifted(0.5)), analyse_study(shifted(0.55))]
    rows = cross_study.find_common_ranges(near).set_index("knob")
    assert rows.loc["x", "verdict"] == "holds in all"
    low, high = (rows[name].astype(float)["x"] for name in ("low", "high"))
    assert 0.4 < low < high < 0.65
    far = [near[0], analyse_study(shifted(0.95))]
    assert (
        cross_study.find_common_ranges(far).set_index("knob").loc["x", "verdict"]
        == "no common range"
    )
    assert cross_study.make_distinct_names(near) == ["made-up", "made-up (2)"]


@pytest.mark.parametrize(
    ("values", "verdict", "common"),
    [("16, 32, 64", "holds in all", "32, 64"), ("8.0, 16", "no common range", ""),
     ("max", "no common range", "")],
)  # fmt: skip
def test_a_range_and_choices_share_the_choices_within(
    values: str, verdict: str, common: str
) -> None:
    nan = float("nan")
    rows = pd.DataFrame(
        [("stable", 20.0, 80.0, ""), ("stable", nan, nan, values)],
        columns=["status", "low", "high", "values"],
    )
    found, low, high, names = cross_study.intersect_ranges(rows)
    assert (found, names) == (verdict, common)
    assert np.isnan([low, high]).all()
    assert cross_study.intersect_ranges(rows.iloc[:1]) == ("holds in all", 20.0, 80.0, "")
    choices = rows.assign(low=nan, high=nan, values=["32.0, 8", "32, 16"])
    assert cross_study.intersect_ranges(choices)[::3] == ("holds in all", "32")
    undetermined = rows.assign(status=["stable", "undetermined"])
    assert cross_study.intersect_ranges(undetermined)[0] == "cannot tell"


@pytest.mark.slow
def test_a_study_that_cannot_tell_is_not_counted(tmp_path: Path) -> None:
    def study(name: str, trials: int) -> TrialTable:
        problem = SyntheticLoss(
            make_unit_space("a", ["x"]), make_additive_response([0.3], best=0.5), noise=0.003
        )
        return make_table([problem], SyntheticPlan(trials=trials), tolerance=0.01, study=name)

    tables = [study("first", 24), study("second", 24), study("third", 2)]
    paths = compare_reports(tables, tmp_path, formats=("png",))
    headline = json.loads(paths.json_path.read_text("utf-8"))["headline"]
    assert headline.startswith("1 of 1 stable ranges hold in all studies ")
    assert headline.endswith("(2 of 3).")
    html = paths.index_path.read_text("utf-8")
    assert "(2 of 3 studies)" in html
    assert re.search("a in third: .* are needed to model", html)


def _make_findings(
    study: str, best: Mapping[str, float], importance: pd.DataFrame | Refusal
) -> StudyFindings:
    """Stand in for the findings of a study: the leaderboard and loss `a`."""
    leaderboard = pd.DataFrame({"loss": list(best), "best": list(best.values())})
    loss = SimpleNamespace(importance=importance, stable_ranges=Refusal("too few trials"))
    stand_in = SimpleNamespace(
        table=SimpleNamespace(study=study), leaderboard=leaderboard, losses={"a": loss}
    )
    return cast("StudyFindings", stand_in)


def test_rank_agreement_of_the_same_and_of_the_reverse_order() -> None:
    shares = pd.DataFrame({"knob": ["x", "y", "z"], "total": [0.6, 0.3, 0.1]})
    scores = {"a": 0.5, "b": 0.4, "c": 0.3, "untrained backbone": 0.9}
    reverse = {"a": 0.3, "b": 0.4, "c": 0.5, "d": 0.1}
    first = _make_findings("first", scores, shares)
    second = _make_findings("second", reverse, shares.assign(total=[0.5, 0.4, 0.2]))
    rows = cross_study.analyse_rank_agreement([first, second])
    assert rows[["study", "other", "what"]].to_numpy().tolist() == [
        ["first", "second", "losses"],
        ["first", "second", "a"],
    ]
    assert rows["common"].tolist() == [3, 3]
    assert rows["tau"].tolist() == [-1.0, 1.0]


def test_fewer_than_three_in_common_have_no_rank_agreement() -> None:
    refusal = Refusal("too few trials")
    first = _make_findings("first", {"a": 0.5, "b": 0.4}, refusal)
    second = _make_findings("second", {"a": 0.5, "b": 0.4}, refusal)
    (row,) = cross_study.analyse_rank_agreement([first, second]).to_dict("records")
    assert row["common"] == 2
    assert np.isnan(row["tau"])
    refusals = cross_study.collect_range_refusals([first, second])
    assert refusals.to_numpy().tolist() == [
        ["a", "first", "too few trials"],
        ["a", "second", "too few trials"],
    ]
    assert cross_study.collect_stable_ranges([first, second]).empty
