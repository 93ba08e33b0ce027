"""Tests of the page's tables: decimals, dashes, classes of verdicts."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest

from study.report.html_table import table_columns, table_rows

pytestmark = pytest.mark.split


def _texts(values: object) -> list[str]:
    return [row[0].text for row in table_rows(pd.DataFrame({"x": values}))]


def test_the_numbers_of_a_column_have_the_same_decimals() -> None:
    assert _texts([0.5, 0.12345]) == ["0.5000", "0.1235"]
    assert _texts([0.5, 12.3456]) == ["0.50", "12.35"]
    assert _texts([0.5, 123.456]) == ["0.5", "123.5"]
    assert _texts([0.5, 1234.56]) == ["0", "1235"]


def test_integers_have_no_decimals() -> None:
    assert _texts([1, 20]) == ["1", "20"]
    assert _texts([1.0, math.nan, 20.0]) == ["1", "–", "20"]


def test_tiny_numbers_are_not_rounded_to_zero() -> None:
    assert _texts([0.5, 0.00012, 0.0, -0.0005]) == ["0.5000", "1.2e-04", "0.0000", "-5.0e-04"]


def test_missing_values_and_flags() -> None:
    assert _texts(pd.Series([None, math.nan, True, np.bool_(False), 0.123456, "a"])) == [
        "–",
        "–",
        "yes",
        "no",
        "0.1235",
        "a",
    ]
    assert _texts([True, False]) == ["yes", "no"]


def test_columns_are_numeric_by_their_type() -> None:
    frame = pd.DataFrame({"n": [1], "x": [0.5], "flag": [True], "name": ["a"]})
    assert [(c.name, c.numeric) for c in table_columns(frame)] == [
        ("n", True),
        ("x", True),
        ("flag", False),
        ("name", False),
    ]


def test_verdicts_have_a_class_for_their_colour() -> None:
    verdicts = ["supported", "set it", "cannot tell", "anything else"]
    rows = table_rows(pd.DataFrame({"verdict": verdicts, "score": [0.1, 0.2, 0.3, 0.4]}))
    assert [row[0].kind for row in rows] == ["good", "bad", "open", ""]
    assert {row[1].kind for row in rows} == {"n"}
