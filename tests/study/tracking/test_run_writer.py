"""Does MLflow end up with the tree, names, statuses and numbers the study told?"""

from __future__ import annotations

import json
import logging
import os
import signal
import sqlite3
import subprocess
import sys
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from mlflow import MlflowClient
from mlflow.entities import Run
from mlflow.exceptions import MlflowException
from mlflow.protos.databricks_pb2 import ErrorCode
from sqlalchemy.exc import DataError, DBAPIError, IntegrityError, InternalError

from study.errors import StudyError
from study.tracking.home import is_permanent
from study.tracking.local import default_uri
from study.tracking.reader import read_table
from study.tracking.watch import Watch
from study.tracking.writer import Tracker


def _runs(uri: str, name: str = "groceries") -> dict[str, Run]:
    client = MlflowClient(uri)
    experiment = client.get_experiment_by_name(name)
    runs = client.search_runs([experiment.experiment_id], max_results=1000)
    return {run.info.run_name: run for run in runs}


@pytest.fixture(scope="module")
def runs(finished: Path) -> dict[str, Run]:
    return _runs(default_uri(finished))


def _ancestors(run: Run, runs: dict[str, Run]) -> list[str]:
    by_id = {other.info.run_id: other for other in runs.values()}
    names = []
    while "mlflow.parentRunId" in run.data.tags:
        run = by_id[run.data.tags["mlflow.parentRunId"]]
        names.append(run.info.run_name)
    return names


def test_the_tree_is_study_loss_trial(runs: dict[str, Run]) -> None:
    tree = {name.split(" ")[0]: _ancestors(run, runs) for name, run in runs.items()}
    assert tree["groceries"] == []
    assert tree["untrained"] == ["groceries"]
    assert tree["circle"] == ["circle", "groceries"] or "circle" in runs
    assert tree["circle-001"] == ["circle", "groceries"]
    assert tree["circle-007"] == ["circle sweep alpha around published", "circle", "groceries"]
    assert tree["proxy_anchor-008"] == ["proxy_anchor confirm", "proxy_anchor", "groceries"]
    assert len(runs) == 1 + 1 + 2 * (1 + 2 + 9)


def test_statuses_tell_how_a_trial_ended(runs: dict[str, Run]) -> None:
    ended = {
        name.split(" ")[0]: (run.info.status, run.data.tags.get("state"))
        for name, run in runs.items()
    }
    assert ended["circle-001"] == ("FINISHED", "finished")
    assert ended["circle-002"] == ("KILLED", "stopped")
    assert ended["circle-003"] == ("FAILED", "diverged")
    assert ended["circle-004"] == ("FAILED", "failed")
    assert {run.info.status for run in runs.values() if run.data.tags["dml.kind"] != "trial"} == {
        "FINISHED"
    }


def test_a_trial_run_holds_what_people_look_for_and_no_noise(runs: dict[str, Run]) -> None:
    run = runs["proxy_anchor-001 alpha=28 delta=0.1"]
    ours = {k: v for k, v in run.data.tags.items() if not k.startswith(("mlflow.", "dml."))}
    assert set(ours) == {
        *("loss", "number", "origin", "seed", "split", "point", "state", "host"),
        *("space_version", "data_fingerprint"),
    }
    assert run.data.params == {
        "alpha": "28.0",
        "delta": "0.1",
        "batch_size in images": "179",
        "pooling": "avg",
        "layer_norm": "true",
        "embedding_dim": "64",
        "warmup_epochs": "1",
    }
    assert set(run.data.metrics) == {
        *("map_at_r", "recall_at_1", "loss", "seconds", "system/memory_mib")
    }
    circle = next(run for name, run in runs.items() if name.startswith("circle-001"))
    assert circle.data.params["m in rad"] == "0.1"
    assert {metric.step for metric in run.data._metric_objs} == {3}
    assert (run.info.start_time, run.info.end_time) == (1_800_000_001_000, 1_800_000_010_000)


def test_test_scores_never_mix_with_validation_scores(runs: dict[str, Run]) -> None:
    confirm = next(run for name, run in runs.items() if name.startswith("circle-008"))
    assert set(confirm.data.metrics) == {
        *("test/map_at_r", "test/recall_at_1", "loss", "seconds"),
        "system/memory_mib",
    }


def test_a_failed_trial_says_why(runs: dict[str, Run]) -> None:
    failed = next(run for name, run in runs.items() if name.startswith("circle-004"))
    assert failed.data.tags["error"] == "RuntimeError: out of memory"


def test_a_loss_shows_its_best_finished_score_so_far(runs: dict[str, Run], story: Any) -> None:
    best = max(story.metrics(number, 3)["map_at_r"] for number in (0, 1, 5))
    assert runs["circle"].data.metrics == {"best/map_at_r": best}
    assert runs["groceries"].data.metrics["best/circle"] == best
    assert "| m | `m` | [0, 0.5] | rad | 0.1 |" in runs["circle"].data.tags["mlflow.note.content"]


def test_trials_that_end_out_of_order_give_one_best_score_per_step(
    study_dir: Path, open_tracker: Any, story: Any, doubles: Any
) -> None:
    for _ in range(2):  # told twice, as after a crash
        tracker = open_tracker(study_dir)
        story.open(tracker)
        for number, score in (
            (3, 0.2),
            (1, 0.3),
            (2, 0.1),
            (4, 0.25),
            (5, 0.4),
            (6, 0.9),
            (7, 0.9),
        ):
            # Another seed of a point, or a sweep's, is not the search's best, whatever its luck.
            origin = {6: "repeat", 7: "sweep"}.get(number, "sobol")
            record = story.record("circle", number, origin=origin)
            tracker.trial_started(record)
            tracker.epoch(record.trial, 1, {"map_at_r": score}, timestamp=1.8e9 + number)
            tracker.trial_ended(record.trial, state="finished", timestamp=1.8e9 + 9)
            assert tracker.flush(60.0)
        assert tracker.close(60.0)
    client, runs = MlflowClient(default_uri(study_dir)), _runs(default_uri(study_dir))
    history = client.get_metric_history(runs["circle"].info.run_id, "best/map_at_r")
    assert [(m.step, m.value) for m in history] == [(3, 0.2), (4, 0.3), (5, 0.4)]
    assert doubles(study_dir / "mlflow.db") == []


def test_the_parent_run_holds_plan_note_settings_and_data(
    runs: dict[str, Run], finished: Path, story: Any
) -> None:
    study = runs["groceries"]
    assert study.data.tags["mlflow.note.content"] == "## Groceries\nIt is done."
    assert study.data.params["backbone"] == "efficientnet_lite0"
    data = study.inputs.dataset_inputs[0].dataset
    assert (data.name, data.digest) == ("grocery81", "0123abcd")
    assert json.loads(data.profile) == {"images": 2640, "classes": 81}
    client = MlflowClient(default_uri(finished))
    path = client.download_artifacts(study.info.run_id, "plan.json")
    assert json.loads(Path(path).read_text()) == story.plan


def test_nothing_is_left_in_the_spool_of_a_finished_study(finished: Path) -> None:
    assert not list((finished / "spool").glob("*.jsonl"))


def test_a_resumed_trial_goes_on_in_its_run(
    study_dir: Path, open_tracker: Any, story: Any, doubles: Any
) -> None:
    first = open_tracker(study_dir)
    story.open(first)
    record = story.record("circle", 1)
    first.trial_started(record)
    for epoch in (1, 2):
        first.epoch(record.trial, epoch, {"map_at_r": 0.1 * epoch}, timestamp=1.8e9 + epoch)
    assert first.close(60.0)
    again = open_tracker(study_dir)
    story.open(again)
    again.trial_started(record)
    for epoch in (2, 3):  # from a checkpoint after the first epoch, with other times and values
        again.epoch(record.trial, epoch, {"map_at_r": 0.5}, timestamp=1.9e9 + epoch)
    again.trial_ended(record.trial, state="finished", timestamp=1.9e9 + 9)
    assert again.close(60.0)
    run = next(r for n, r in _runs(default_uri(study_dir)).items() if n.startswith("circle-001"))
    history = MlflowClient(default_uri(study_dir)).get_metric_history(run.info.run_id, "map_at_r")
    assert {metric.step: metric.value for metric in history} == {1: 0.1, 2: 0.2, 3: 0.5}
    assert run.info.status == "FINISHED"
    assert doubles(study_dir / "mlflow.db") == []


@pytest.mark.parametrize("state", ["KILLED", "FAILED"])
def test_trials_of_an_interrupted_study_do_not_run_on(
    state: Any, study_dir: Path, open_tracker: Any, story: Any
) -> None:
    """In MLflow they are KILLED until they go on; in the table they are still to be ended."""
    uri = default_uri(study_dir)
    tracker = open_tracker(study_dir)
    story.open(tracker)
    story.trial(tracker, story.record("circle", 1))
    tracker.trial_started(story.record("circle", 2))
    tracker.end_study(state=state)
    assert tracker.close(60.0)
    runs = _runs(uri)
    assert (runs["groceries"].info.status, runs["circle"].info.status) == (state, state)
    assert _statuses(runs, "circle-00") == ["FINISHED", "KILLED"]
    assert read_table(uri, "groceries").trials["state"].tolist() == ["finished", "running"]
    again = open_tracker(study_dir)
    story.open(again)
    again.settle(story.record("circle", 2), curve={}, state="running", timestamp=1.9e9)
    again.trial_started(story.record("circle", 2))
    assert again.flush(60.0)
    assert _statuses(_runs(uri), "circle-00") == ["FINISHED", "RUNNING"]


def _statuses(runs: dict[str, Run], prefix: str) -> list[str]:
    return [runs[name].info.status for name in sorted(runs) if name.startswith(prefix)]


def test_a_running_trial_tells_where_it_runs(
    study_dir: Path, open_tracker: Any, story: Any
) -> None:
    tracker = open_tracker(study_dir)
    story.open(tracker)
    for number, host in ((1, "node-3"), (2, "")):
        record = story.record("circle", number)
        tracker.trial_started(record)
        tracker.epoch(record.trial, 1, {"map_at_r": 0.1}, timestamp=1.8e9, host=host)
    assert tracker.flush(60.0)
    assert read_table(default_uri(study_dir), "groceries").trials["host"].tolist() == ["node-3", ""]
    tracker.epoch("circle-0001", 2, {"map_at_r": 0.1}, timestamp=1.8e9, host="node-4")
    assert tracker.flush(60.0)
    assert read_table(default_uri(study_dir), "groceries").trials["host"].tolist() == ["node-4", ""]


def test_a_trial_that_failed_may_be_started_again(
    study_dir: Path, open_tracker: Any, story: Any
) -> None:
    tracker = open_tracker(study_dir)
    story.open(tracker)
    for number in (1, 2):
        story.trial(tracker, story.record("circle", number), "failed")
    assert tracker.flush(60.0)
    story.trial(tracker, story.record("circle", 1))
    story.trial(tracker, story.record("circle", 3), "failed")
    tracker.trial_started(story.record("circle", 3))
    assert tracker.flush(60.0)
    trials = read_table(default_uri(study_dir), "groceries").trials
    assert trials["state"].tolist() == ["finished", "failed", "running"]
    assert [bool(error) for error in trials["error"]] == [False, True, False]


def test_the_untrained_backbone_takes_no_longer_for_a_late_test_score(
    study_dir: Path, open_tracker: Any, story: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    tracker = open_tracker(study_dir)
    story.open(tracker)
    tracker.baseline("validation", {"map_at_r": 0.1})
    assert tracker.flush(60.0)
    ended = _runs(default_uri(study_dir))["untrained backbone"].info.end_time
    assert ended
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + 6000)
    tracker.baseline("test", {"map_at_r": 0.2})
    assert tracker.close(60.0)
    run = _runs(default_uri(study_dir))["untrained backbone"]
    assert run.data.metrics == {"map_at_r": 0.1, "test/map_at_r": 0.2}
    assert (run.info.end_time, run.info.status) == (ended, "FINISHED")


def test_two_runs_of_one_trial_are_healed(
    study_dir: Path, open_tracker: Any, story: Any, doubles: Any
) -> None:
    first = open_tracker(study_dir)
    story.open(first)
    story.trial(first, story.record("circle", 1))
    assert first.close(60.0)
    client = MlflowClient(default_uri(study_dir))
    run = next(r for n, r in _runs(default_uri(study_dir)).items() if n.startswith("circle-001"))
    # As a lost answer would: the same trial, made twice.
    client.create_run(run.info.experiment_id, tags=dict(run.data.tags))
    assert doubles(study_dir / "mlflow.db")
    again = open_tracker(study_dir)
    story.open(again)
    assert again.close(60.0)
    assert doubles(study_dir / "mlflow.db") == []


class Store(NamedTuple):
    """Where a store is, and what a tracker is told of it: nothing if it is the study's own."""

    uri: str
    told: str | None


@pytest.fixture(params=["database", "server"])
def store(study_dir: Path, request: pytest.FixtureRequest) -> Store:
    if request.param == "database":
        return Store(default_uri(study_dir), None)
    uri = request.getfixturevalue("mlflow_server")
    return Store(uri, uri)


def test_a_deleted_trial_stays_so_and_its_branch_comes_back(
    store: Store, study_dir: Path, open_tracker: Any, story: Any
) -> None:
    open_it = partial(open_tracker, study_dir, store.told, experiment="pruned")
    begin = {"name": "pruned", "plan": story.plan, "losses": ["circle"], "note": ""}
    first = open_it()
    first.open_study(**begin)
    for number in (1, 2):
        story.trial(first, story.record("circle", number))
    assert first.close(60.0)
    client, before = MlflowClient(store.uri), _runs(store.uri, "pruned")
    gone = next(name for name in before if name.startswith("circle-001"))
    for name in (gone, "circle", "pruned"):
        client.delete_run(before[name].info.run_id)
    again = open_it()
    again.open_study(**begin)
    for number in (1, 2):
        curve = {epoch: story.metrics(number, epoch) for epoch in (1, 2, 3)}
        record = story.record("circle", number)
        again.settle(record, curve=curve, state="finished", timestamp=record.started + 9)
    again.artifact(study_dir / "mlflow.db", to="circle-0001")
    assert again.close(60.0)
    assert again.status().refused == 0
    after = _runs(store.uri, "pruned")
    assert {name: run.info.run_id for name, run in after.items()} == {
        name: run.info.run_id for name, run in before.items() if name != gone
    }


def test_a_trial_deleted_while_it_runs_is_let_go(
    store: Store, study_dir: Path, open_tracker: Any, story: Any
) -> None:
    tracker = open_tracker(study_dir, store.told, experiment="let-go")
    tracker.open_study(name="let-go", plan=story.plan, losses=["circle"], note="")
    for number in (1, 2, 3):
        tracker.trial_started(story.record("circle", number))
    assert tracker.flush(60.0)
    client, before = MlflowClient(store.uri), _runs(store.uri, "let-go")
    for name in before:
        if name.startswith(("circle-001", "circle-002")):
            client.delete_run(before[name].info.run_id)
    for epoch in (1, 2):
        tracker.epoch("circle-0001", epoch, story.metrics(1, epoch), timestamp=1.8e9 + epoch)
    picture = study_dir / "circle.png"
    picture.write_bytes(b"png")
    tracker.gallery(picture, loss="circle", trial="circle-0001")
    tracker.trial_ended("circle-0001", state="finished", timestamp=1.8e9 + 9)
    tracker.end_study(state="KILLED")
    assert tracker.close(60.0)
    assert tracker.status().refused == 0
    after = _runs(store.uri, "let-go")
    assert sorted(name[:10] for name in after) == ["circle", "circle-003", "let-go"]
    assert after["let-go"].info.status == "KILLED"
    shown = client.list_artifacts(after["circle"].info.run_id)
    assert [file.path for file in shown] == ["circle.png"]


def test_what_trials_hang_on_comes_back_when_it_is_deleted_meanwhile(
    store: Store, study_dir: Path, open_tracker: Any, story: Any
) -> None:
    tracker = open_tracker(study_dir, store.told, experiment="hung")
    said: list[str] = []
    watch = Watch(tracker.status, said.append)
    tracker.open_study(name="hung", plan=story.plan, losses=list(story.spaces), note="")
    tracker.baseline("validation", {"map_at_r": 0.1})
    story.trial(tracker, story.record("circle", 1))
    assert tracker.flush(60.0)
    client, before = MlflowClient(store.uri), _runs(store.uri, "hung")
    deleted = ("circle", "untrained backbone")
    for name in deleted:
        client.delete_run(before[name].info.run_id)
    tracker.baseline("test", {"map_at_r": 0.1})
    story.trial(tracker, story.record("circle", 2))
    story.trial(tracker, story.record("proxy_anchor", 1))
    assert tracker.flush(60.0)
    after = _runs(store.uri, "hung")
    assert set(before) - set(after) == {"untrained backbone"}, "which nothing hangs on"
    assert after["circle"].info.run_id == before["circle"].info.run_id
    bests = [run.data.metrics["best/map_at_r"] for run in (before["circle"], after["circle"])]
    assert bests[1] > bests[0]
    assert set(after["hung"].data.metrics) == {"best/circle", "best/proxy_anchor"}
    watch.tell_note()
    client.delete_run(after["hung"].info.run_id)
    tracker.end_study(state="FINISHED")
    assert tracker.close(60.0)
    watch.tell_note()
    assert [run.info.status for run in _runs(store.uri, "hung").values()] == ["FINISHED"] * 6
    assert tracker.status().refused == 0
    assert [text.partition(": runs")[2] for text in said] == [
        " deleted in MLflow are back, since others hang on them: circle",
        " deleted in MLflow are back, since others hang on them: circle, the study",
    ]


def test_a_deleted_experiment_and_a_study_that_is_gone_for_good_come_back(
    study_dir: Path, open_tracker: Any, story: Any
) -> None:
    """`mlflow gc` takes away what was deleted; nothing that follows may be refused for it."""
    uri = default_uri(study_dir)
    tracker = open_tracker(study_dir, experiment="lost")
    tracker.open_study(name="lost", plan=story.plan, losses=["circle"], note="")
    story.trial(tracker, story.record("circle", 1))
    assert tracker.flush(60.0)
    client, before = MlflowClient(uri), _runs(uri, "lost")
    experiment = before["lost"].info.experiment_id
    client.delete_experiment(experiment)
    story.trial(tracker, story.record("circle", 2))
    assert tracker.flush(60.0)
    assert client.get_experiment(experiment).lifecycle_stage == "active"
    assert "the experiment" in tracker.status().note
    assert len(_runs(uri, "lost")) == len(before) + 1
    client.delete_run(before["lost"].info.run_id)
    forget = ["mlflow", "gc", "--backend-store-uri", uri, "--run-ids", before["lost"].info.run_id]
    own = {**os.environ, "MLFLOW_TRACKING_URI": uri}
    done = subprocess.run([sys.executable, "-m", *forget], env=own, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    story.trial(tracker, story.record("circle", 3))
    tracker.note("how it stands")
    tracker.end_study(state="FINISHED")
    assert tracker.close(60.0)
    assert tracker.status().refused == 0
    after = _runs(uri, "lost")
    assert after["lost"].info.run_id != before["lost"].info.run_id
    assert after["lost"].info.status == "FINISHED"
    assert sorted(name[:10] for name in after) == sorted(
        ["circle", "circle-001", "circle-002", "circle-003", "lost"]
    )


def test_more_settings_and_metrics_than_one_request_takes(
    study_dir: Path, open_tracker: Any, story: Any
) -> None:
    tracker = open_tracker(study_dir)
    story.open(tracker)
    fixed = {f"setting_{n}": "x" * 7000 for n in range(250)}
    tags = {f"tag_{n}": "y" * 9000 for n in range(20)}
    record = story.record("circle", 1, fixed=fixed, tags=tags)
    tracker.trial_started(record)
    for epoch in range(1, 41):
        values = {f"metric_{n}": float(n) for n in range(60)}
        tracker.epoch(record.trial, epoch, values, timestamp=1.8e9 + epoch)
    assert tracker.flush(60.0)
    assert tracker.status().refused == 0
    run = next(r for n, r in _runs(default_uri(study_dir)).items() if n.startswith("circle-001"))
    assert len(run.data.params) == 255
    with sqlite3.connect(study_dir / "mlflow.db") as connection:
        count = connection.execute("SELECT COUNT(*) FROM metrics").fetchone()[0]
    assert count == 40 * 60


def test_losses_with_the_plug_in_are_taken_too(
    study_dir: Path, open_tracker: Any, story: Any
) -> None:
    tracker = open_tracker(study_dir)
    story.open(tracker)
    record = story.record("circle", 1, trial="circle+synthesis-0001")
    story.trial(tracker, replace(record, loss="circle+synthesis"))
    assert tracker.flush(60.0)
    assert tracker.status().refused == 0
    study = _runs(default_uri(study_dir))["groceries"]
    assert set(study.data.metrics) == {"best/circle synthesis"}


def test_calls_return_at_once_even_while_shipping(
    study_dir: Path, open_tracker: Any, story: Any
) -> None:
    tracker = open_tracker(study_dir, process=True)
    story.open(tracker)
    tracker.trial_started(story.record("circle", 1))
    times = []
    for epoch in range(2000):
        begin = time.perf_counter()
        tracker.epoch("circle-0001", epoch, story.metrics(1, 1), timestamp=1.8e9)
        times.append(time.perf_counter() - begin)
    assert sorted(times)[len(times) // 2] < 1e-3


def test_one_study_has_one_writer(study_dir: Path, open_tracker: Any) -> None:
    open_tracker(study_dir)
    with pytest.raises(StudyError, match="Another process"):
        open_tracker(study_dir)


def test_an_experiment_of_another_study_is_not_touched(
    study_dir: Path, open_tracker: Any, story: Any
) -> None:
    first = open_tracker(study_dir)
    story.open(first)
    assert first.close(60.0)
    other = open_tracker(study_dir, spool=study_dir / "other")
    other.open_study(name="pets", plan=story.plan, losses=[], note="")
    end = time.monotonic() + 60.0
    while not other.status().error and time.monotonic() < end:
        time.sleep(0.05)
    assert not other.flush(0.0)
    assert "holds the study 'groceries'" in other.status().error


@pytest.mark.parametrize(
    ("reason", "permanent"), [(IntegrityError, True), (DataError, True), (InternalError, False)]
)
def test_a_database_is_asked_again_unless_the_values_are_wrong(
    reason: type[DBAPIError], permanent: bool
) -> None:
    error = MlflowException(
        str(reason("INSERT", {}, Exception("no"))), error_code=ErrorCode.Value("BAD_REQUEST")
    )
    assert is_permanent(error) == permanent


def test_a_shipper_that_was_killed_is_replaced(
    study_dir: Path, open_tracker: Any, story: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("study.tracking.writer._RESTART_SECONDS", 0.0)
    tracker: Tracker = open_tracker(study_dir, process=True)
    story.open(tracker)
    assert tracker._shipper is not None
    os.kill(tracker._shipper.pid, signal.SIGKILL)
    tracker._shipper.wait()
    story.trial(tracker, story.record("circle", 1))
    assert tracker.flush(60.0)
    assert any(name.startswith("circle-001") for name in _runs(default_uri(study_dir)))


def _full(file: int, data: bytes) -> int:
    raise OSError(28, "No space left on device")


def test_a_full_disk_is_said_once_and_kills_nothing(
    study_dir: Path,
    open_tracker: Any,
    story: Any,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    tracker = open_tracker(study_dir)
    story.open(tracker)

    with monkeypatch.context() as patch, caplog.at_level(logging.WARNING):
        patch.setattr("study.tracking.spool.os.write", _full)
        story.trial(tracker, story.record("circle", 1))
    assert [record.message.count("No space left") for record in caplog.records] == [1]
    assert tracker.flush(60.0)
    assert any(name.startswith("circle-001") for name in _runs(default_uri(study_dir)))


def test_records_lost_on_a_full_disk_are_said(
    study_dir: Path,
    open_tracker: Any,
    story: Any,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    tracker = open_tracker(study_dir)
    story.open(tracker)

    with monkeypatch.context() as patch, caplog.at_level(logging.WARNING):
        patch.setattr("study.tracking.spool.os.write", _full)
        patch.setattr("study.tracking.spool.HELD_LINES", 2)
        story.trial(tracker, story.record("circle", 1))
    assert sum("some are lost" in record.message for record in caplog.records) == 1
    assert not tracker.flush(60.0)
    with caplog.at_level(logging.WARNING):
        assert not tracker.close(60.0)
    assert "records were lost while the disk was full" in caplog.records[-1].message


def test_the_end_of_a_trial_is_on_disk_before_anything_else_happens(
    study_dir: Path, open_tracker: Any, story: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    tracker = open_tracker(study_dir, process=True)
    synced: list[str] = []

    def fsync(file: int) -> None:
        lines = Path(f"/proc/self/fd/{file}").readlink().read_text(encoding="utf-8")
        synced.append(json.loads(lines.splitlines()[-1])["op"])

    monkeypatch.setattr("study.tracking.spool.os.fsync", fsync)
    story.open(tracker)
    story.trial(tracker, story.record("circle", 1))
    assert synced == ["study", "end"]


def test_no_secret_of_the_plan_reaches_the_store(
    study_dir: Path, open_tracker: Any, story: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hidden1-in-the-environment")
    tracker = open_tracker(study_dir)
    file = {
        "data": {"path": "https://host/data?token=hidden2", "api_key": "hidden3"},
        "storage": {"checkpoints": "s3://key:hidden4@bucket/x"},
        "notes": ["uses hidden1-in-the-environment"],
    }
    dataset = {
        "name": "https://ada:hidden5@host/data",
        "fingerprint": "0123",
        "at": "x?sig=hidden6",
    }
    plan = {**story.plan, "file": file, "dataset": dataset}
    tracker.open_study(name="groceries", plan=plan, losses=["circle"], note="token: hidden7")
    record = story.record(
        "circle",
        1,
        fixed={"weights": "https://hidden8@host/w.pt"},
        tags={"origin_of_data": "postgresql://ada:hid/den9@db/x", "secret": "hidden9"},
    )
    tracker.trial_started(record)
    error = "OSError: GET https://h/x?X-Amz-Signature=hidden10 Authorization: Bearer hidden11-1"
    tracker.trial_ended(record.trial, state="failed", error=error, timestamp=1.8e9)
    tracker.note("hidden1-in-the-environment")
    tracker.artifact(study_dir / "password=hidden12", to="study")  # is refused, and said so
    assert tracker.close(60.0)
    assert tracker.status().refused == 1
    seen = b"".join(path.read_bytes() for path in study_dir.rglob("*") if path.is_file())
    assert b"0123" in seen
    assert b"hidden" not in seen
    assert b"hid/den" not in seen
