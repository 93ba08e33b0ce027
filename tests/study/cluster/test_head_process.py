"""Studies on the head that outlive the process that started them."""

from __future__ import annotations

import fcntl
import io
import sys
from pathlib import Path

import pytest

from study.cluster import head_process
from study.cluster.constants import (
    RUN_STAMP_PREFIX,
)
from study.config.loader import load_config
from study.config.plan import load_plan, save_plan
from study.config.planner import build_plan
from study.errors import StudyError
from tests.support.cluster_files import (
    STUDY_FILE,
    prepare_command,
)
from tests.support.scheduler_simulation import make_plan, open_scheduler, simulate_trials


def test_the_same_file_again_resumes_and_another_is_an_error(head_folder: Path) -> None:
    plan = make_plan(
        name="far",
        losses=["triplet"],
        training={},
        search={"trials": 2, "repeats": 1},
        tracking={"uri": "http://127.0.0.1:5000"},
        storage={"checkpoints": "s3://bucket/x"},
    )
    text = STUDY_FILE + "training: {epochs: 9}\n"
    study_dir = head_folder / "far"
    study_dir.mkdir(parents=True)
    save_plan(plan, study_dir)
    assert prepare_command(text)[0] == ["resume", "far", "--report"]
    with pytest.raises(StudyError, match=r"study far exists .*`search.trials` differs"):
        prepare_command(text.replace("trials: 2", "trials: 5"))
    simulate_trials(open_scheduler(load_plan(study_dir), study_dir))
    command, message = prepare_command(text)
    assert command == []
    assert "far is finished" in message


def test_following_continues_at_an_offset_and_ends_with_the_study(
    head_folder: Path,
) -> None:
    run = head_process.DetachedRun("far")
    with pytest.raises(StudyError, match="no study 'far' was started"):
        head_process.follow_log("far", 0, "-", io.BytesIO())
    run.folder.mkdir(parents=True)
    run.rotate_log()
    run.log_file.write_bytes(b"one\ntwo\n")
    with pytest.raises(StudyError, match="study resume far"):
        head_process.follow_log("far", 0, "-", io.BytesIO())
    run.exit_code_file.write_text("1")

    def follow(offset: int, known_stamp: str) -> tuple[str, str]:
        out = io.BytesIO()
        assert head_process.follow_log("far", offset, known_stamp, out) == 1
        stamp, _, output = out.getvalue().decode().partition("\n")
        assert stamp.startswith(RUN_STAMP_PREFIX)
        return stamp.removeprefix(RUN_STAMP_PREFIX), output

    stamp, output = follow(0, "-")
    assert output == "one\ntwo\n"
    assert follow(4, stamp) == (stamp, "two\n")
    run.rotate_log()
    run.log_file.write_bytes(b"another\nrun\n")
    new, output = follow(4, stamp)
    assert new != stamp
    assert output == "another\nrun\n", (
        "from the beginning, because the offset belongs to the old output"
    )
    out = io.BytesIO()
    assert head_process.follow_log("far", 4, None, out) == 1
    assert out.getvalue().decode() == output[4:], "a client without stamps"


def test_a_running_study_is_not_started_twice(head_folder: Path) -> None:
    lock = head_process.DetachedRun("far").acquire_lock()
    assert head_process.DetachedRun("far").folder.stat().st_mode & 0o077 == 0
    assert lock is not None
    assert (
        head_process.start_detached_run("far", ["run"], STUDY_FILE)
        == "far is running; following it"
    )
    assert (
        head_process.start_detached_run("far", ["resume", "far"], "")
        == "far is running; following it"
    )
    with pytest.raises(StudyError, match="far is running; run `study extend`"):
        head_process.start_detached_run("far", ["extend", "far", "--trials", "3"], "")
    fcntl.flock(lock, fcntl.LOCK_UN)
    assert not head_process.DetachedRun("far").is_running()


def test_an_edited_file_of_a_running_study_is_an_error(
    head_folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is compared with the file that the study was started with, later with its plan."""
    prepare_command(STUDY_FILE)
    lock = head_process.DetachedRun("far").acquire_lock()
    assert lock is not None
    for planned in (False, True):
        if planned:
            study_dir = head_folder / "far"
            study_dir.mkdir()
            save_plan(
                build_plan(load_config(head_process.DetachedRun("far").study_file)), study_dir
            )
        assert (
            head_process.start_detached_run("far", ["run"], STUDY_FILE)
            == "far is running; following it"
        )
        monkeypatch.setattr(
            sys, "stdin", io.StringIO(STUDY_FILE.replace("repeats: 1", "repeats: 2"))
        )
        assert head_process.main(["start", "far", "run"]) == 2
        error = capsys.readouterr().err
        assert "far is running with another file (`search.repeats` differs)" in error
        assert error.count("\n") == 1
    lock.close()


def test_an_invalid_name_starts_nothing(head_folder: Path) -> None:
    with pytest.raises(SystemExit):
        head_process.main(["start", "../x", "run"])
    assert not head_folder.exists()
