"""Tests of the figure of the response curves."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from study.analyses.findings import StudyFindings
from study.analyses.surrogate.surrogate import Refusal
from study.report.charts.spec import BandMark, ChartPanel, ReferenceLine, ScatterMark, SpanMark
from study.report.figures.response import build_response_chart

pytestmark = pytest.mark.xdist_group("demo")


def _panel(findings: StudyFindings, loss: str, title: str) -> ChartPanel:
    return next(p for p in build_response_chart(findings, loss).panels if p.title == title)


def test_there_is_a_panel_for_every_searched_hyperparameter(demo_findings: StudyFindings) -> None:
    panels = build_response_chart(demo_findings, "proxy_anchor").panels
    assert len(panels) == len(demo_findings.table.searched_param_names("proxy_anchor")) == 6


def test_claimed_stable_and_published_values_are_marked(demo_findings: StudyFindings) -> None:
    panel = _panel(demo_findings, "circle", "γ (gamma)")
    spans = {m.name: (m.low, m.high) for m in panel.marks if isinstance(m, SpanMark)}
    assert spans["claimed stable"] == (64.0, 1024.0)
    ranges = demo_findings.losses["circle"].stable_ranges
    assert not isinstance(ranges, Refusal)
    row = ranges[ranges["knob"] == "gamma"].iloc[0]
    assert spans["stable range"] == (row["low"], row["high"])
    (published,) = (m for m in panel.marks if isinstance(m, ReferenceLine))
    assert (published.at, published.name) == (256.0, "published")


def test_every_trial_is_drawn_once_within_the_panel(demo_findings: StudyFindings) -> None:
    panel = _panel(demo_findings, "circle", "γ (gamma)")
    assert panel.y.limits is not None
    low, high = panel.y.limits
    points = {m.name: m for m in panel.marks if isinstance(m, ScatterMark)}
    trials = demo_findings.table.trials
    trials = trials[(trials["loss"] == "circle") & (trials["split"] == "validation")]
    assert sum(len(m.x) for m in points.values()) == len(trials)
    assert len(points["diverged"].x) == (trials["state"] == "diverged").sum()
    assert all(low <= y <= high for m in points.values() for y in m.y)
    # Trials below the axis and diverged trials are at one height, the lower edge.
    edge = {y for name in ("below the axis", "diverged") for y in points[name].y}
    assert len(edge) == 1


def test_bands_are_drawn_only_where_there_are_trials(demo_findings: StudyFindings) -> None:
    curves = demo_findings.losses["circle"].response_curves
    assert not isinstance(curves, Refusal)
    unsupported = curves.assign(supported=curves["supported"] & (curves["value"] != 16.0))
    is_gamma = unsupported["knob"] == "gamma"
    unsupported.loc[is_gamma & (unsupported["unit"] < 0.5), "supported"] = False
    found = replace(demo_findings.losses["circle"], response_curves=unsupported)
    changed = replace(demo_findings, losses={**demo_findings.losses, "circle": found})
    for band in _panel(changed, "circle", "γ (gamma)").marks:
        if isinstance(band, BandMark):
            is_drawn = np.isfinite(np.asarray(band.low, dtype=float))
            assert is_drawn.any()
            assert all(np.asarray(band.x)[is_drawn] >= 128.0 * 0.99)


def test_choices_are_spread_around_their_tick(demo_findings: StudyFindings) -> None:
    panel = _panel(demo_findings, "proxy_anchor", "pooling")
    assert [label for _, label in panel.x.ticks] == ["avg", "max", "avg+max"]
    points = next(m for m in panel.marks if m.name == "full trial")
    assert isinstance(points, ScatterMark)
    offsets = [x - round(x) for x in points.x]
    assert len(set(offsets)) > len(offsets) / 2
    assert all(abs(offset) <= 0.25 for offset in offsets)


def test_without_trials_there_is_a_note(demo_findings: StudyFindings) -> None:
    empty = replace(demo_findings.table, trials=demo_findings.table.trials.iloc[:0])
    panels = build_response_chart(replace(demo_findings, table=empty), "triplet").panels
    assert all(p.note for p in panels)
