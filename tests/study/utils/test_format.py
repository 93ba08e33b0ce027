"""Scores, durations and counts as text."""

from __future__ import annotations

import math

import pytest

from study.utils.format import count_noun, format_duration, format_score

pytestmark = pytest.mark.split


@pytest.mark.parametrize(("score", "text"), [(0.123456, "0.1235"), (1, "1.0000"), (math.nan, "-")])
def test_scores(score: float, text: str) -> None:
    assert format_score(score) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.4, "0 s"),
        (59.4, "59 s"),
        (59.6, "1 min 00 s"),
        (3599, "59 min 59 s"),
        (3599.6, "1 h 00 min"),
        (90_061, "25 h 01 min"),
        (math.nan, "?"),
    ],
)
def test_durations(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text


def test_counts_have_the_right_number() -> None:
    assert [count_noun(n, "trial") for n in (0, 1, 1200)] == ["0 trials", "1 trial", "1,200 trials"]
