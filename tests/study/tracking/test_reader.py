"""Does the trial table come back from the store exactly as it was told, and quickly?"""

from __future__ import annotations

import math
import shutil
import sqlite3
import time
import uuid
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from study.errors import StudyError
from study.table import COLUMNS, ORIGINS, STATES, TrialTable
from study.tracking.local import default_uri, relocate
from study.tracking.reader import list_studies, read_table, study_path
from study.tracking.records import plan_of, plan_tags


@pytest.fixture(scope="module")
def table(finished: Path) -> TrialTable:
    return read_table(default_uri(finished), "groceries")


def test_the_columns_are_the_contract(table: TrialTable, story: Any) -> None:
    knobs = ["alpha", "delta", "batch_size", "pooling", "layer_norm", "m"]
    metrics = ["map_at_r", "loss", "memory_mib", "recall_at_1", "seconds"]
    assert list(table.trials.columns) == [
        *COLUMNS,
        *(f"knob.{name}" for name in knobs),
        *(f"metric.{name}" for name in metrics),
    ]
    assert list(table.curves.columns) == ["trial", "epoch", "score"]
    assert table.study == "groceries"
    assert table.protocol == {**story.plan["protocol"], "foretold_at": {"circle": [2]}}
    assert table.spaces == story.spaces
    assert table.knobs("circle") == ["alpha", "m", "batch_size", "pooling", "layer_norm"]


def test_types_are_those_of_the_values(table: TrialTable) -> None:
    kinds = table.trials.dtypes.astype(str).to_dict()
    assert {kinds[name] for name in ("number", "seed", "epochs", "knob.batch_size")} == {"int64"}
    assert {kinds[name] for name in ("score", "score_std", "seconds", "started")} == {"float64"}
    assert {kinds[name] for name in ("knob.alpha", "knob.delta", "knob.m")} == {"float64"}
    assert kinds["knob.layer_norm"] == "bool"
    assert {kinds[name] for name in ("trial", "loss", "origin", "host", "error")} == {"str"}
    assert table.trials["knob.pooling"].tolist() == ["avg"] * 18
    assert table.trials["knob.delta"].isna().tolist() == [True] * 9 + [False] * 9
    assert set(table.trials["origin"]) == set(ORIGINS)
    assert set(table.trials["state"]) == set(STATES) - {"running"}


def test_the_plan_is_in_the_database_and_in_the_artifacts(
    finished: Path, table: TrialTable, tmp_path: Path
) -> None:
    shutil.copy(finished / "mlflow.db", tmp_path)  # as PostgreSQL is seen from another machine
    with sqlite3.connect(tmp_path / "mlflow.db") as store:
        store.execute("UPDATE runs SET artifact_uri = 'file:///nowhere'")
    there = read_table(default_uri(tmp_path), "groceries")
    assert (there.protocol, there.spaces) == (table.protocol, table.spaces)
    earlier = tmp_path / "earlier"
    earlier.mkdir()
    shutil.copy(finished / "mlflow.db", earlier)
    with sqlite3.connect(earlier / "mlflow.db") as store:
        store.execute("DELETE FROM tags WHERE key LIKE '%plan%'")
    there = read_table(default_uri(earlier), "groceries")
    assert (there.protocol, there.spaces) == (table.protocol, table.spaces)


def test_a_long_plan_takes_several_tags() -> None:
    noise = [uuid.uuid4().hex for _ in range(1000)]
    tags = plan_tags({"spaces": {}, "noise": noise})
    assert len(tags) > 3
    assert max(map(len, tags.values())) < 5000
    assert plan_of(tags) == {"spaces": {}, "noise": noise}
    assert plan_of({}) is None


def test_rows_tell_what_happened(table: TrialTable, story: Any) -> None:
    assert table.trials["trial"].tolist() == [
        f"{loss}-{number:04d}" for loss in ("circle", "proxy_anchor") for number in range(9)
    ]
    row = table.trials.set_index("trial").loc["circle-0005"]
    record = story.record("circle", 5)
    assert row["score"] == row["metric.map_at_r"] == story.metrics(5, 3)["map_at_r"]
    assert row["knob.alpha"] == record.knobs["alpha"]
    assert (row["seconds"], row["epochs"], row["seed"]) == (3.75, 3, 105)
    assert (row["started"], row["host"], row["split"]) == (record.started, "node-7", "validation")
    stopped = table.trials.set_index("trial").loc["circle-0002"]
    assert (stopped["epochs"], stopped["score"]) == (1, story.metrics(2, 1)["map_at_r"])
    confirm = table.trials.set_index("trial").loc["circle-0008"]
    assert (confirm["split"], confirm["score"]) == ("test", story.metrics(8, 3)["map_at_r"])
    sweep = table.trials.set_index("trial").loc["circle-0007"]
    assert (sweep["anchor"], sweep["swept"]) == ("published", "alpha")


def test_diverged_and_failed_trials_have_no_score_but_keep_their_curves(table: TrialTable) -> None:
    rows = table.trials.set_index("trial")
    assert math.isnan(rows["score"]["circle-0003"])
    assert math.isnan(rows["metric.loss"]["circle-0003"])
    assert rows.loc["circle-0003", "metric.recall_at_1"] == math.inf
    assert rows.loc["circle-0004", "error"] == "RuntimeError: out of memory"
    assert (rows.loc["circle-0004", "epochs"], rows.loc["circle-0004", "seconds"]) == (0, 0.0)
    curve = table.curves[table.curves["trial"] == "circle-0003"]
    assert curve["epoch"].tolist() == [1, 2]
    assert np.isfinite(curve["score"].iloc[0])
    assert not table.curves["trial"].eq("circle-0004").any()


def test_curves_hold_every_epoch(table: TrialTable, story: Any) -> None:
    assert len(table.curves) == 2 * (6 * 3 + 1 + 2)
    curve = table.curves[table.curves["trial"] == "proxy_anchor-0001"]
    expected = [story.metrics(1, epoch) for epoch in (1, 2, 3)]
    assert curve["score"].tolist() == [values["map_at_r"] for values in expected]
    row = table.trials.set_index("trial").loc["proxy_anchor-0001"]
    assert row["metric.loss"] == expected[-1]["loss"]
    order = table.curves["trial"].drop_duplicates().tolist()
    assert order == sorted(order)


def test_the_untrained_backbone_is_there(table: TrialTable) -> None:
    assert table.baseline == {
        "validation": {"map_at_r": 0.11, "recall_at_1": 0.4},
        "test": {"map_at_r": 0.1},
    }


def test_a_store_lists_its_studies(finished: Path) -> None:
    (entry,) = list_studies(default_uri(finished))
    assert (entry.name, entry.experiment, entry.status) == ("groceries", "groceries", "FINISHED")
    path = study_path(default_uri(finished), "groceries")
    assert path == f"/#/experiments/{entry.experiment_id}"


def test_errors_are_one_line_and_name_the_nearest(finished: Path, tmp_path: Path) -> None:
    with pytest.raises(StudyError, match="did you mean 'groceries'"):
        read_table(default_uri(finished), "grocries")
    with pytest.raises(StudyError, match="no tracking store at"):
        read_table(default_uri(tmp_path), "groceries")
    with pytest.raises(StudyError) as caught:
        read_table("http://ada:s3cret@127.0.0.1:9", "groceries")
    assert "s3cret" not in str(caught.value)
    assert "\n" not in str(caught.value)


def test_an_open_study_without_trials_can_be_read(
    study_dir: Path, open_tracker: Any, story: Any
) -> None:
    tracker = open_tracker(study_dir)
    story.open(tracker)
    assert tracker.flush(60.0)
    empty = read_table(default_uri(study_dir), "groceries")
    assert len(empty.trials) == len(empty.curves) == 0
    assert list(empty.trials.columns)[: len(COLUMNS)] == list(COLUMNS)
    assert "knob.alpha" in empty.trials.columns
    assert empty.trials["seed"].dtype == "int64"
    assert empty.trials["trial"].dtype == "str"


def test_a_running_trial_shows_what_it_has(study_dir: Path, open_tracker: Any, story: Any) -> None:
    tracker = open_tracker(study_dir)
    story.open(tracker)
    tracker.trial_started(story.record("circle", 1))
    tracker.epoch("circle-0001", 1, {"map_at_r": 0.25, "score_std": 0.01}, timestamp=1.8e9)
    assert tracker.flush(60.0)
    row = read_table(default_uri(study_dir), "groceries").trials.iloc[0]
    assert (row["state"], row["epochs"], row["score"]) == ("running", 1, 0.25)
    assert row["score_std"] == 0.01
    assert "metric.score_std" not in row.index


def test_a_store_of_an_earlier_version_is_read(finished: Path, tmp_path: Path) -> None:
    """One whose settings and metrics were written under their plain names."""
    old = tmp_path / "groceries"
    shutil.copytree(finished, old)
    relocate(old)
    with sqlite3.connect(old / "mlflow.db") as connection:
        renamed = "UPDATE {0} SET key = '{2}' WHERE key = '{1}'"
        for table in ("metrics", "latest_metrics"):
            connection.execute(renamed.format(table, "system/memory_mib", "memory_mib"))
        for new, plain in (("m in rad", "m"), ("batch_size in images", "batch_size")):
            assert connection.execute(renamed.format("params", new, plain)).rowcount > 8
    there, here = (read_table(default_uri(place), "groceries") for place in (old, finished))
    pd.testing.assert_frame_equal(there.trials, here.trials)


def test_a_moved_study_is_found_again(finished: Path, tmp_path: Path) -> None:
    moved = tmp_path / "else where" / "groceries"
    shutil.copytree(finished, moved)
    # The original's place must not help.
    with sqlite3.connect(moved / "mlflow.db") as connection:
        for table, column in (("experiments", "artifact_location"), ("runs", "artifact_uri")):
            connection.execute(
                f"UPDATE {table} SET {column} = replace({column}, ?, '/former/place')",
                (str(finished),),
            )
        connection.execute("DELETE FROM tags WHERE key LIKE '%plan%'")  # of an earlier version
    with pytest.raises(StudyError, match=r"plan\.json cannot be read"):
        read_table(default_uri(moved), "groceries")
    assert relocate(moved) > 10
    assert relocate(moved) == 0
    back = read_table(default_uri(moved), "groceries")
    pd.testing.assert_frame_equal(
        back.trials, read_table(default_uri(finished), "groceries").trials
    )


def test_a_store_that_is_not_there_cannot_be_relocated(tmp_path: Path) -> None:
    with pytest.raises(StudyError, match=r"mlflow\.db is missing"):
        relocate(tmp_path)


def test_the_server_gives_the_same_bytes_as_the_database(
    mlflow_server: str, tmp_path: Path, open_tracker: Any, story: Any, table: TrialTable
) -> None:
    tracker = open_tracker(tmp_path, mlflow_server, process=True)
    story.tell(tracker)
    assert tracker.close(90.0)
    remote = read_table(mlflow_server, "groceries")
    assert remote.trials.to_csv() == table.trials.to_csv()
    assert remote.curves.to_csv() == table.curves.to_csv()
    assert remote.trials.dtypes.equals(table.trials.dtypes)
    assert (remote.baseline, remote.protocol) == (table.baseline, table.protocol)


def test_a_thousand_trials_are_read_in_a_few_requests(finished: Path, tmp_path: Path) -> None:
    copy = tmp_path / "groceries"
    shutil.copytree(finished, copy)
    relocate(copy)
    multiply(copy / "mlflow.db", times=1000 // 18)
    begin = time.perf_counter()
    big = read_table(default_uri(copy), "groceries")
    seconds = time.perf_counter() - begin
    assert len(big.trials) == 18 * (1 + 1000 // 18)
    assert big.trials["trial"].is_unique
    assert seconds < 20.0  # a request per run would take minutes


def multiply(database: Path, times: int) -> None:
    """Copy every trial of a store so many times, as runs of their own."""
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
