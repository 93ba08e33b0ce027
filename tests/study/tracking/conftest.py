"""A small study that is written to real stores: SQLite files, `mlflow server`, PostgreSQL."""

from __future__ import annotations

import os
import shutil
import sqlite3
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from study.directory import default_artifact_root, default_tracking_uri
from study.tracking.shipper import ControlPipe, ShipperConfig, ship_records
from study.tracking.tracker import Tracker
from study.tracking.ui_server import run_mlflow_server
from tests.support.tracked_study import Doubles, OpenTracker, TrackedStudy, make_tracked_study


@pytest.fixture(scope="session")
def tracked_study() -> TrackedStudy:
    return make_tracked_study()


class _ThreadTracker(Tracker):
    """Ships in a thread of the test: the same code, without importing MLflow again each time."""

    def _start_shipper(self) -> None:
        self._shipper = _Thread(self._settings)  # type: ignore[assignment]
        self._shipper_since = time.monotonic()


class _Thread:
    def __init__(self, settings: ShipperConfig) -> None:
        read, write = os.pipe()
        self.stdin = os.fdopen(write, "wb")
        self._thread = threading.Thread(target=self._ship, args=(settings, read), daemon=True)
        self._thread.start()

    def _ship(self, settings: ShipperConfig, pipe: int) -> None:
        ship_records(settings, ControlPipe(pipe))
        os.close(pipe)

    def poll(self) -> int | None:
        return None if self._thread.is_alive() else 0

    def wait(self, timeout: float | None = None) -> int:
        self._thread.join(timeout)
        return 0

    def kill(self) -> None:
        self._thread.join(30.0)


@pytest.fixture(scope="session")
def empty_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An empty SQLite store with MLflow's tables (creating them takes seconds)."""
    from mlflow import MlflowClient

    path = tmp_path_factory.mktemp("template") / "mlflow.db"
    MlflowClient(f"sqlite:///{path}").search_experiments()
    return path


@pytest.fixture
def study_dir(tmp_path: Path, empty_store: Path) -> Path:
    """A study directory with an empty store."""
    folder = tmp_path / "groceries"
    folder.mkdir()
    shutil.copy(empty_store, folder / "mlflow.db")
    return folder


@pytest.fixture
def open_tracker() -> Iterator[OpenTracker]:
    """Opens trackers that are closed after the test."""
    opened: list[Tracker] = []

    def make(
        folder: Path, uri: str | None = None, *, process: bool = False, **more: Any
    ) -> Tracker:
        fields: dict[str, Any] = {
            "spool": folder / "spool",
            "artifact_root": default_artifact_root(folder) if uri is None else None,
            "experiment": "groceries",
            "interval": 0.1,
            **more,
        }
        kind = Tracker if process else _ThreadTracker
        tracker = kind(uri or default_tracking_uri(folder), **fields)
        opened.append(tracker)
        return tracker

    yield make
    for tracker in opened:
        tracker.close(timeout=0.0)


@pytest.fixture(scope="session")
def finished(
    tmp_path_factory: pytest.TempPathFactory, empty_store: Path, tracked_study: TrackedStudy
) -> Path:
    """The directory of a complete study in an SQLite store; read only."""
    folder = tmp_path_factory.mktemp("finished") / "groceries"
    folder.mkdir()
    shutil.copy(empty_store, folder / "mlflow.db")
    tracker = Tracker(
        default_tracking_uri(folder),
        spool=folder / "spool",
        artifact_root=default_artifact_root(folder),
        experiment="groceries",
    )
    tracked_study.log_study(tracker)
    assert tracker.close(timeout=60.0)
    return folder


@pytest.fixture(scope="session")
def mlflow_server(tmp_path_factory: pytest.TempPathFactory, empty_store: Path) -> Iterator[str]:
    """One real `mlflow server` for all tests, with proxied artifacts."""
    folder = tmp_path_factory.mktemp("server")
    shutil.copy(empty_store, folder / "mlflow.db")
    with run_mlflow_server(
        f"sqlite:///{folder / 'mlflow.db'}", artifact_root=folder / "artifacts"
    ) as address:
        yield address


@pytest.fixture
def doubles() -> Doubles:
    """Finds runs with the same trial, and metrics with the same run, key and step, in SQLite."""

    def find(database: Path) -> list[Any]:
        with sqlite3.connect(database) as connection:
            runs = connection.execute(
                "SELECT t.value, COUNT(*) FROM tags t JOIN runs r ON r.run_uuid = t.run_uuid "
                "WHERE t.key = 'dml.trial' AND r.lifecycle_stage = 'active' "
                "GROUP BY t.value HAVING COUNT(*) > 1"
            ).fetchall()
            values = connection.execute(
                "SELECT run_uuid, key, step, COUNT(*) FROM metrics "
                "GROUP BY run_uuid, key, step HAVING COUNT(*) > 1"
            ).fetchall()
        return [*runs, *values]

    return find
