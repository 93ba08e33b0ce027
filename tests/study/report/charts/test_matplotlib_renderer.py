"""Tests of the figure files: every format, embedded fonts, the marks on the axes."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from study.report.charts.matplotlib_renderer import draw_figure, save_chart
from study.report.charts.spec import (
    BandMark,
    BarMark,
    Chart,
    ChartAxis,
    ChartPanel,
    HeatmapMark,
    LineMark,
    ReferenceLine,
    ScatterMark,
    SpanMark,
)

pytestmark = [pytest.mark.xdist_group("demo"), pytest.mark.slow]


def test_every_chart_is_drawn_in_every_format(demo_report: Path) -> None:
    names = {p.stem for p in (demo_report / "figures").iterdir()}
    for name in names:
        for kind in ("png", "svg", "pdf"):
            assert (demo_report / "figures" / f"{name}.{kind}").stat().st_size > 1000
    prefixes = (
        "confirmed",
        "leaderboard",
        "history",
        "expected-best",
        "response-",
        "sweeps-",
        "importance-",
        "pairs-",
        "divergence-",
        "tuning-",
    )
    for prefix in prefixes:
        assert any(n.startswith(prefix) for n in names), prefix
    pdf = (demo_report / "figures" / "leaderboard.pdf").read_bytes()
    assert b"/FontFile2" in pdf, "fonts are not embedded"
    svg = (demo_report / "figures" / "leaderboard.svg").read_text("utf-8")
    assert "<text" not in svg, "text depends on fonts of the reader's machine"


def _chart(*panels: ChartPanel, key: str = "chart") -> Chart:
    return Chart(key, "Title", "Caption.", panels)


def test_marks_are_drawn_on_the_axes() -> None:
    x, y = [1.0, 10.0, 100.0], [0.1, 0.2, 0.3]
    marks = (
        LineMark(x, y, "line", steps=True),
        BandMark(x, y, [v + 0.1 for v in y], "band"),
        ScatterMark(x, y, "points", errors=[0.1] * 3),
        ReferenceLine(3.0, "published"),
        SpanMark(2.0, 4.0, "stable"),
    )
    axis = ChartAxis("α", log=True, ticks=((1.0, "1"), (100.0, "100")), limits=(0.5, 200.0))
    figure = draw_figure(_chart(ChartPanel("α", axis, ChartAxis("MAP@R"), marks)))
    (axes,) = figure.axes
    assert axes.get_xscale() == "log"
    assert axes.get_xlim() == (0.5, 200.0)
    assert [t.get_text() for t in axes.get_xticklabels()] == ["1", "100"]
    assert np.asarray(axes.lines[0].get_xdata()).tolist() == x
    (legend,) = figure.legends
    assert {t.get_text() for t in legend.get_texts()} == {
        "line",
        "band",
        "points",
        "published",
        "stable",
    }


def test_groups_of_bars_do_not_overlap_and_the_first_label_is_on_top() -> None:
    labels, zeros = ["a", "b"], [0.0, 0.0]
    bars = [BarMark(labels, [0.5, 0.2], zeros, [1.0, 0.4], name) for name in ("total", "alone")]
    panel = ChartPanel("", ChartAxis("share", percent=True), ChartAxis(""), tuple(bars))
    (axes,) = draw_figure(_chart(panel)).axes
    spans = sorted((p.get_y(), p.get_y() + p.get_height()) for p in axes.patches)  # type: ignore[attr-defined]
    assert len(spans) == 4
    assert all(end <= start for (_, end), (start, _) in pairwise(spans))
    assert axes.yaxis_inverted()
    assert [t.get_text() for t in axes.get_yticklabels()] == labels


def test_a_heat_map_has_a_colour_bar_and_a_note_no_axes() -> None:
    heatmap = HeatmapMark([0.0, 1.0], [0.0, 1.0], [[0.1, None], [0.2, 0.3]], "MAP@R")
    surface = ChartPanel("", ChartAxis("x"), ChartAxis("y"), (heatmap,))
    note = ChartPanel("Empty", ChartAxis("x"), ChartAxis("y"), note="No trial has a score yet.")
    figure = draw_figure(_chart(surface, note))
    labels = [axes.get_ylabel() for axes in figure.axes]
    assert "MAP@R" in labels
    empty = next(axes for axes in figure.axes if axes.get_title(loc="left") == "Empty")
    assert not empty.axison
    assert [t.get_text() for t in empty.texts] == ["No trial has a score yet."]


def test_the_name_of_a_file_stays_inside_the_folder(tmp_path: Path) -> None:
    panel = ChartPanel("", ChartAxis("x"), ChartAxis("y"), (LineMark([0.0], [0.0], ""),))
    (path,) = save_chart(_chart(panel, key="response-../../x"), tmp_path, ("svg",))
    assert [p.name for p in tmp_path.iterdir()] == [path.name]
    assert path.suffix == ".svg"
