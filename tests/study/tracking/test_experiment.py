"""The experiment of a study: each run once, deleted runs, and MLflow's limits."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from mlflow import MlflowClient
from mlflow.exceptions import MlflowException
from mlflow.protos.databricks_pb2 import ErrorCode
from sqlalchemy.exc import DataError, DBAPIError, IntegrityError, InternalError

from study.directory import default_tracking_uri
from study.tracking.experiment import is_permanent_error
from study.tracking.monitor import TrackingMonitor
from tests.support.tracked_study import Doubles, OpenTracker, TrackedStudy, get_runs_by_name


def test_trials_that_end_out_of_order_give_one_best_score_per_step(
    study_dir: Path, open_tracker: OpenTracker, tracked_study: TrackedStudy, doubles: Doubles
) -> None:
    for _ in range(2):  # written twice, as after a crash
        tracker = open_tracker(study_dir)
        tracked_study.open_study(tracker)
        for number, score in (
            (3, 0.2),
            (1, 0.3),
            (2, 0.1),
            (4, 0.25),
            (5, 0.4),
            (6, 0.9),
            (7, 0.9),
        ):
            # Only search trials compete: a repetition or a sweep is never the best.
            origin = {6: "repeat", 7: "sweep"}.get(number, "sobol")
            record = tracked_study.make_record("circle", number, origin=origin)
            tracker.start_trial(record)
            tracker.log_epoch(record.job.trial, 1, {"map_at_r": score}, timestamp=1.8e9 + number)
            tracker.end_trial(record.job.trial, state="finished", timestamp=1.8e9 + 9)
            assert tracker.flush(60.0)
        assert tracker.close(60.0)
    client, runs = (
        MlflowClient(default_tracking_uri(study_dir)),
        get_runs_by_name(default_tracking_uri(study_dir)),
    )
    history = client.get_metric_history(runs["circle"].info.run_id, "best/map_at_r")
    assert [(m.step, m.value) for m in history] == [(3, 0.2), (4, 0.3), (5, 0.4)]
    assert doubles(study_dir / "mlflow.db") == []


def test_of_two_runs_of_one_trial_one_is_deleted(
    study_dir: Path, open_tracker: OpenTracker, tracked_study: TrackedStudy, doubles: Doubles
) -> None:
    first = open_tracker(study_dir)
    tracked_study.open_study(first)
    tracked_study.log_trial(first, tracked_study.make_record("circle", 1))
    assert first.close(60.0)
    client = MlflowClient(default_tracking_uri(study_dir))
    run = next(
        r
        for n, r in get_runs_by_name(default_tracking_uri(study_dir)).items()
        if n.startswith("circle-001")
    )
    # The same trial twice, as after a lost answer.
    client.create_run(run.info.experiment_id, tags=dict(run.data.tags))
    assert doubles(study_dir / "mlflow.db")
    again = open_tracker(study_dir)
    tracked_study.open_study(again)
    assert again.close(60.0)
    assert doubles(study_dir / "mlflow.db") == []


class Store(NamedTuple):
    """A store, and the URI to pass to a tracker: None if it is the study's own store."""

    uri: str
    tracker_uri: str | None


@pytest.fixture(params=["database", "server"])
def store(study_dir: Path, request: pytest.FixtureRequest) -> Store:
    if request.param == "database":
        return Store(default_tracking_uri(study_dir), None)
    uri = request.getfixturevalue("mlflow_server")
    return Store(uri, uri)


def test_a_deleted_trial_stays_deleted_and_its_parent_runs_are_restored(
    store: Store, study_dir: Path, open_tracker: OpenTracker, tracked_study: TrackedStudy
) -> None:
    open_it = partial(open_tracker, study_dir, store.tracker_uri, experiment="pruned")
    begin: dict[str, Any] = {
        "name": "pruned",
        "plan": tracked_study.plan,
        "losses": ["circle"],
        "note": "",
    }
    first = open_it()
    first.open_study(**begin)
    for number in (1, 2):
        tracked_study.log_trial(first, tracked_study.make_record("circle", number))
    assert first.close(60.0)
    client, before = MlflowClient(store.uri), get_runs_by_name(store.uri, "pruned")
    deleted = next(name for name in before if name.startswith("circle-001"))
    for name in (deleted, "circle", "pruned"):
        client.delete_run(before[name].info.run_id)
    again = open_it()
    again.open_study(**begin)
    for number in (1, 2):
        curve = {epoch: tracked_study.make_metrics(number, epoch) for epoch in (1, 2, 3)}
        record = tracked_study.make_record("circle", number)
        again.reconcile_trial(record, curve=curve, state="finished", timestamp=record.started + 9)
    again.log_artifact(study_dir / "mlflow.db", to="circle-0001")
    assert again.close(60.0)
    assert again.get_status().refused == 0
    after = get_runs_by_name(store.uri, "pruned")
    assert {name: run.info.run_id for name, run in after.items()} == {
        name: run.info.run_id for name, run in before.items() if name != deleted
    }


def test_records_of_a_trial_deleted_while_it_runs_are_dropped(
    store: Store, study_dir: Path, open_tracker: OpenTracker, tracked_study: TrackedStudy
) -> None:
    tracker = open_tracker(study_dir, store.tracker_uri, experiment="dropped")
    tracker.open_study(name="dropped", plan=tracked_study.plan, losses=["circle"], note="")
    for number in (1, 2, 3):
        tracker.start_trial(tracked_study.make_record("circle", number))
    assert tracker.flush(60.0)
    client, before = MlflowClient(store.uri), get_runs_by_name(store.uri, "dropped")
    for name in before:
        if name.startswith(("circle-001", "circle-002")):
            client.delete_run(before[name].info.run_id)
    for epoch in (1, 2):
        tracker.log_epoch(
            "circle-0001", epoch, tracked_study.make_metrics(1, epoch), timestamp=1.8e9 + epoch
        )
    image = study_dir / "circle.png"
    image.write_bytes(b"png")
    tracker.log_gallery(image, loss="circle", trial="circle-0001")
    tracker.end_trial("circle-0001", state="finished", timestamp=1.8e9 + 9)
    tracker.end_study(state="KILLED")
    assert tracker.close(60.0)
    assert tracker.get_status().refused == 0
    after = get_runs_by_name(store.uri, "dropped")
    assert sorted(name[:10] for name in after) == ["circle", "circle-003", "dropped"]
    assert after["dropped"].info.status == "KILLED"
    shown = client.list_artifacts(after["circle"].info.run_id)
    assert [file.path for file in shown] == ["circle.png"]


def test_parent_runs_deleted_while_the_study_runs_are_restored(
    store: Store, study_dir: Path, open_tracker: OpenTracker, tracked_study: TrackedStudy
) -> None:
    tracker = open_tracker(study_dir, store.tracker_uri, experiment="restored")
    warnings: list[str] = []
    monitor = TrackingMonitor(tracker.get_status, warnings.append)
    tracker.open_study(
        name="restored", plan=tracked_study.plan, losses=list(tracked_study.spaces), note=""
    )
    tracker.log_baseline("validation", {"map_at_r": 0.1})
    tracked_study.log_trial(tracker, tracked_study.make_record("circle", 1))
    assert tracker.flush(60.0)
    client, before = MlflowClient(store.uri), get_runs_by_name(store.uri, "restored")
    deleted = ("circle", "untrained backbone")
    for name in deleted:
        client.delete_run(before[name].info.run_id)
    tracker.log_baseline("test", {"map_at_r": 0.1})
    tracked_study.log_trial(tracker, tracked_study.make_record("circle", 2))
    tracked_study.log_trial(tracker, tracked_study.make_record("proxy_anchor", 1))
    assert tracker.flush(60.0)
    after = get_runs_by_name(store.uri, "restored")
    assert set(before) - set(after) == {"untrained backbone"}, "which is not a parent"
    assert after["circle"].info.run_id == before["circle"].info.run_id
    bests = [run.data.metrics["best/map_at_r"] for run in (before["circle"], after["circle"])]
    assert bests[1] > bests[0]
    assert set(after["restored"].data.metrics) == {"best/circle", "best/proxy_anchor"}
    monitor.warn_of_note()
    client.delete_run(after["restored"].info.run_id)
    tracker.end_study(state="FINISHED")
    assert tracker.close(60.0)
    monitor.warn_of_note()
    assert [run.info.status for run in get_runs_by_name(store.uri, "restored").values()] == [
        "FINISHED"
    ] * 6
    assert tracker.get_status().refused == 0
    assert [text.rpartition(": ")[2] for text in warnings] == ["circle", "circle, the study"]


@pytest.mark.slow
def test_a_deleted_experiment_and_a_permanently_deleted_study_are_restored(
    study_dir: Path, open_tracker: OpenTracker, tracked_study: TrackedStudy
) -> None:
    """`mlflow gc` deletes runs permanently; later records must still be accepted."""
    uri = default_tracking_uri(study_dir)
    tracker = open_tracker(study_dir, experiment="lost")
    tracker.open_study(name="lost", plan=tracked_study.plan, losses=["circle"], note="")
    tracked_study.log_trial(tracker, tracked_study.make_record("circle", 1))
    assert tracker.flush(60.0)
    client, before = MlflowClient(uri), get_runs_by_name(uri, "lost")
    experiment = before["lost"].info.experiment_id
    client.delete_experiment(experiment)
    tracked_study.log_trial(tracker, tracked_study.make_record("circle", 2))
    assert tracker.flush(60.0)
    assert client.get_experiment(experiment).lifecycle_stage == "active"
    assert "the experiment" in tracker.get_status().note
    assert len(get_runs_by_name(uri, "lost")) == len(before) + 1
    client.delete_run(before["lost"].info.run_id)
    gc = ["mlflow", "gc", "--backend-store-uri", uri, "--run-ids", before["lost"].info.run_id]
    variables = {**os.environ, "MLFLOW_TRACKING_URI": uri}
    done = subprocess.run(
        [sys.executable, "-m", *gc], env=variables, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    tracked_study.log_trial(tracker, tracked_study.make_record("circle", 3))
    tracker.set_note("status")
    tracker.end_study(state="FINISHED")
    assert tracker.close(60.0)
    assert tracker.get_status().refused == 0
    after = get_runs_by_name(uri, "lost")
    assert after["lost"].info.run_id != before["lost"].info.run_id
    assert after["lost"].info.status == "FINISHED"
    assert sorted(name[:10] for name in after) == sorted(
        ["circle", "circle-001", "circle-002", "circle-003", "lost"]
    )


def test_more_params_tags_and_metrics_than_fit_into_one_request(
    study_dir: Path, open_tracker: OpenTracker, tracked_study: TrackedStudy
) -> None:
    tracker = open_tracker(study_dir)
    tracked_study.open_study(tracker)
    fixed = {f"setting_{n}": "x" * 7000 for n in range(250)}
    tags = {f"tag_{n}": "y" * 9000 for n in range(20)}
    record = tracked_study.make_record("circle", 1, fixed=fixed, tags=tags)
    tracker.start_trial(record)
    for epoch in range(1, 41):
        values = {f"metric_{n}": float(n) for n in range(60)}
        tracker.log_epoch(record.job.trial, epoch, values, timestamp=1.8e9 + epoch)
    assert tracker.flush(60.0)
    assert tracker.get_status().refused == 0
    run = next(
        r
        for n, r in get_runs_by_name(default_tracking_uri(study_dir)).items()
        if n.startswith("circle-001")
    )
    assert len(run.data.params) == 255
    with sqlite3.connect(study_dir / "mlflow.db") as connection:
        count = connection.execute("SELECT COUNT(*) FROM metrics").fetchone()[0]
    assert count == 40 * 60


def test_an_experiment_of_another_study_is_not_touched(
    study_dir: Path, open_tracker: OpenTracker, tracked_study: TrackedStudy
) -> None:
    first = open_tracker(study_dir)
    tracked_study.open_study(first)
    assert first.close(60.0)
    other = open_tracker(study_dir, spool=study_dir / "other")
    other.open_study(name="pets", plan=tracked_study.plan, losses=[], note="")
    end = time.monotonic() + 60.0
    while not other.get_status().error and time.monotonic() < end:
        time.sleep(0.05)
    assert not other.flush(0.0)
    assert "holds the study 'groceries'" in other.get_status().error


@pytest.mark.parametrize(
    ("reason", "permanent"), [(IntegrityError, True), (DataError, True), (InternalError, False)]
)
def test_only_database_errors_about_values_are_permanent(
    reason: type[DBAPIError], permanent: bool
) -> None:
    error = MlflowException(
        str(reason("INSERT", {}, Exception("no"))), error_code=ErrorCode.Value("BAD_REQUEST")
    )
    assert is_permanent_error(error) == permanent
