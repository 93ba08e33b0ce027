"""Tests of running a study on the command line: notes, interruptions and exit codes."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from search_spaces.space import SearchSpace
from study.analyses.diagnostics import check_spaces
from study.cli.execute import check_and_create_study, run_suggested_trials
from study.config.loader import load_config, parse_config
from study.config.plan import load_plan
from study.config.planner import build_plan
from study.directory import create_study_directory, new_study_directory
from study.errors import RayUnavailableError, StudyError
from study.runner.points import split_runnable_points
from tests.support.command_line import STUDY, RunCommand, change_study, write_study_file
from tests.support.scheduler_simulation import make_plan

pytestmark = pytest.mark.split


def test_a_published_point_outside_the_ranges_is_noted(
    study: RunCommand, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """By check, by run and in the report; the search continues without it."""
    narrow = {"proxy_anchor": {"search": {"alpha": [64, 128, "log"]}}, "triplet": None}
    done = study("check", write_study_file(change_study(losses=narrow)))
    reason = "alpha=32 is outside [64, 128] log"
    assert reason in done.out
    study_dir = new_study_directory("s", tmp_path / "studies")
    check_and_create_study(study_dir, build_plan(load_config(Path("my.yaml"))))
    lines = [line for line in capsys.readouterr().out.splitlines() if "note:" in line]
    assert lines
    assert all(line.startswith("note: proxy_anchor: the published point (") for line in lines)
    assert all(reason in line for line in lines)
    plan = load_plan(study_dir.path)
    assert plan.published_points("proxy_anchor") == []
    assert len(plan.published_points("triplet")) == 1
    stored = {loss: SearchSpace.from_dict(space.to_dict()) for loss, space in plan.spaces.items()}
    warnings = check_spaces(stored)
    out_of_range = warnings[warnings["rule"] == "published out of range"]
    assert out_of_range["message"].str.contains(reason, regex=False).any()
    fitting = build_plan(parse_config(STUDY)).spaces
    assert "published out of range" not in set(check_spaces(fitting)["rule"])


def test_ctrl_c_at_any_moment_prints_how_to_continue(
    study: RunCommand, unfinished_study: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("study.runner.run.open_data", interrupt)
    done = study("resume", "s")
    assert done.code == 130
    assert "study resume s" in done.out


def test_a_cluster_that_is_gone_is_one_line_and_exit_code_1(
    study: RunCommand, unfinished_study: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise RayUnavailableError("no cluster at 10.0.0.1")

    monkeypatch.setattr("study.runner.run.run", fail)
    done = study("resume", "s", "--address", "10.0.0.1:6379")
    assert done.code == 1
    assert done.err.startswith("study: no cluster at 10.0.0.1")
    assert "study resume s" in done.err


def test_trials_of_an_imported_study_are_not_run(tmp_path: Path) -> None:
    (tmp_path / "theirs").mkdir()
    with pytest.raises(StudyError, match="theirs was imported"):
        run_suggested_trials("theirs", tmp_path, pd.DataFrame(), reason="refine", address=None)


def test_trials_on_test_classes_are_refused_before_the_search_ends(tmp_path: Path) -> None:
    create_study_directory(new_study_directory("s", tmp_path), make_plan())
    points = pd.DataFrame([{"loss": "triplet", "origin": "confirm", "anchor": "", "swept": ""}])
    with pytest.raises(StudyError, match=r"search of s is not finished.*study resume s"):
        run_suggested_trials("s", tmp_path, points, reason="claim", address=None)


def test_other_suggested_trials_run_before_the_search_ends(tmp_path: Path) -> None:
    study_dir, plan = new_study_directory("s", tmp_path), make_plan()
    create_study_directory(study_dir, plan)
    rows = [
        {"loss": "triplet", "origin": "sweep", "why": "triplet: margin-stable"},
        {"loss": "triplet", "origin": "confirm", "why": "triplet: better"},
        {"loss": "contrastive", "origin": "confirm", "why": "triplet: better"},
    ]
    points, message = split_runnable_points(study_dir, plan, pd.DataFrame(rows))
    assert list(points["why"]) == ["triplet: margin-stable"]
    assert "2 trials on test classes" in message
    assert "(triplet: better)" in message
    assert "study resume s" in message
    runnable, message = split_runnable_points(study_dir, plan, points)
    assert len(runnable) == 1
    assert message == ""
