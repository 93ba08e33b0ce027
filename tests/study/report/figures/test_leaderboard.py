"""Tests of the figure of the leaderboard."""

from __future__ import annotations

from dataclasses import replace

import pytest

from study.analyses.findings import StudyFindings
from study.report.charts.spec import ReferenceLine, ScatterMark
from study.report.figures.leaderboard import build_leaderboard_chart

pytestmark = pytest.mark.xdist_group("demo")


def test_scores_are_on_the_lines_of_their_losses(demo_findings: StudyFindings) -> None:
    (panel,) = build_leaderboard_chart(demo_findings).panels
    assert panel.y.ticks == ((2.0, "proxy_anchor"), (1.0, "circle"), (0.0, "triplet"))
    rows = demo_findings.leaderboard.set_index("loss")
    points = {m.name: m for m in panel.marks if isinstance(m, ScatterMark)}
    names = ["proxy_anchor", "circle", "triplet"]
    assert list(points["best trial"].x) == list(rows.loc[names, "best"])
    assert list(points["published point"].x) == list(rows.loc[names, "published"])
    assert all(list(m.y) == [2.0, 1.0, 0.0] for m in points.values())
    (baseline,) = (m for m in panel.marks if isinstance(m, ReferenceLine))
    assert baseline.at == rows.loc["untrained backbone", "best"]


def test_a_column_without_scores_is_not_drawn(demo_findings: StudyFindings) -> None:
    board = demo_findings.leaderboard.assign(repeated=float("nan"))
    (panel,) = build_leaderboard_chart(replace(demo_findings, leaderboard=board)).panels
    assert "its repeats (mean)" not in {m.name for m in panel.marks}


def test_without_scores_there_is_a_note(demo_findings: StudyFindings) -> None:
    board = demo_findings.leaderboard
    board = board[board["loss"] != "untrained backbone"]
    board = board.assign(best=float("nan"), repeated=float("nan"), published=float("nan"))
    (panel,) = build_leaderboard_chart(replace(demo_findings, leaderboard=board)).panels
    assert panel.marks == ()
    assert panel.note
