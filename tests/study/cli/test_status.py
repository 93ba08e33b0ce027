"""Tests of `study status`: one study, all studies, damaged studies."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.command_line import RunCommand

pytestmark = pytest.mark.split


def test_no_studies(study: RunCommand) -> None:
    done = study("status")
    assert done.code == 0
    assert "studies" in done.out
    assert json.loads(study("status", "--json").out) == []


def test_a_damaged_study_does_not_hide_the_others(
    study: RunCommand, unfinished_study: Path, tmp_path: Path
) -> None:
    (tmp_path / "studies" / "mine").mkdir()
    (tmp_path / "studies" / "mine" / "plan.json").write_text("{")
    done = study("status")
    assert done.code == 0
    assert "mine: damaged" in done.out
    assert "s: stopped" in done.out
    states = {r["study"]: r["state"] for r in json.loads(study("status", "--json").out)}
    assert states == {"mine": "damaged", "s": "stopped"}
    assert study("status", "mine").code == 2


def test_a_stopped_study_is_printed_with_the_command_that_continues_it(
    study: RunCommand, unfinished_study: Path
) -> None:
    done = study("status", "s")
    assert done.code == 0
    assert "0/" in done.out
    assert "study resume s" in done.out


def test_a_finished_study_has_scores_and_nothing_to_continue(
    study: RunCommand, finished_study: Path
) -> None:
    done = study("status", "s")
    assert done.out.startswith(f"s: finished  ({finished_study})")
    assert "study resume" not in done.out
    report = json.loads(study("status", "s", "--json").out)
    progress = {p["loss"]: p for p in report["losses"]}
    assert set(progress) == {"proxy_anchor", "triplet"}
    for loss in progress.values():
        assert loss["ended"] == loss["planned"] > 0
        assert loss["best"] > 0.2
        assert f"{loss['best']:.4f} ({loss['best_trial']})" in done.out


def test_only_studies_on_a_cluster_are_followed(study: RunCommand) -> None:
    done = study("status", "s", "--follow")
    assert done.code == 2
    assert "--cluster" in done.err
    done = study("status", "--follow", "--cluster", "cluster.yaml")
    assert done.code == 2
    assert "name" in done.err
