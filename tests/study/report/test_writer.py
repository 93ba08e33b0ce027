"""Tests of written reports: any state of a study, equal bytes, replaced folders."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from study.analyses.findings import analyse_study
from study.analyses.surrogate.surrogate import Refusal
from study.report.writer import protocol_facts, write_findings, write_report
from study.trials.table import TrialTable
from tests.support.demo_study import (
    anchor_response,
    make_anchor_space,
    make_circle_space,
    make_demo_problems,
)
from tests.support.synthetic_tables import SyntheticLoss, SyntheticPlan, make_table

pytestmark = [pytest.mark.split, pytest.mark.slow]


def _page(table: TrialTable, out: Path) -> str:
    return write_report(table, out, formats=("png",)).index_path.read_text("utf-8")


def _hashes(folder: Path) -> dict[str, str]:
    return {
        str(p.relative_to(folder)): hashlib.sha256(p.read_bytes()).hexdigest()
        for p in sorted(folder.rglob("*"))
        if p.is_file()
    }


def test_equal_tables_give_equal_bytes(tmp_path: Path) -> None:
    table = make_table(make_demo_problems()[2:], SyntheticPlan(trials=20))
    write_report(table, tmp_path / "a")
    write_report(table, tmp_path / "b")
    first, second = _hashes(tmp_path / "a"), _hashes(tmp_path / "b")
    assert first == second
    kinds = {Path(name).suffix for name in first}
    assert {".html", ".png", ".svg", ".pdf", ".csv", ".tex"} <= kinds


def test_only_the_files_of_an_earlier_report_are_removed(tmp_path: Path) -> None:
    both = make_table(make_demo_problems()[1:], SyntheticPlan(trials=3, repeats=1))
    _page(both, tmp_path)
    own_files = [tmp_path / name for name in ("notes.txt", "figures/own.png", "tables/own.csv")]
    for path in own_files:
        path.write_text("own", "utf-8")
    assert list(tmp_path.rglob("*circle*"))
    manifest = tmp_path / "manifest.json"
    names = [*json.loads(manifest.read_text("utf-8"))["files"], "../out.txt", "notes.txt"]
    manifest.write_text(json.dumps({"files": [*names, "figures/../notes.txt"]}), "utf-8")
    _page(make_table(make_demo_problems()[2:], SyntheticPlan(trials=3, repeats=1)), tmp_path)
    assert not list(tmp_path.rglob("*circle*"))
    assert list(tmp_path.rglob("response-triplet.png"))
    assert all(path.exists() for path in own_files)


def test_a_report_that_fails_leaves_the_earlier_one_complete(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _page(make_table(make_demo_problems()[1:], SyntheticPlan(trials=3, repeats=1)), tmp_path)
    before = _hashes(tmp_path)
    monkeypatch.setattr("study.report.table_export.save_table", _fail_with_full_disk)
    with pytest.raises(OSError, match="full"):
        _page(make_table(make_demo_problems()[2:], SyntheticPlan(trials=3, repeats=1)), tmp_path)
    assert _hashes(tmp_path) == before


def _fail_with_full_disk(*_: object, **__: object) -> list[Path]:
    raise OSError("the disk is full")


def test_notes_about_data_and_weights_are_on_the_page(tmp_path: Path) -> None:
    table = make_table(make_demo_problems()[2:], SyntheticPlan(trials=3, repeats=1))
    notes = ["weights: w.pth: 23 weights loaded; 1 missing (<b>)"]
    html = _page(replace(table, protocol={**table.protocol, "notes": notes}), tmp_path)
    assert "1 missing (&lt;b&gt;)" in html


def test_three_trials_refuse_importances_with_a_reason(tmp_path: Path) -> None:
    findings = analyse_study(make_table(make_demo_problems(), SyntheticPlan(trials=3, repeats=1)))
    html = write_findings(findings, tmp_path, formats=("png",)).index_path.read_text("utf-8")
    assert "No importances:" in html
    refusal = findings.losses["circle"].importance
    assert isinstance(refusal, Refusal)
    assert refusal.reason in html


def test_a_loss_that_always_diverged_is_shown_and_does_not_win(tmp_path: Path) -> None:
    diverging = SyntheticLoss(
        make_circle_space(), lambda u: np.full(len(u), 9.0), diverges=lambda u: np.ones(len(u))
    )
    table = make_table([diverging, make_demo_problems()[2]], SyntheticPlan(trials=14))
    html = _page(table, tmp_path)
    assert "Every trial diverged." in html
    assert "Use triplet" in html


def test_only_diverged_trials(tmp_path: Path) -> None:
    diverging = SyntheticLoss(
        make_circle_space(), lambda u: np.zeros(len(u)), diverges=lambda u: np.ones(len(u))
    )
    html = _page(make_table([diverging], SyntheticPlan(trials=4)), tmp_path)
    assert "No loss has a score yet." in html


def test_the_page_of_an_unfinished_study_is_not_final(tmp_path: Path) -> None:
    table = make_table(make_demo_problems()[2:], SyntheticPlan(trials=6, running=2))
    assert "2 still running, so this page is not final" in _page(table, tmp_path)


def test_a_study_without_trials(tmp_path: Path) -> None:
    table = make_table(make_demo_problems()[2:], SyntheticPlan(trials=6))
    empty = replace(table, trials=table.trials.iloc[:0], curves=table.curves.iloc[:0])
    assert "No loss has a score yet." in _page(empty, tmp_path)


def test_a_study_without_a_published_point_and_a_baseline(tmp_path: Path) -> None:
    space = replace(make_anchor_space(claims=False), published=())
    table = make_table([SyntheticLoss(space, anchor_response)], SyntheticPlan(trials=20))
    assert "Use proxy_anchor" in _page(replace(table, baseline={}), tmp_path)


def test_the_facts_are_those_of_the_protocol() -> None:
    table = make_table(make_demo_problems()[2:], SyntheticPlan(trials=3, repeats=1))
    protocol = {"dataset": "CUB", "objective": "recall_at_1", "folds": None, "notes": ["a", "b"]}
    assert protocol_facts(replace(table, protocol=protocol)) == [
        ("dataset", "CUB"),
        ("objective", "R@1"),
        ("note", "a"),
        ("note", "b"),
    ]
