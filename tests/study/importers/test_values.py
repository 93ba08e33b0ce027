"""Raw values as the types of a search space."""

from __future__ import annotations

import math

import pytest

from search_spaces.space import Choice, Float, Int
from study.importers.values import as_number, as_value, first_error_line, replace_none_choices

pytestmark = pytest.mark.split


@pytest.mark.parametrize(
    ("raw", "expected"), [("8", 8), (8.0, 8), ("1e1", 10), (2.5, 2.5), (True, True), ("x", "x")]
)
def test_integers_are_converted_if_they_are_whole(raw: object, expected: object) -> None:
    value = as_value(Int(1, 10), raw)
    assert value == expected
    assert type(value) is type(expected)


def test_floats_are_converted_from_text() -> None:
    assert as_value(Float(0.0, 1.0), "1e-4") == 1e-4
    assert type(as_value(Float(0.0, 1.0), 1)) is float


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        ("avg", "avg"),
        (None, "None"),
        (math.nan, "None"),
        ("True", True),
        (32.0, 32),
        ("max", "max"),
    ],
)
def test_choices_are_found_by_text_or_number(raw: object, expected: object) -> None:
    value = as_value(Choice(["avg", "None", True, 32]), raw)
    assert value == expected
    assert type(value) is type(expected)


def test_numbers_and_none_choices() -> None:
    assert as_number("0.5") == 0.5
    assert math.isnan(as_number("high"))
    assert math.isnan(as_number(None))
    assert replace_none_choices([None, 1, "a"]) == ["None", 1, "a"]


def test_the_first_line_of_an_error_or_its_type() -> None:
    assert first_error_line(ValueError("\none\ntwo")) == "one"
    assert first_error_line(KeyError()) == "KeyError"
