"""A study's directory is there whole or not at all, and belongs to one process."""

from __future__ import annotations

import fcntl
import os
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from study.errors import StudyError
from study.home import StudyHome, create_study, find_study, new_study, study_names
from study.plan import load_plan
from tests.study.tuning_simulation import make_plan


def test_of_two_starts_of_one_name_the_second_changes_nothing(tmp_path: Path) -> None:
    first, second = new_study("s", tmp_path), new_study("s", tmp_path)  # both find nothing
    create_study(first, make_plan())
    with pytest.raises(StudyError, match="study resume s"):
        create_study(second, make_plan(search={"trials": 99}))
    assert load_plan(first.directory).file.search.trials == 10
    assert [path.name for path in tmp_path.iterdir()] == ["s"]


def test_a_start_that_was_killed_leaves_no_study(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(*_: object) -> None:
        raise SystemExit

    with monkeypatch.context() as patch:
        patch.setattr("study.home.save_plan", killed)
        with pytest.raises(SystemExit):
            create_study(new_study("s", tmp_path), make_plan())
    leftover = tmp_path / ".s.0123abcd.new"
    other = tmp_path / ".s.x.0123abcd.new"
    for path in (leftover, other):
        path.mkdir()
        (path / "plan.json").write_text("{}")
    assert study_names(tmp_path) == []
    create_study(new_study("s", tmp_path), make_plan())
    assert find_study("s", tmp_path).name == "s"
    assert study_names(tmp_path) == ["s"]
    assert sorted(p.name for p in tmp_path.iterdir()) == [".s.x.0123abcd.new", "s"]


def test_a_start_that_was_overtaken_says_that_the_study_exists(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The faster one tidies up and takes the slower one's folder with it."""
    from study import plan as plans

    def overtaken(path: Path, text: str, uri: object) -> None:
        monkeypatch.undo()
        create_study(new_study("s", tmp_path), make_plan())
        plans.write_private(path, text, None)

    monkeypatch.setattr("study.home.write_private", overtaken)
    with pytest.raises(StudyError, match=r"study s exists .*study resume s"):
        create_study(new_study("s", tmp_path), make_plan(search={"trials": 99}))
    assert [path.name for path in tmp_path.iterdir()] == ["s"]


def test_asking_whether_a_study_runs_takes_nothing_from_it(tmp_path: Path) -> None:
    home = new_study("s", tmp_path)
    create_study(home, make_plan())
    assert not home.is_running()
    assert not (home.directory / "lock").exists()
    with home.locked():
        assert home.is_running()
        assert home.holder() == os.getpid()
        with pytest.raises(StudyError, match=f"being run by process {os.getpid()}"), home.locked():
            pass
    before = (home.directory / "lock").read_text()
    assert not home.is_running()
    assert home.holder() is None
    assert (home.directory / "lock").read_text() == before


def test_a_start_does_not_stumble_over_a_status(tmp_path: Path) -> None:
    home = new_study("s", tmp_path)
    create_study(home, make_plan())
    (home.directory / "lock").touch()
    asking = threading.Event()

    def ask() -> None:
        with (home.directory / "lock").open() as file:
            fcntl.flock(file, fcntl.LOCK_SH)
            asking.set()
            time.sleep(0.1)

    thread = threading.Thread(target=ask)
    thread.start()
    asking.wait()
    with home.locked():
        assert home.is_running()
    thread.join()


def test_studies_of_one_name_share_no_checkpoints(tmp_path: Path) -> None:
    """On a store that two users share; and a study that is renamed keeps its own."""
    shared = {"checkpoints": "s3://bucket/all/"}
    first, second = make_plan(storage=shared), make_plan(storage=shared)
    homes = StudyHome(tmp_path / "ann" / "s"), StudyHome(tmp_path / "bob" / "s")
    place = homes[0].checkpoint_place(first)
    assert place.startswith("s3://bucket/all/s-")
    assert place != homes[1].checkpoint_place(second)
    assert place == StudyHome(tmp_path / "renamed").checkpoint_place(first)
    old = replace(first, study_id="")
    assert homes[0].checkpoint_place(old) == "s3://bucket/all/s"
    assert homes[0].checkpoint_place(make_plan()) == str(homes[0].checkpoints)
