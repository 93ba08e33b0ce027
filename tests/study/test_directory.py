"""A study's directory is created completely or not at all, and belongs to one process."""

from __future__ import annotations

import fcntl
import os
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from study.config.plan import load_plan
from study.directory import (
    StudyDirectory,
    create_study_directory,
    find_study,
    list_study_names,
    new_study_directory,
)
from study.errors import StudyError
from tests.support.scheduler_simulation import make_plan


def test_the_second_of_two_starts_changes_nothing(tmp_path: Path) -> None:
    # Neither exists yet.
    first, second = new_study_directory("s", tmp_path), new_study_directory("s", tmp_path)
    create_study_directory(first, make_plan())
    with pytest.raises(StudyError, match="study resume s"):
        create_study_directory(second, make_plan(search={"trials": 99}))
    assert load_plan(first.path).file.search.trials == 10
    assert [path.name for path in tmp_path.iterdir()] == ["s"]


def test_a_killed_start_leaves_no_study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def killed(*_: object) -> None:
        raise SystemExit

    with monkeypatch.context() as patch:
        patch.setattr("study.directory.save_plan", killed)
        with pytest.raises(SystemExit):
            create_study_directory(new_study_directory("s", tmp_path), make_plan())
    leftover = tmp_path / ".s.0123abcd.new"
    other = tmp_path / ".s.x.0123abcd.new"
    for path in (leftover, other):
        path.mkdir()
        (path / "plan.json").write_text("{}")
    assert list_study_names(tmp_path) == []
    create_study_directory(new_study_directory("s", tmp_path), make_plan())
    assert find_study("s", tmp_path).name == "s"
    assert list_study_names(tmp_path) == ["s"]
    assert sorted(p.name for p in tmp_path.iterdir()) == [".s.x.0123abcd.new", "s"]


def test_a_start_that_was_overtaken_reports_that_the_study_exists(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The faster one removes the temporary folder of the slower one."""
    from study.utils.files import write_owner_only

    def overtaken(path: Path, text: str, uri: object) -> None:
        monkeypatch.undo()
        create_study_directory(new_study_directory("s", tmp_path), make_plan())
        write_owner_only(path, text, None)

    monkeypatch.setattr("study.directory.write_owner_only", overtaken)
    with pytest.raises(StudyError, match=r"study s already exists .*study resume s"):
        create_study_directory(new_study_directory("s", tmp_path), make_plan(search={"trials": 99}))
    assert [path.name for path in tmp_path.iterdir()] == ["s"]


def test_is_running_does_not_change_the_lock(tmp_path: Path) -> None:
    study_dir = new_study_directory("s", tmp_path)
    create_study_directory(study_dir, make_plan())
    assert not study_dir.is_running()
    assert not (study_dir.path / "lock").exists()
    with study_dir.hold_lock():
        assert study_dir.is_running()
        assert study_dir.lock_holder_pid() == os.getpid()
        with (
            pytest.raises(StudyError, match=f"being run by process {os.getpid()}"),
            study_dir.hold_lock(),
        ):
            pass
    before = (study_dir.path / "lock").read_text()
    assert not study_dir.is_running()
    assert study_dir.lock_holder_pid() is None
    assert (study_dir.path / "lock").read_text() == before


def test_a_start_waits_for_a_concurrent_status(tmp_path: Path) -> None:
    study_dir = new_study_directory("s", tmp_path)
    create_study_directory(study_dir, make_plan())
    (study_dir.path / "lock").touch()
    asking = threading.Event()

    def ask() -> None:
        with (study_dir.path / "lock").open() as file:
            fcntl.flock(file, fcntl.LOCK_SH)
            asking.set()
            time.sleep(0.1)

    thread = threading.Thread(target=ask)
    thread.start()
    asking.wait()
    with study_dir.hold_lock():
        assert study_dir.is_running()
    thread.join()


def test_studies_of_the_same_name_do_not_share_checkpoints(tmp_path: Path) -> None:
    """In storage that two users share; and a renamed study keeps its checkpoints."""
    shared = {"checkpoints": "s3://bucket/all/"}
    first, second = make_plan(storage=shared), make_plan(storage=shared)
    directories = StudyDirectory(tmp_path / "ann" / "s"), StudyDirectory(tmp_path / "bob" / "s")
    location = directories[0].checkpoint_location(first)
    assert location.startswith("s3://bucket/all/s-")
    assert location != directories[1].checkpoint_location(second)
    assert location == StudyDirectory(tmp_path / "renamed").checkpoint_location(first)
    old = replace(first, study_id="")
    assert directories[0].checkpoint_location(old) == "s3://bucket/all/s"
    assert directories[0].checkpoint_location(make_plan()) == str(directories[0].checkpoints_dir)


def test_a_study_is_found_by_name_or_path_and_a_wrong_name_suggests_one(tmp_path: Path) -> None:
    with pytest.raises(StudyError, match="contains no studies"):
        find_study("mine", tmp_path)
    study_dir = new_study_directory("mine", tmp_path)
    create_study_directory(study_dir, make_plan())
    assert find_study("mine", tmp_path) == study_dir
    assert find_study(str(study_dir.path)) == study_dir
    with pytest.raises(StudyError, match="did you mean 'mine'"):
        find_study("mien", tmp_path)
    with pytest.raises(StudyError, match="study resume mine"):
        new_study_directory("mine", tmp_path)
    with pytest.raises(StudyError, match=r"a study name must .* '../x'"):
        new_study_directory("../x", tmp_path)


def test_an_imported_study_cannot_be_run(tmp_path: Path) -> None:
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs" / "mlflow.db").touch()
    with pytest.raises(StudyError, match="theirs was imported and cannot be run"):
        find_study("theirs", tmp_path)
    with pytest.raises(StudyError, match="did you mean 'theirs'"):
        find_study("their", tmp_path)


def test_a_store_in_the_directory_keeps_its_artifacts_there(tmp_path: Path) -> None:
    study_dir = StudyDirectory(tmp_path / "s")
    assert study_dir.tracking_uri(make_plan()) == f"sqlite:///{tmp_path}/s/mlflow.db"
    assert study_dir.artifact_root(make_plan()) == tmp_path / "s" / "artifacts"
    served = make_plan(tracking={"uri": "http://127.0.0.1:9"})
    assert study_dir.tracking_uri(served) == "http://127.0.0.1:9"
    assert study_dir.artifact_root(served) is None
