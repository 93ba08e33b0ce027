"""The store in the study's directory: created atomically, repaired after a move."""

from __future__ import annotations

import shutil
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pandas as pd
import pytest
from mlflow import MlflowClient

from study.directory import default_tracking_uri
from study.errors import StudyError
from study.tracking.reader import read_table
from study.tracking.sqlite_store import create_store, repair_artifact_paths

pytestmark = pytest.mark.slow


def test_a_moved_study_is_found_again(finished: Path, tmp_path: Path) -> None:
    moved = tmp_path / "else where" / "groceries"
    shutil.copytree(finished, moved)
    # The original must not be used.
    with sqlite3.connect(moved / "mlflow.db") as connection:
        for table, column in (("experiments", "artifact_location"), ("runs", "artifact_uri")):
            connection.execute(
                f"UPDATE {table} SET {column} = replace({column}, ?, '/former/place')",
                (str(finished),),
            )
        connection.execute("DELETE FROM tags WHERE key LIKE '%plan%'")  # of an earlier version
    with pytest.raises(StudyError, match=r"cannot read plan\.json"):
        read_table(default_tracking_uri(moved), "groceries")
    assert repair_artifact_paths(moved) > 10
    assert repair_artifact_paths(moved) == 0
    back = read_table(default_tracking_uri(moved), "groceries")
    pd.testing.assert_frame_equal(
        back.trials, read_table(default_tracking_uri(finished), "groceries").trials
    )


def test_a_missing_store_cannot_be_repaired(tmp_path: Path) -> None:
    with pytest.raises(StudyError, match=r"mlflow\.db is missing"):
        repair_artifact_paths(tmp_path)


def test_a_store_whose_creation_was_killed_is_created_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(
        "DML_STUDY_CACHE", str(tmp_path / "cache")
    )  # empty, so that nothing is copied
    database = tmp_path / "mlflow.db"
    uri = f"sqlite:///{database}"
    maker = subprocess.Popen(
        [
            sys.executable,
            "-c",
            f"from study.tracking.sqlite_store import create_store; create_store({uri!r})",
        ]
    )
    unfinished = tmp_path / "mlflow.db.new"
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and not (
        unfinished.exists() and unfinished.stat().st_size > 100_000
    ):
        time.sleep(0.002)
    maker.kill()
    maker.wait()
    assert unfinished.exists()
    assert not database.exists()  # an incomplete store has another name
    create_store(uri)
    assert database.exists()
    assert not unfinished.exists()
    assert [e.name for e in MlflowClient(uri).search_experiments()] == ["Default"]


def test_an_intact_empty_store_is_copied_from_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = tmp_path / "cache"
    monkeypatch.setenv("DML_STUDY_CACHE", str(cache))
    cache.write_text("a file instead of the folder, so that nothing can be cached")
    _check_created(tmp_path / "not cached" / "mlflow.db")
    cache.unlink()
    _check_created(tmp_path / "cached" / "mlflow.db")
    (store,) = cache.iterdir()
    made = store.stat().st_mtime_ns
    _check_created(tmp_path / "copied" / "mlflow.db")
    assert store.stat().st_mtime_ns == made
    store.write_bytes(store.read_bytes()[:200_000])
    _check_created(tmp_path / "the copy was damaged" / "mlflow.db")
    assert store.stat().st_size > 200_000


def _check_created(database: Path) -> None:
    database.parent.mkdir()
    create_store(f"sqlite:///{database}")
    (default,) = MlflowClient(f"sqlite:///{database}").search_experiments()
    assert default.name == "Default"
    assert default.artifact_location == str(database.parent / "mlruns" / "0")
