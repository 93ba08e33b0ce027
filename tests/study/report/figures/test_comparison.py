"""Tests of the figure of confirmed test scores."""

from __future__ import annotations

from dataclasses import replace

import pandas as pd
import pytest

from study.analyses.findings import StudyFindings
from study.report.charts.spec import LineMark, ReferenceLine, ScatterMark
from study.report.figures.comparison import build_confirmed_scores_chart

pytestmark = pytest.mark.xdist_group("demo")


def test_means_and_intervals_are_those_of_the_table(demo_findings: StudyFindings) -> None:
    chart = build_confirmed_scores_chart(demo_findings)
    assert chart is not None
    (panel,) = chart.panels
    rows = demo_findings.confirmed_scores
    points = {m.name: m for m in panel.marks if isinstance(m, ScatterMark)}
    assert set(points) == {"tuned", "published"}
    for name, mark in points.items():
        assert list(mark.x) == list(rows.loc[rows["point"] == name, "mean"])
    intervals = {tuple(m.x) for m in panel.marks if isinstance(m, LineMark)}
    finite = rows[rows["low"].notna() & (rows["point"] != "")]
    assert intervals == set(zip(finite["low"], finite["high"], strict=True))
    assert panel.x.limits is not None
    assert panel.x.limits[0] < rows[["mean", "low"]].min().min()
    assert panel.x.limits[1] > rows[["mean", "high"]].max().max()


def test_the_untrained_backbone_is_a_line_across_the_panel(demo_findings: StudyFindings) -> None:
    rows = demo_findings.confirmed_scores
    baseline = rows.iloc[:1].assign(loss="untrained backbone", point="", mean=0.25)
    rows = pd.concat([rows, baseline], ignore_index=True)
    changed = replace(demo_findings, confirmed_scores=rows)
    chart = build_confirmed_scores_chart(changed)
    assert chart is not None
    lines = [m for m in chart.panels[0].marks if isinstance(m, ReferenceLine)]
    assert [(m.at, m.name) for m in lines] == [(0.25, "untrained backbone")]


def test_there_is_no_figure_before_confirmation(demo_findings: StudyFindings) -> None:
    unconfirmed = replace(demo_findings, confirmed_scores=demo_findings.confirmed_scores.iloc[:0])
    assert build_confirmed_scores_chart(unconfirmed) is None
