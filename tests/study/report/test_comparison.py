"""Tests of the comparison of several studies."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import pytest

from study.errors import StudyError
from study.report.comparison import compare_reports
from study.report.schema import build_comparison_schema
from tests.support.demo_study import make_demo_problems
from tests.support.synthetic_tables import SyntheticPlan, make_table

pytestmark = pytest.mark.split


def test_two_studies_are_compared(tmp_path: Path) -> None:
    tables = [
        make_table(make_demo_problems()[2:], SyntheticPlan(trials=24), seed=s, study=f"s{s}")
        for s in (0, 1)
    ]
    paths = compare_reports(tables, tmp_path, formats=("png",))
    html = paths.index_path.read_text("utf-8")
    assert "Stable ranges in all studies" in html
    assert "<th>hyperparameter</th>" in html
    content = json.loads(paths.json_path.read_text("utf-8"))
    jsonschema.Draft202012Validator(build_comparison_schema()).validate(content)
    assert content["studies"] == ["s0", "s1"]
    assert {r["knob"] for r in content["common"]} == {"margin", "backbone_lr"}
    assert content["headline"] in html
    assert {p.stem for p in paths.figures} == {"ranges-triplet"}
    assert {p.name for p in paths.tables} >= {"common.csv", "common.tex", "scores.csv"}
    assert all(p.exists() for p in (*paths.figures, *paths.tables))


def test_studies_without_a_common_loss_are_compared_in_words(tmp_path: Path) -> None:
    tables = [
        make_table([problem], SyntheticPlan(trials=3, repeats=1), study=problem.space.loss)
        for problem in make_demo_problems()[1:]
    ]
    paths = compare_reports(tables, tmp_path, formats=("png",))
    content = json.loads(paths.json_path.read_text("utf-8"))
    assert content["common"] == []
    assert "no loss and hyperparameter" in content["headline"]
    assert {row["loss"] for row in content["scores"]} >= {"circle", "triplet"}
    page = paths.index_path.read_text("utf-8")
    assert "Not counted" in page, "both refuse their ranges"


def test_a_single_study_is_not_a_comparison(tmp_path: Path) -> None:
    table = make_table(make_demo_problems()[2:], SyntheticPlan(trials=3, repeats=1))
    with pytest.raises(StudyError, match="at least two"):
        compare_reports([table], tmp_path)
    assert not list(tmp_path.iterdir())
