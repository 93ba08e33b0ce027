"""Tests of formatted numbers, labels and axes."""

from __future__ import annotations

import math

import pytest
from optuna.distributions import CategoricalDistribution, FloatDistribution

from search_spaces.space import Hyperparameter, SearchSpace
from study.report.formatting import (
    axis_positions,
    format_percent,
    format_probability,
    format_rounded_score,
    format_value,
    join_words,
    log_ticks,
    metric_label,
    param_axis,
    param_label,
)

pytestmark = pytest.mark.split

SPACE = SearchSpace(
    loss="a",
    paper="",
    scientific={
        "alpha": Hyperparameter(FloatDistribution(1.0, 100.0, log=True), "α", "", unit="images"),
        "margin": Hyperparameter(FloatDistribution(0.0, 2.0), "margin", ""),
        "pooling": Hyperparameter(CategoricalDistribution(["avg", True, 2]), "", ""),
    },
)


def test_labels_have_the_symbol_of_the_paper() -> None:
    assert [param_label(SPACE, n) for n in ("alpha", "margin", "pooling", "other")] == [
        "α (alpha)",
        "margin",
        "pooling",
        "other",
    ]
    assert [metric_label(n) for n in ("recall_at_8", "map_at_r", "own_metric")] == [
        "R@8",
        "MAP@R",
        "own_metric",
    ]


def test_scores_and_values() -> None:
    assert [format_rounded_score(v) for v in (0.12345, 1234.5678, math.nan, None, "x")] == [
        "0.123",
        "1235",
        "–",
        "–",
        "x",
    ]
    assert [format_value(v) for v in (0.12345, 32.0, True, "avg", None, math.inf)] == [
        "0.123",
        "32",
        "True",
        "avg",
        "–",
        "–",
    ]


def test_only_a_share_can_be_certain() -> None:
    values = (0.0, 0.001, 0.5, 0.9999, 1.0, math.nan)
    assert [format_percent(v) for v in values] == ["0%", "< 1%", "50%", "> 99%", "100%", "–"]
    assert [format_probability(v) for v in values] == ["< 1%", "< 1%", "50%", "> 99%", "> 99%", "–"]


def test_words_are_joined() -> None:
    assert [join_words(list("abc"[:n])) for n in range(4)] == ["", "a", "a and b", "a, b and c"]
    assert join_words(["a", "b"], last="or") == "a or b"


def test_axes_follow_the_distributions() -> None:
    log, linear, choices = (param_axis(SPACE, n) for n in SPACE.searched_params)
    assert (log.label, log.log) == ("α (alpha) [images]", True)
    assert log.limits is not None
    assert log.limits[0] < 1.0 < 100.0 < log.limits[1]
    assert linear.limits == pytest.approx((-0.06, 2.06))
    assert choices.ticks == ((0.0, "avg"), (1.0, "True"), (2.0, "2"))
    assert choices.limits == (-0.5, 2.5)


@pytest.mark.parametrize(
    ("low", "high", "labels"),
    [
        (1.0, 10.0, ["1", "2", "5", "10"]),
        (1.0, 100.0, ["1", "3", "10", "30", "100"]),
        (1e-6, 1e-1, ["1e-6", "1e-5", "1e-4", "0.001", "0.01", "0.1"]),
    ],
)
def test_longer_axes_have_fewer_ticks_per_decade(
    low: float, high: float, labels: list[str]
) -> None:
    ticks = log_ticks(low, high)
    assert [label for _, label in ticks] == labels
    assert all(low * 0.99 <= value <= high * 1.01 for value, _ in ticks)


def test_choices_are_placed_by_their_index_also_as_text() -> None:
    distribution = SPACE.distributions["pooling"]
    assert axis_positions(distribution, ["avg", True, 2, "True", "2"]) == [0.0, 1.0, 2.0, 1.0, 2.0]
    assert axis_positions(SPACE.distributions["margin"], ["0.5", 1]) == [0.5, 1.0]
