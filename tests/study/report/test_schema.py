"""Tests of the JSON schemas: the checked-in files, and what validation notices."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from study.report.schema import build_comparison_schema, build_report_schema, write_schemas

pytestmark = pytest.mark.xdist_group("demo")


@pytest.mark.parametrize("name", ["report", "comparison"])
def test_the_checked_in_schema_is_the_generated_one(name: str, tmp_path: Path) -> None:
    """After a change of a table, `make schema` writes the files."""
    write_schemas(tmp_path)
    generated = (tmp_path / f"{name}.schema.json").read_text("utf-8")
    assert files("study.report").joinpath(f"{name}.schema.json").read_text("utf-8") == generated


@pytest.mark.parametrize("build", [build_report_schema, build_comparison_schema])
def test_the_schema_is_valid(build: Callable[[], dict[str, Any]]) -> None:
    jsonschema.Draft202012Validator.check_schema(build())


def _misspell_verdict(content: dict[str, Any]) -> None:
    content["claims"][0]["verdict"] = "maybe"


def _add_column(content: dict[str, Any]) -> None:
    content["history"][0]["extra"] = 1.0


def _drop_column(content: dict[str, Any]) -> None:
    del content["losses"]["triplet"]["stable"][0]["share"]


def _write_number_as_text(content: dict[str, Any]) -> None:
    content["confirmed"][0]["mean"] = "0.5"


def _raise_probability(content: dict[str, Any]) -> None:
    content["probability_best"]["losses"][0]["probability"] = 1.5


@pytest.mark.parametrize(
    "change",
    [_misspell_verdict, _add_column, _drop_column, _write_number_as_text, _raise_probability],
)
def test_the_schema_notices(change: Callable[[dict[str, Any]], None], demo_report: Path) -> None:
    content = json.loads((demo_report / "report.json").read_text("utf-8"))
    changed = copy.deepcopy(content)
    change(changed)
    validator = jsonschema.Draft202012Validator(build_report_schema())
    assert validator.is_valid(content)
    assert not validator.is_valid(changed)
