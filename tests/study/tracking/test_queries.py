"""Runs and metric histories from databases and servers, in a few requests."""

from __future__ import annotations

import math
import shutil
import sqlite3
import time
import uuid
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from study.directory import default_tracking_uri
from study.tracking.queries import MetricHistory, RunRow
from study.tracking.reader import read_table
from study.tracking.records import STORED_INFINITY
from study.tracking.sqlite_store import repair_artifact_paths
from study.trials.table import TrialTable
from tests.support.tracked_study import OpenTracker, TrackedStudy

pytestmark = pytest.mark.server


def _row(run_id: str, **latest: tuple[float, int]) -> RunRow:
    return RunRow(run_id, 0.0, "RUNNING", {}, {}, latest)


def test_the_last_step_is_that_of_any_metric() -> None:
    assert _row("a").last_step == -1
    assert _row("a", loss=(0.1, 3), map_at_r=(0.2, 2)).last_step == 3


def test_a_history_is_in_order_of_time_and_restores_infinities() -> None:
    runs = [_row("a"), _row("b")]
    rows = [
        ("b", "loss", 2, STORED_INFINITY, 30),
        ("a", "loss", 1, 0.5, 10),
        ("of another study", "loss", 1, 9.0, 15),
        ("a", "map_at_r", 1, -STORED_INFINITY, 20),
        ("a", "loss", 2, math.nan, 40),
    ]
    history = MetricHistory.from_rows(rows, runs)
    assert history.keys == ("loss", "map_at_r")
    assert history.run.tolist() == [0, 0, 1, 0]
    assert history.key.tolist() == [0, 1, 0, 0]
    assert history.step.tolist() == [1, 1, 2, 2]
    assert history.value[:3].tolist() == [0.5, -math.inf, math.inf]
    assert math.isnan(history.value[3])


def test_a_history_of_nothing_is_empty() -> None:
    history = MetricHistory.from_rows([], [_row("a")])
    assert (len(history.run), history.keys) == (0, ())
    assert history.value.dtype == np.float64


@pytest.fixture(scope="module")
def table(finished: Path) -> TrialTable:
    return read_table(default_tracking_uri(finished), "groceries")


def test_a_server_and_a_database_return_the_same_table(
    mlflow_server: str,
    tmp_path: Path,
    open_tracker: OpenTracker,
    tracked_study: TrackedStudy,
    table: TrialTable,
) -> None:
    tracker = open_tracker(tmp_path, mlflow_server, process=True)
    tracked_study.log_study(tracker)
    assert tracker.close(90.0)
    remote = read_table(mlflow_server, "groceries")
    assert remote.trials.to_csv() == table.trials.to_csv()
    assert remote.curves.to_csv() == table.curves.to_csv()
    assert remote.trials.dtypes.equals(table.trials.dtypes)
    assert (remote.baseline, remote.protocol) == (table.baseline, table.protocol)


def test_a_thousand_trials_are_read_in_a_few_requests(finished: Path, tmp_path: Path) -> None:
    copy = tmp_path / "groceries"
    shutil.copytree(finished, copy)
    repair_artifact_paths(copy)
    multiply(copy / "mlflow.db", times=1000 // 18)
    begin = time.perf_counter()
    big = read_table(default_tracking_uri(copy), "groceries")
    seconds = time.perf_counter() - begin
    assert len(big.trials) == 18 * (1 + 1000 // 18)
    assert big.trials["trial"].is_unique
    assert seconds < 20.0  # a request per run would take minutes


def multiply(database: Path, times: int) -> None:
    """Copy every trial of a store `times` times, as separate runs."""
    with sqlite3.connect(database) as connection:
        runs = [
            row[0]
            for row in connection.execute("SELECT run_uuid FROM tags WHERE key = 'dml.trial'")
        ]
        for table in ("runs", "tags", "params", "metrics", "latest_metrics"):
            columns = [row[1] for row in connection.execute(f"PRAGMA table_info({table})")]
            place = columns.index("run_uuid")
            rows = [
                row
                for row in connection.execute(f"SELECT * FROM {table}")
                if row[place] in set(runs)
            ]
            marks = ", ".join("?" * len(columns))
            for copy in range(1, times + 1):
                connection.executemany(
                    f"INSERT INTO {table} VALUES ({marks})",
                    [_renamed(table, columns, row, copy) for row in rows],
                )


def _renamed(table: str, columns: list[str], row: tuple[Any, ...], copy: int) -> tuple[Any, ...]:
    values = dict(zip(columns, row, strict=True))
    values["run_uuid"] = uuid.uuid5(uuid.NAMESPACE_OID, f"{values['run_uuid']}{copy}").hex
    if table == "tags" and values["key"] == "dml.trial":
        values["value"] = f"{values['value']}-{copy}"
    return tuple(values.values())
