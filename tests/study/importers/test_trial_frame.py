"""The trial table that is built from an importer's frame."""

from __future__ import annotations

import math
from typing import Any

import pandas as pd
import pytest

from search_spaces.space import Choice, Float, Hyperparameter, Int, SearchSpace
from study.errors import StudyError
from study.importers.space_file import SpaceDescription
from study.importers.trial_frame import build_table, select_params
from study.trials.table import TRIAL_COLUMNS
from tests.support.imported_tables import get_curve

pytestmark = pytest.mark.split

SPACE = SearchSpace(
    "mine",
    "",
    {
        "lr": Hyperparameter(Float(1e-4, 1.0, log=True), "η", ""),
        "seed": Hyperparameter(Int(0, 9), "s", ""),
        "pooling": Hyperparameter(Choice(["avg", "None"]), "p", ""),
    },
)
DESCRIPTION = SpaceDescription({"mine": SPACE}, {"objective": "acc"}, 0.25)


def _row(trial: str, epoch: int, score: float, **changes: Any) -> dict[str, Any]:
    row = {"trial": trial, "loss": "mine", "epoch": epoch, "score": score, "state": ""}
    params = {"knob.lr": 0.1, "knob.seed": 3, "knob.pooling": "avg"}
    return {**row, **params, "source": f"trial {trial}", **changes}


def test_a_trial_is_the_row_of_its_last_epoch() -> None:
    rows = [_row("b", 3, 0.3), _row("b", 1, 0.1), _row("a", 2, 0.2, **{"metric.loss": 7})]
    table = build_table("s", pd.DataFrame(rows), DESCRIPTION)
    trials = table.trials.set_index("trial")
    assert set(TRIAL_COLUMNS) <= set(table.trials.columns)
    assert list(trials.index) == ["b", "a"]
    assert trials["epochs"].to_dict() == {"b": 3, "a": 2}
    assert trials["score"].to_dict() == {"b": 0.3, "a": 0.2}
    assert trials["state"].to_dict() == {"b": "finished", "a": "stopped"}
    assert trials["number"].to_dict() == {"b": 0, "a": 1}
    assert (trials["started"] > 0).all()
    assert trials.loc["a", "metric.loss"] == 7
    assert trials["point"].nunique() == 1
    assert get_curve(table, "b") == {1: 0.1, 3: 0.3}
    assert table.protocol == {"objective": "acc", "epochs": 3, "tolerance": None, "imported": True}
    assert table.baseline == {"validation": {"acc": 0.25}}


def test_a_hyperparameter_may_have_the_name_of_a_column() -> None:
    rows = [_row("a", 1, 0.1, seed=11), _row("b", 1, 0.1, seed=12)]
    trials = build_table("s", pd.DataFrame(rows), DESCRIPTION).trials
    assert trials["seed"].tolist() == [11, 12]
    assert trials["knob.seed"].tolist() == [3, 3]


@pytest.mark.parametrize(
    ("state", "epoch", "score", "expected"),
    [
        ("", 5, 0.5, "finished"),
        ("", 4, 0.5, "stopped"),
        ("", 5, math.nan, "diverged"),
        ("", 5, math.inf, "diverged"),
        ("failed", 5, 0.5, "failed"),
        ("running", 0, math.nan, "running"),
    ],
)
def test_a_missing_state_is_inferred(state: str, epoch: int, score: float, expected: str) -> None:
    description = DESCRIPTION.for_log(objective="acc", epochs=5)
    table = build_table("s", pd.DataFrame([_row("a", epoch, score, state=state)]), description)
    (row,) = table.trials.to_dict("records")
    assert row["state"] == expected
    assert math.isnan(row["score"]) == (expected in ("diverged", "failed", "running"))
    assert len(table.curves) == (epoch > 0), "a trial without an epoch has no curve"


def test_a_finished_trial_needs_a_score() -> None:
    frame = pd.DataFrame([_row("a", 5, math.nan, state="finished")])
    with pytest.raises(StudyError, match="trial a: state is `finished`"):
        build_table("s", frame, DESCRIPTION)


@pytest.mark.parametrize(
    ("column", "value"), [("lr", 3.0), ("lr", math.nan), ("seed", 2.5), ("pooling", "max")]
)
def test_values_outside_the_range_are_one_clear_line(column: str, value: object) -> None:
    frame = pd.DataFrame([_row("a", 1, 0.1, **{f"knob.{column}": value})])
    with pytest.raises(StudyError, match=rf"trial a: `{column}={value}` is outside .*range"):
        build_table("s", frame, DESCRIPTION)


def test_ranges_that_were_only_observed_are_not_checked() -> None:
    frame = pd.DataFrame([_row("a", 1, 0.1, **{"knob.lr": 3.0})])
    table = build_table("s", frame, DESCRIPTION, check_ranges=False)
    assert table.trials["knob.lr"].tolist() == [3.0]


def test_select_params_names_the_nearest_logged_parameter() -> None:
    values = {"lr": 0.1, "seed": 3, "pooling": None, "batch_size": 8}
    assert select_params(values, SPACE, "t") == {
        "knob.lr": 0.1,
        "knob.seed": 3,
        "knob.pooling": None,
    }
    with pytest.raises(StudyError, match="t has no parameter 'lr'; did you mean 'lrs'"):
        select_params({"lrs": 1}, SPACE, "t")
