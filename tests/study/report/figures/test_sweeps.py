"""Tests of the figure of the sweeps."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from study.analyses.findings import StudyFindings
from study.report.charts.spec import ScatterMark
from study.report.figures.sweeps import build_sweep_chart

pytestmark = pytest.mark.xdist_group("demo")


def test_measured_means_are_in_the_order_of_the_values(demo_findings: StudyFindings) -> None:
    chart = build_sweep_chart(demo_findings, "proxy_anchor")
    assert chart is not None
    (panel,) = chart.panels
    assert panel.title == "α (alpha) from the published point"
    measured = next(m for m in panel.marks if m.name.startswith("measured, 3 seeds"))
    assert isinstance(measured, ScatterMark)
    assert list(measured.x) == sorted(measured.x)
    rows = demo_findings.losses["proxy_anchor"].sweeps
    expected = dict(zip(rows["value"].astype(float), rows["mean"], strict=True))
    assert dict(zip(measured.x, measured.y, strict=True)) == expected


def test_diverged_seeds_are_crosses(demo_findings: StudyFindings) -> None:
    found = demo_findings.losses["proxy_anchor"]
    rows = found.sweeps.reset_index(drop=True).astype({"mean": float})
    rows.loc[0, ["diverged", "seeds", "mean"]] = [3, 0, np.nan]
    rows.loc[1, "diverged"] = 1
    losses = {**demo_findings.losses, "proxy_anchor": replace(found, sweeps=rows)}
    chart = build_sweep_chart(replace(demo_findings, losses=losses), "proxy_anchor")
    assert chart is not None
    crosses = next(m for m in chart.panels[0].marks if m.name == "diverged")
    assert isinstance(crosses, ScatterMark)
    first, second = rows["value"].astype(float).iloc[:2]
    heights = dict(zip(crosses.x, crosses.y, strict=True))
    assert heights == {first: rows["mean"].min(), second: rows.loc[1, "mean"]}
    assert set(crosses.texts) == {"3 of 3 seeds diverged", "1 of 4 seeds diverged"}


def test_there_is_no_figure_without_sweeps(demo_findings: StudyFindings) -> None:
    assert build_sweep_chart(demo_findings, "triplet") is None
