"""Tests of JSON output."""

from __future__ import annotations

import json
import math

import pytest

from study.cli.options import print_json

pytestmark = pytest.mark.split


def test_numbers_that_json_lacks_become_null(capsys: pytest.CaptureFixture[str]) -> None:
    print_json({"a": math.nan, 1: [math.inf, -math.inf, 2.5], "b": {"c": ("α", True, None)}})
    assert json.loads(capsys.readouterr().out) == {
        "a": None,
        "1": [None, None, 2.5],
        "b": {"c": ["α", True, None]},
    }
