"""Tests of report.json: JSON types, refusals, and the schema that describes it."""

from __future__ import annotations

import json
import math
from pathlib import Path

import jsonschema
import numpy as np
import pandas as pd
import pytest

from study.analyses.findings import analyse_study
from study.analyses.surrogate.surrogate import Refusal
from study.report.json_export import findings_to_json, frame_to_json, to_json_value
from study.report.schema import build_report_schema
from study.report.summary import ReportSummary
from tests.support.demo_study import make_demo_problems
from tests.support.synthetic_tables import SyntheticPlan, make_table

pytestmark = pytest.mark.xdist_group("demo")


def test_report_json_follows_its_schema(demo_report: Path) -> None:
    content = json.loads((demo_report / "report.json").read_text("utf-8"))
    jsonschema.Draft202012Validator(build_report_schema()).validate(content)
    assert set(content["losses"]) == {"proxy_anchor", "circle", "triplet"}
    assert content["losses"]["proxy_anchor"]["tuning"]["gain"]["mean"] > 0


def test_refusals_follow_the_schema_too() -> None:
    small = analyse_study(make_table(make_demo_problems(), SyntheticPlan(trials=3, repeats=1)))
    content = json.loads(
        json.dumps(findings_to_json(small, ReportSummary("h", (("a", "b"),))), allow_nan=False)
    )
    jsonschema.Draft202012Validator(build_report_schema()).validate(content)
    assert "refused" in content["losses"]["circle"]["importance"]


def test_values_become_json_types() -> None:
    value = {
        1: np.int64(2),
        "float": np.float32(0.5),
        "missing": [math.nan, math.inf, None, pd.NA, pd.NaT],
        "flags": (np.bool_(True), False),
        "other": Path("a"),
    }
    converted = to_json_value(value)
    assert converted == {
        "1": 2,
        "float": 0.5,
        "missing": [None] * 5,
        "flags": [True, False],
        "other": "a",
    }
    assert json.loads(json.dumps(converted, allow_nan=False)) == converted


def test_numbers_are_rounded_to_ten_digits() -> None:
    assert to_json_value(1 / 3) == 0.3333333333


def test_a_frame_is_a_list_of_rows_and_a_refusal_its_reason() -> None:
    frame = pd.DataFrame({"loss": ["a", "b"], "best": [0.5, math.nan]})
    assert frame_to_json(frame) == [{"loss": "a", "best": 0.5}, {"loss": "b", "best": None}]
    assert frame_to_json(Refusal("too few trials")) == {"refused": "too few trials"}
