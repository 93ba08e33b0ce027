"""Tests of the figures of what tuning gains."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from study.analyses.findings import StudyFindings
from study.analyses.surrogate.surrogate import Refusal
from study.report.charts.spec import BandMark, BarMark, LineMark
from study.report.figures.tuning import build_expected_best_chart, build_tuning_gain_chart

pytestmark = pytest.mark.xdist_group("demo")


def test_the_median_best_of_n_is_drawn_for_every_loss(demo_findings: StudyFindings) -> None:
    chart = build_expected_best_chart(demo_findings)
    assert chart is not None
    assert [p.title for p in chart.panels] == list(demo_findings.losses)
    for panel in chart.panels:
        rows = demo_findings.losses[panel.title].expected_best
        median = next(m for m in panel.marks if m.name == "median")
        assert isinstance(median, LineMark)
        assert list(median.x) == list(rows["n"])
        assert list(median.y) == list(rows["median"])
        assert list(median.y) == sorted(median.y), "more trials are never worse"


def test_the_band_ends_where_it_has_no_upper_end(demo_findings: StudyFindings) -> None:
    found = demo_findings.losses["triplet"]
    rows = found.expected_best.copy()
    rows.loc[rows.index[-2:], "high"] = np.inf
    losses = {**demo_findings.losses, "triplet": replace(found, expected_best=rows)}
    chart = build_expected_best_chart(replace(demo_findings, losses=losses))
    assert chart is not None
    (band,) = (m for m in chart.panels[-1].marks if isinstance(m, BandMark))
    assert np.isfinite(band.high).all()
    assert max(band.x) < rows["n"].max()


def test_there_is_no_budget_figure_without_sobol_trials(demo_findings: StudyFindings) -> None:
    losses = {
        loss: replace(found, expected_best=found.expected_best.iloc[:0])
        for loss, found in demo_findings.losses.items()
    }
    assert build_expected_best_chart(replace(demo_findings, losses=losses)) is None


def test_gains_are_bars_with_the_values_they_move_to(demo_findings: StudyFindings) -> None:
    chart = build_tuning_gain_chart(demo_findings, "proxy_anchor")
    tuned = demo_findings.losses["proxy_anchor"].tuning
    assert chart is not None
    assert not isinstance(tuned, Refusal)
    (alone,) = chart.panels[0].marks
    assert isinstance(alone, BarMark)
    assert list(alone.values) == list(tuned.tunability["gain"])
    assert all(" → " in label for label in alone.labels)
    (steps,) = chart.panels[1].marks
    assert isinstance(steps, BarMark)
    assert [label.split(".")[0] for label in steps.labels] == [
        str(step) for step in tuned.path["step"] if step > 0
    ]


def test_there_is_no_gain_figure_if_it_was_refused(demo_findings: StudyFindings) -> None:
    found = replace(demo_findings.losses["triplet"], tuning=Refusal("no published point"))
    losses = {**demo_findings.losses, "triplet": found}
    assert build_tuning_gain_chart(replace(demo_findings, losses=losses), "triplet") is None
