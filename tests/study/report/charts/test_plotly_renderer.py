"""Tests of the page's figures: valid plotly.js JSON, gaps, escapes in legends."""

from __future__ import annotations

import json
import math

import plotly.graph_objects as go
import pytest

from study.analyses.findings import analyse_study
from study.report.charts.plotly_renderer import build_plotly_figure, render_legend_key
from study.report.charts.spec import (
    BandMark,
    BarMark,
    ChartAxis,
    ChartMark,
    ChartPanel,
    HeatmapMark,
    LineMark,
    MarkerSymbol,
    ReferenceLine,
    ScatterMark,
    SpanMark,
)
from study.report.sections import build_sections
from tests.support.demo_study import make_demo_problems
from tests.support.synthetic_tables import SyntheticPlan, make_table

pytestmark = pytest.mark.split


def _panel(*marks: ChartMark, x: ChartAxis | None = None) -> ChartPanel:
    return ChartPanel("", x or ChartAxis("x"), ChartAxis("y"), marks)


@pytest.mark.slow
def test_plots_are_valid_plotly() -> None:
    small = make_table(make_demo_problems()[1:], SyntheticPlan(trials=16))
    panels = [
        p
        for s in build_sections(analyse_study(small))
        for b in s.blocks
        if b.chart
        for p in b.chart.panels
    ]
    assert len(panels) >= 7
    for panel in panels:
        go.Figure(build_plotly_figure(panel))  # raises on any property that plotly does not have


def test_a_band_ends_where_there_are_no_trials() -> None:
    """Plotly fills across gaps, so every segment is a trace of its own."""
    nan = float("nan")
    x = [float(i) for i in range(7)]
    band = BandMark(
        x, [nan, 1.0, 1.1, nan, nan, 1.2, 1.3], [nan, 2.0, 2.1, nan, nan, 2.2, 2.3], "band"
    )
    low, high, other_low, other_high = build_plotly_figure(_panel(band))["data"]
    assert low["x"] == high["x"] == [1.0, 2.0]
    assert other_low["x"] == other_high["x"] == [5.0, 6.0]
    assert (low["y"], high["y"]) == ([1.0, 1.1], [2.0, 2.1])
    assert (other_low["y"], other_high["y"]) == ([1.2, 1.3], [2.2, 2.3])
    assert [t.get("fill") for t in (low, high, other_low, other_high)] == [None, "tonexty"] * 2


def test_missing_numbers_are_null_in_json() -> None:
    nan = math.nan
    heatmap = HeatmapMark([0.0, 1.0], [0.0], [[None, nan]], "score")
    bars = BarMark(["a"], [0.5], [nan], [0.75], "gain")
    figure = build_plotly_figure(_panel(LineMark([0.0, 1.0], [nan, 2.0], ""), heatmap, bars))
    line, surface, bar = json.loads(json.dumps(figure, allow_nan=False))["data"]
    assert line["y"] == [None, 2.0]
    assert surface["z"] == [[None, None]]
    assert (bar["error_x"]["array"], bar["error_x"]["arrayminus"]) == ([0.25], [None])


def test_the_range_of_a_logarithmic_axis_is_in_decades() -> None:
    axis = ChartAxis("α", log=True, ticks=((1.0, "1"), (10.0, "10")), limits=(0.1, 100.0))
    layout = build_plotly_figure(_panel(x=axis))["layout"]["xaxis"]
    assert layout["type"] == "log"
    assert layout["range"] == [-1.0, 2.0]
    assert (layout["tickvals"], layout["ticktext"]) == ([1.0, 10.0], ["1", "10"])


def test_lines_and_ranges_across_the_panel_are_shapes() -> None:
    span, line, level = SpanMark(1.0, 2.0, ""), ReferenceLine(3.0, ""), ReferenceLine(4.0, "", "y")
    figure = build_plotly_figure(_panel(span, line, level))
    assert figure["data"] == []
    rectangle, vertical, horizontal = figure["layout"]["shapes"]
    assert (rectangle["type"], rectangle["x0"], rectangle["x1"]) == ("rect", 1.0, 2.0)
    assert (vertical["x0"], vertical["x1"], vertical["yref"]) == (3.0, 3.0, "paper")
    assert (horizontal["y0"], horizontal["y1"], horizontal["xref"]) == (4.0, 4.0, "paper")


def test_legend_keys_have_the_colour_of_the_mark_and_no_user_text() -> None:
    symbols: tuple[MarkerSymbol, ...] = ("circle", "open", "cross", "triangle", "diamond")
    marks: list[ChartMark] = [
        LineMark([], [], "<b>", "#123456", dash=True),
        BandMark([], [], [], "<b>", "#123456"),
        *(ScatterMark([], [], "<b>", "#123456", symbol) for symbol in symbols),
    ]
    keys = {render_legend_key(mark) for mark in marks}
    assert len(keys) == 7
    assert all(key.startswith("<svg ") and "#123456" in key for key in keys)
    assert not any("<b>" in key for key in keys)
