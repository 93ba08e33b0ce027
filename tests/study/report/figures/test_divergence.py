"""Tests of the figure of failed training."""

from __future__ import annotations

from dataclasses import replace

import pytest

from study.analyses.findings import StudyFindings
from study.report.charts.spec import HeatmapMark, ScatterMark
from study.report.figures.divergence import build_divergence_chart
from study.trials.table import PARAM_PREFIX

pytestmark = pytest.mark.xdist_group("demo")


def test_shares_are_those_of_the_table(demo_findings: StudyFindings) -> None:
    chart = build_divergence_chart(demo_findings, "circle")
    assert chart is not None
    rows = demo_findings.losses["circle"].divergence
    panels = {p.title: p for p in chart.panels if p.y.percent}
    assert list(panels) == ["γ (gamma)", "m", "η (backbone_lr)"]
    for param, panel in zip(("gamma", "m", "backbone_lr"), panels.values(), strict=True):
        shares = next(m for m in panel.marks if m.name == "diverged")
        assert isinstance(shares, ScatterMark)
        assert list(shares.y) == list(rows.loc[rows["knob"] == param, "rate"])
        assert panel.x.limits is not None
        assert all(panel.x.limits[0] <= x <= panel.x.limits[1] for x in shares.x)


def test_the_map_has_the_diverged_trials_at_their_values(demo_findings: StudyFindings) -> None:
    """The demo's circle loss diverges where gamma and the learning rate are high."""
    chart = build_divergence_chart(demo_findings, "circle")
    assert chart is not None
    surface, crosses, *_ = chart.panels[0].marks
    assert isinstance(surface, HeatmapMark)
    assert isinstance(crosses, ScatterMark)
    assert chart.panels[0].title == "η (backbone_lr) × γ (gamma)"
    cells = [v for row in surface.z for v in row if v is not None]
    assert 0.0 <= min(cells) < max(cells) <= 1.0
    trials = demo_findings.table.trials
    diverged = trials[(trials["loss"] == "circle") & (trials["state"] == "diverged")]
    assert sorted(crosses.x) == sorted(diverged[PARAM_PREFIX + "backbone_lr"])
    assert sorted(crosses.y) == sorted(diverged[PARAM_PREFIX + "gamma"])


def test_there_is_no_figure_without_failures(demo_findings: StudyFindings) -> None:
    found = demo_findings.losses["triplet"]
    calm = replace(found, divergence=found.divergence.iloc[:0])
    losses = {**demo_findings.losses, "triplet": calm}
    assert build_divergence_chart(replace(demo_findings, losses=losses), "triplet") is None
