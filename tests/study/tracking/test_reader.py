"""The trial table that is read back from a store."""

from __future__ import annotations

import math
import shutil
import sqlite3
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from mlflow import MlflowClient

from study.directory import default_tracking_uri
from study.errors import StudyError
from study.tracking.reader import read_table, study_path
from study.tracking.sqlite_store import repair_artifact_paths
from study.trials.table import TRIAL_COLUMNS, TRIAL_ORIGINS, TRIAL_STATES, TrialTable
from tests.support.tracked_study import OpenTracker, TrackedStudy


@pytest.fixture(scope="module")
def table(finished: Path) -> TrialTable:
    return read_table(default_tracking_uri(finished), "groceries")


def test_the_columns_are_the_contract(table: TrialTable, tracked_study: TrackedStudy) -> None:
    params = ["alpha", "delta", "batch_size", "pooling", "layer_norm", "m"]
    metrics = ["map_at_r", "loss", "memory_mib", "recall_at_1", "seconds"]
    assert list(table.trials.columns) == [
        *TRIAL_COLUMNS,
        *(f"knob.{name}" for name in params),
        *(f"metric.{name}" for name in metrics),
    ]
    assert list(table.curves.columns) == ["trial", "epoch", "score"]
    assert table.study == "groceries"
    assert table.protocol == {**tracked_study.plan["protocol"], "foretold_at": {"circle": [2]}}
    assert table.spaces == tracked_study.spaces
    assert table.searched_param_names("circle") == [
        "alpha",
        "m",
        "batch_size",
        "pooling",
        "layer_norm",
    ]


def test_columns_have_the_types_of_their_values(table: TrialTable) -> None:
    kinds = table.trials.dtypes.astype(str).to_dict()
    assert {kinds[name] for name in ("number", "seed", "epochs", "knob.batch_size")} == {"int64"}
    assert {kinds[name] for name in ("score", "score_std", "seconds", "started")} == {"float64"}
    assert {kinds[name] for name in ("knob.alpha", "knob.delta", "knob.m")} == {"float64"}
    assert kinds["knob.layer_norm"] == "bool"
    assert {kinds[name] for name in ("trial", "loss", "origin", "host", "error")} == {"str"}
    assert table.trials["knob.pooling"].tolist() == ["avg"] * 18
    assert table.trials["knob.delta"].isna().tolist() == [True] * 9 + [False] * 9
    assert set(table.trials["origin"]) == set(TRIAL_ORIGINS)
    assert set(table.trials["state"]) == set(TRIAL_STATES) - {"running"}


def test_the_plan_is_in_the_database_and_in_the_artifacts(
    finished: Path, table: TrialTable, tmp_path: Path
) -> None:
    shutil.copy(finished / "mlflow.db", tmp_path)  # as PostgreSQL is seen from another machine
    with sqlite3.connect(tmp_path / "mlflow.db") as store:
        store.execute("UPDATE runs SET artifact_uri = 'file:///nowhere'")
    there = read_table(default_tracking_uri(tmp_path), "groceries")
    assert (there.protocol, there.spaces) == (table.protocol, table.spaces)
    earlier = tmp_path / "earlier"
    earlier.mkdir()
    shutil.copy(finished / "mlflow.db", earlier)
    with sqlite3.connect(earlier / "mlflow.db") as store:
        store.execute("DELETE FROM tags WHERE key LIKE '%plan%'")
    there = read_table(default_tracking_uri(earlier), "groceries")
    assert (there.protocol, there.spaces) == (table.protocol, table.spaces)


def test_rows_describe_the_trials(table: TrialTable, tracked_study: TrackedStudy) -> None:
    assert table.trials["trial"].tolist() == [
        f"{loss}-{number:04d}" for loss in ("circle", "proxy_anchor") for number in range(9)
    ]
    row = table.trials.set_index("trial").loc["circle-0005"]
    record = tracked_study.make_record("circle", 5)
    assert row["score"] == row["metric.map_at_r"] == tracked_study.make_metrics(5, 3)["map_at_r"]
    assert row["knob.alpha"] == record.job.params["alpha"]
    assert (row["seconds"], row["epochs"], row["seed"]) == (3.75, 3, 105)
    assert (row["started"], row["host"], row["split"]) == (record.started, "node-7", "validation")
    stopped = table.trials.set_index("trial").loc["circle-0002"]
    assert (stopped["epochs"], stopped["score"]) == (
        1,
        tracked_study.make_metrics(2, 1)["map_at_r"],
    )
    confirm = table.trials.set_index("trial").loc["circle-0008"]
    assert (confirm["split"], confirm["score"]) == (
        "test",
        tracked_study.make_metrics(8, 3)["map_at_r"],
    )
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


def test_curves_hold_every_epoch(table: TrialTable, tracked_study: TrackedStudy) -> None:
    assert len(table.curves) == 2 * (6 * 3 + 1 + 2)
    curve = table.curves[table.curves["trial"] == "proxy_anchor-0001"]
    expected = [tracked_study.make_metrics(1, epoch) for epoch in (1, 2, 3)]
    assert curve["score"].tolist() == [values["map_at_r"] for values in expected]
    row = table.trials.set_index("trial").loc["proxy_anchor-0001"]
    assert row["metric.loss"] == expected[-1]["loss"]
    order = table.curves["trial"].drop_duplicates().tolist()
    assert order == sorted(order)


def test_the_table_has_the_metrics_of_the_untrained_backbone(table: TrialTable) -> None:
    assert table.baseline == {
        "validation": {"map_at_r": 0.11, "recall_at_1": 0.4},
        "test": {"map_at_r": 0.1},
    }


def test_a_study_has_a_page_in_the_ui(finished: Path) -> None:
    uri = default_tracking_uri(finished)
    experiment = MlflowClient(uri).get_experiment_by_name("groceries")
    assert study_path(uri, "groceries") == f"/#/experiments/{experiment.experiment_id}"


@pytest.mark.slow
def test_errors_are_one_line_and_name_the_nearest(finished: Path, tmp_path: Path) -> None:
    with pytest.raises(StudyError, match="did you mean 'groceries'"):
        read_table(default_tracking_uri(finished), "grocries")
    with pytest.raises(StudyError, match="no tracking store at"):
        read_table(default_tracking_uri(tmp_path), "groceries")
    with pytest.raises(StudyError) as caught:
        read_table("http://ada:s3cret@127.0.0.1:9", "groceries")
    assert "s3cret" not in str(caught.value)
    assert "\n" not in str(caught.value)


def test_an_open_study_without_trials_can_be_read(
    study_dir: Path, open_tracker: OpenTracker, tracked_study: TrackedStudy
) -> None:
    tracker = open_tracker(study_dir)
    tracked_study.open_study(tracker)
    assert tracker.flush(60.0)
    empty = read_table(default_tracking_uri(study_dir), "groceries")
    assert len(empty.trials) == len(empty.curves) == 0
    assert list(empty.trials.columns)[: len(TRIAL_COLUMNS)] == list(TRIAL_COLUMNS)
    assert "knob.alpha" in empty.trials.columns
    assert empty.trials["seed"].dtype == "int64"
    assert empty.trials["trial"].dtype == "str"


def test_a_running_trial_has_its_last_score(
    study_dir: Path, open_tracker: OpenTracker, tracked_study: TrackedStudy
) -> None:
    tracker = open_tracker(study_dir)
    tracked_study.open_study(tracker)
    tracker.start_trial(tracked_study.make_record("circle", 1))
    tracker.log_epoch("circle-0001", 1, {"map_at_r": 0.25, "score_std": 0.01}, timestamp=1.8e9)
    assert tracker.flush(60.0)
    row = read_table(default_tracking_uri(study_dir), "groceries").trials.iloc[0]
    assert (row["state"], row["epochs"], row["score"]) == ("running", 1, 0.25)
    assert row["score_std"] == 0.01
    assert "metric.score_std" not in row.index


def test_a_store_of_an_earlier_version_is_read(finished: Path, tmp_path: Path) -> None:
    """Earlier versions stored parameters and metrics without units and prefixes."""
    old = tmp_path / "groceries"
    shutil.copytree(finished, old)
    repair_artifact_paths(old)
    with sqlite3.connect(old / "mlflow.db") as connection:
        renamed = "UPDATE {0} SET key = '{2}' WHERE key = '{1}'"
        for table in ("metrics", "latest_metrics"):
            connection.execute(renamed.format(table, "system/memory_mib", "memory_mib"))
        for new, plain in (("m in rad", "m"), ("batch_size in images", "batch_size")):
            assert connection.execute(renamed.format("params", new, plain)).rowcount > 8
    there, here = (
        read_table(default_tracking_uri(place), "groceries") for place in (old, finished)
    )
    pd.testing.assert_frame_equal(there.trials, here.trials)
