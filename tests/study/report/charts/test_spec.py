"""Tests of the legend of a chart."""

from __future__ import annotations

import pytest

from study.report.charts.spec import (
    Chart,
    ChartAxis,
    ChartMark,
    ChartPanel,
    HeatmapMark,
    LineMark,
    ScatterMark,
)

pytestmark = pytest.mark.split


def _chart(*panels: tuple[ChartMark, ...]) -> Chart:
    axis = ChartAxis("")
    return Chart("key", "Title", "", tuple(ChartPanel("", axis, axis, marks) for marks in panels))


def test_the_legend_has_each_name_once_and_only_names() -> None:
    model, trials = LineMark([0.0], [0.0], "model"), ScatterMark([0.0], [0.0], "trials")
    again, unnamed = LineMark([1.0], [1.0], "model"), LineMark([0.0], [0.0], "")
    surface = HeatmapMark([0.0], [0.0], [[None]], "score")
    assert _chart((surface, model), (unnamed, again, trials)).legend == [model, trials]


def test_a_single_name_needs_no_legend() -> None:
    assert _chart((LineMark([0.0], [0.0], "model"),)).legend == []
