"""A small study told to real stores: sqlite files, `mlflow server`, PostgreSQL."""

from __future__ import annotations

import math
import os
import shutil
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import pytest

from search_spaces.space import Choice, Float, Int, Knob, Published, Space, Value
from study.tracking.local import default_artifact_root, default_uri
from study.tracking.records import TrialRecord
from study.tracking.server import serve
from study.tracking.ship import Orders, Settings, ship
from study.tracking.writer import Tracker

BEGAN = 1_800_000_000.0


def _space(loss: str, symbol: str, **more: Knob) -> Space:
    alpha = Knob(Float(8.0, 128.0, log=True), symbol, "sharpness")
    knobs = {"alpha": alpha, **more}
    nuisance = {
        "batch_size": Knob(Int(16, 256), "B", "memory", unit=" images"),
        "pooling": Knob(Choice(["avg", "max"]), "pool", "common choices"),
        "layer_norm": Knob(Choice([True, False]), "LN", "on or off"),
    }
    published: dict[str, Value] = {"alpha": 32.0, "batch_size": 180, "pooling": "avg"}
    published |= {"layer_norm": True} | dict.fromkeys(more, 0.1)
    point = Published("the paper", published)
    return Space(loss, "A paper, 2020", knobs, nuisance, {"embedding_dim": 64}, (point,))


@dataclass(frozen=True)
class Story:
    """A study as calls of a tracker: a fixed one, so that every store must end up the same."""

    spaces: dict[str, Space]
    epochs: int = 3

    @property
    def plan(self) -> dict[str, Any]:
        return {
            "study": "groceries",
            "protocol": {
                "objective": "map_at_r",
                "epochs": self.epochs,
                "dataset": "grocery81",
                "backbone": "efficientnet_lite0",
                "folds": 2,
                "tolerance": None,
            },
            "dataset": {
                "name": "grocery81",
                "fingerprint": "0123abcd",
                "images": 2640,
                "classes": 81,
            },
            "baseline": {},
            "samplers": {"circle": {"sampler": "gp", "foretold_at": [2]}, "proxy_anchor": {}},
            "spaces": {loss: space.to_dict() for loss, space in self.spaces.items()},
        }

    def record(self, loss: str, number: int, **changes: Any) -> TrialRecord:
        knobs: dict[str, Value] = dict(self.spaces[loss].published[0].values)
        knobs |= {"alpha": 32.0 / (1 + number / 7), "batch_size": 180 - number}
        fields: dict[str, Any] = {
            "trial": f"{loss}-{number:04d}",
            "loss": loss,
            "number": number,
            "origin": "sobol",
            "seed": 100 + number,
            "split": "validation",
            "point": f"p{number:04d}",
            "anchor": "",
            "swept": "",
            "knobs": knobs,
            "fixed": {"embedding_dim": 64, "warmup_epochs": 1},
            "tags": {"space_version": self.spaces[loss].version, "data_fingerprint": "0123abcd"},
            "started": BEGAN + number,
        }
        return TrialRecord(**{**fields, **changes})

    def metrics(self, number: int, epoch: int) -> dict[str, float]:
        return {
            "map_at_r": 0.3 + 0.1 * math.sin(number) + 0.02 * epoch,
            "recall_at_1": 0.5 + 0.03 * epoch,
            "loss": 3.0 / epoch,
            "seconds": 1.25,
            "memory_mib": 512.0 + number,
        }

    def open(self, tracker: Tracker) -> None:
        tracker.open_study(
            name="groceries", plan=self.plan, losses=list(self.spaces), note="## Groceries"
        )

    def trial(self, tracker: Tracker, record: TrialRecord, state: Any = "finished") -> None:
        tracker.trial_started(record)
        epochs = {"finished": self.epochs, "stopped": 1, "diverged": 2, "failed": 0}[state]
        for epoch in range(1, epochs + 1):
            values = self.metrics(record.number, epoch)
            if state == "diverged" and epoch == 2:
                values |= {"loss": math.nan, "map_at_r": math.nan, "recall_at_1": math.inf}
            tracker.epoch(record.trial, epoch, values, timestamp=record.started + epoch)
        error = "Traceback\nRuntimeError: out of memory" if state == "failed" else ""
        tracker.trial_ended(
            record.trial, state=state, error=error, host="node-7", timestamp=record.started + 9
        )

    def tell(self, tracker: Tracker) -> None:
        """The whole study: every origin and every state."""
        self.open(tracker)
        tracker.baseline("validation", {"map_at_r": 0.11, "recall_at_1": 0.4})
        for loss in self.spaces:
            self.trial(tracker, self.record(loss, 0, origin="published"))
            for number, state in enumerate(["finished", "stopped", "diverged", "failed"], 1):
                self.trial(tracker, self.record(loss, number), state)
            self.trial(tracker, self.record(loss, 5, origin="bayes"))
            self.trial(tracker, self.record(loss, 6, origin="repeat", point="p0000"))
            sweep = {"origin": "sweep", "swept": "alpha", "anchor": "published"}
            self.trial(tracker, self.record(loss, 7, **sweep))
            self.trial(tracker, self.record(loss, 8, origin="confirm", split="test"))
        tracker.baseline("test", {"map_at_r": 0.1})
        tracker.note("## Groceries\nIt is done.")
        tracker.end_study(state="FINISHED")


@pytest.fixture(scope="session")
def story() -> Story:
    delta = Knob(Float(0.0, 0.5), "δ", "margin")
    angle = Knob(Float(0.0, 0.5), "m", "margin", unit="rad")
    return Story(
        {
            "proxy_anchor": _space("proxy_anchor", "α", delta=delta),
            "circle": _space("circle", "γ", m=angle),
        }
    )


class OpenTracker(Protocol):
    def __call__(
        self, folder: Path, uri: str | None = None, *, process: bool = False, **more: Any
    ) -> Tracker: ...


class _ThreadTracker(Tracker):
    """Ships in a thread of the test: the same code, without importing MLflow anew each time."""

    def _start_shipper(self) -> None:
        self._shipper = _Thread(self._settings)  # type: ignore[assignment]
        self._shipper_since = time.monotonic()


class _Thread:
    def __init__(self, settings: Settings) -> None:
        read, write = os.pipe()
        self.stdin = os.fdopen(write, "wb")
        self._thread = threading.Thread(target=self._ship, args=(settings, read), daemon=True)
        self._thread.start()

    def _ship(self, settings: Settings, orders: int) -> None:
        ship(settings, Orders(orders))
        os.close(orders)

    def poll(self) -> int | None:
        return None if self._thread.is_alive() else 0

    def wait(self, timeout: float | None = None) -> int:
        self._thread.join(timeout)
        return 0

    def kill(self) -> None:
        self._thread.join(30.0)


@pytest.fixture(scope="session")
def empty_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sqlite store with MLflow's tables and nothing in them (making them takes seconds)."""
    from mlflow import MlflowClient

    path = tmp_path_factory.mktemp("template") / "mlflow.db"
    MlflowClient(f"sqlite:///{path}").search_experiments()
    return path


@pytest.fixture
def study_dir(tmp_path: Path, empty_store: Path) -> Path:
    """A study directory with its own, still empty, store."""
    folder = tmp_path / "groceries"
    folder.mkdir()
    shutil.copy(empty_store, folder / "mlflow.db")
    return folder


@pytest.fixture
def open_tracker() -> Iterator[OpenTracker]:
    """Trackers that are closed after the test whatever happens."""
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
        tracker = kind(uri or default_uri(folder), **fields)
        opened.append(tracker)
        return tracker

    yield make
    for tracker in opened:
        tracker.close(timeout=0.0)


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory, empty_store: Path, story: Story) -> Path:
    """The directory of a study that was told whole to a sqlite store; read only."""
    folder = tmp_path_factory.mktemp("finished") / "groceries"
    folder.mkdir()
    shutil.copy(empty_store, folder / "mlflow.db")
    tracker = Tracker(
        default_uri(folder),
        spool=folder / "spool",
        artifact_root=default_artifact_root(folder),
        experiment="groceries",
    )
    story.tell(tracker)
    assert tracker.close(timeout=60.0)
    return folder


@pytest.fixture(scope="session")
def mlflow_server(tmp_path_factory: pytest.TempPathFactory, empty_store: Path) -> Iterator[str]:
    """One real `mlflow server` for all tests, with proxied artifacts."""
    folder = tmp_path_factory.mktemp("server")
    shutil.copy(empty_store, folder / "mlflow.db")
    with serve(f"sqlite:///{folder / 'mlflow.db'}", artifact_root=folder / "artifacts") as address:
        yield address


Doubles = Callable[[Path], list[Any]]


@pytest.fixture
def doubles() -> Doubles:
    """Runs with the same trial, and metrics with the same run, key and step, of a sqlite store."""

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
