"""Spooled records become MLflow runs: tree, names, statuses, parameters and metrics."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from mlflow import MlflowClient
from mlflow.entities import Run

from study.directory import default_tracking_uri
from study.tracking.reader import read_table
from tests.support.tracked_study import Doubles, OpenTracker, TrackedStudy, get_runs_by_name


@pytest.fixture(scope="module")
def runs(finished: Path) -> dict[str, Run]:
    return get_runs_by_name(default_tracking_uri(finished))


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


def test_statuses_show_how_a_trial_ended(runs: dict[str, Run]) -> None:
    endings = {
        name.split(" ")[0]: (run.info.status, run.data.tags.get("state"))
        for name, run in runs.items()
    }
    assert endings["circle-001"] == ("FINISHED", "finished")
    assert endings["circle-002"] == ("KILLED", "stopped")
    assert endings["circle-003"] == ("FAILED", "diverged")
    assert endings["circle-004"] == ("FAILED", "failed")
    assert {run.info.status for run in runs.values() if run.data.tags["dml.kind"] != "trial"} == {
        "FINISHED"
    }


def test_a_trial_run_has_exactly_the_documented_tags_params_and_metrics(
    runs: dict[str, Run],
) -> None:
    run = runs["proxy_anchor-001 alpha=28 delta=0.1"]
    tags = {k: v for k, v in run.data.tags.items() if not k.startswith(("mlflow.", "dml."))}
    assert set(tags) == {
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


def test_a_failed_trial_has_its_error(runs: dict[str, Run]) -> None:
    failed = next(run for name, run in runs.items() if name.startswith("circle-004"))
    assert failed.data.tags["error"] == "RuntimeError: out of memory"


def test_a_loss_shows_its_best_finished_score_so_far(
    runs: dict[str, Run], tracked_study: TrackedStudy
) -> None:
    best = max(tracked_study.make_metrics(number, 3)["map_at_r"] for number in (0, 1, 5))
    assert runs["circle"].data.metrics == {"best/map_at_r": best}
    assert runs["groceries"].data.metrics["best/circle"] == best
    assert "| m | `m` | [0, 0.5] | rad | 0.1 |" in runs["circle"].data.tags["mlflow.note.content"]


def test_the_parent_run_holds_plan_note_settings_and_data(
    runs: dict[str, Run], finished: Path, tracked_study: TrackedStudy
) -> None:
    study = runs["groceries"]
    assert study.data.tags["mlflow.note.content"] == "## Groceries\nIt is done."
    assert study.data.params["backbone"] == "efficientnet_lite0"
    data = study.inputs.dataset_inputs[0].dataset
    assert (data.name, data.digest) == ("grocery81", "0123abcd")
    assert json.loads(data.profile) == {"images": 2640, "classes": 81}
    client = MlflowClient(default_tracking_uri(finished))
    path = client.download_artifacts(study.info.run_id, "plan.json")
    assert json.loads(Path(path).read_text()) == tracked_study.plan


def test_a_resumed_trial_continues_in_its_run(
    study_dir: Path, open_tracker: OpenTracker, tracked_study: TrackedStudy, doubles: Doubles
) -> None:
    first = open_tracker(study_dir)
    tracked_study.open_study(first)
    record = tracked_study.make_record("circle", 1)
    first.start_trial(record)
    for epoch in (1, 2):
        first.log_epoch(record.job.trial, epoch, {"map_at_r": 0.1 * epoch}, timestamp=1.8e9 + epoch)
    assert first.close(60.0)
    again = open_tracker(study_dir)
    tracked_study.open_study(again)
    again.start_trial(record)
    for epoch in (2, 3):  # from a checkpoint after the first epoch, with other times and values
        again.log_epoch(record.job.trial, epoch, {"map_at_r": 0.5}, timestamp=1.9e9 + epoch)
    again.end_trial(record.job.trial, state="finished", timestamp=1.9e9 + 9)
    assert again.close(60.0)
    run = next(
        r
        for n, r in get_runs_by_name(default_tracking_uri(study_dir)).items()
        if n.startswith("circle-001")
    )
    history = MlflowClient(default_tracking_uri(study_dir)).get_metric_history(
        run.info.run_id, "map_at_r"
    )
    assert {metric.step: metric.value for metric in history} == {1: 0.1, 2: 0.2, 3: 0.5}
    assert run.info.status == "FINISHED"
    assert doubles(study_dir / "mlflow.db") == []


@pytest.mark.parametrize("state", ["KILLED", "FAILED"])
def test_trials_of_an_interrupted_study_are_not_left_running(
    state: Any, study_dir: Path, open_tracker: OpenTracker, tracked_study: TrackedStudy
) -> None:
    """In MLflow they are KILLED until they continue; in the table they are still running."""
    uri = default_tracking_uri(study_dir)
    tracker = open_tracker(study_dir)
    tracked_study.open_study(tracker)
    tracked_study.log_trial(tracker, tracked_study.make_record("circle", 1))
    tracker.start_trial(tracked_study.make_record("circle", 2))
    tracker.end_study(state=state)
    assert tracker.close(60.0)
    runs = get_runs_by_name(uri)
    assert (runs["groceries"].info.status, runs["circle"].info.status) == (state, state)
    assert _statuses(runs, "circle-00") == ["FINISHED", "KILLED"]
    assert read_table(uri, "groceries").trials["state"].tolist() == ["finished", "running"]
    again = open_tracker(study_dir)
    tracked_study.open_study(again)
    again.reconcile_trial(
        tracked_study.make_record("circle", 2), curve={}, state="running", timestamp=1.9e9
    )
    again.start_trial(tracked_study.make_record("circle", 2))
    assert again.flush(60.0)
    assert _statuses(get_runs_by_name(uri), "circle-00") == ["FINISHED", "RUNNING"]


def _statuses(runs: dict[str, Run], prefix: str) -> list[str]:
    return [runs[name].info.status for name in sorted(runs) if name.startswith(prefix)]


def test_a_running_trial_shows_its_host(
    study_dir: Path, open_tracker: OpenTracker, tracked_study: TrackedStudy
) -> None:
    tracker = open_tracker(study_dir)
    tracked_study.open_study(tracker)
    for number, host in ((1, "node-3"), (2, "")):
        record = tracked_study.make_record("circle", number)
        tracker.start_trial(record)
        tracker.log_epoch(
            record.job.trial, 1, {"map_at_r": 0.1}, timestamp=1.8e9, tags={"host": host}
        )
    assert tracker.flush(60.0)
    assert read_table(default_tracking_uri(study_dir), "groceries").trials["host"].tolist() == [
        "node-3",
        "",
    ]
    tracker.log_epoch("circle-0001", 2, {"map_at_r": 0.1}, timestamp=1.8e9, tags={"host": "node-4"})
    assert tracker.flush(60.0)
    assert read_table(default_tracking_uri(study_dir), "groceries").trials["host"].tolist() == [
        "node-4",
        "",
    ]


def test_a_trial_that_failed_may_be_started_again(
    study_dir: Path, open_tracker: OpenTracker, tracked_study: TrackedStudy
) -> None:
    tracker = open_tracker(study_dir)
    tracked_study.open_study(tracker)
    for number in (1, 2):
        tracked_study.log_trial(tracker, tracked_study.make_record("circle", number), "failed")
    assert tracker.flush(60.0)
    tracked_study.log_trial(tracker, tracked_study.make_record("circle", 1))
    tracked_study.log_trial(tracker, tracked_study.make_record("circle", 3), "failed")
    tracker.start_trial(tracked_study.make_record("circle", 3))
    assert tracker.flush(60.0)
    trials = read_table(default_tracking_uri(study_dir), "groceries").trials
    assert trials["state"].tolist() == ["finished", "failed", "running"]
    assert [bool(error) for error in trials["error"]] == [False, True, False]


def test_a_late_test_score_does_not_extend_the_run_of_the_untrained_backbone(
    study_dir: Path,
    open_tracker: OpenTracker,
    tracked_study: TrackedStudy,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tracker = open_tracker(study_dir)
    tracked_study.open_study(tracker)
    tracker.log_baseline("validation", {"map_at_r": 0.1})
    assert tracker.flush(60.0)
    ended = get_runs_by_name(default_tracking_uri(study_dir))["untrained backbone"].info.end_time
    assert ended
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + 6000)
    tracker.log_baseline("test", {"map_at_r": 0.2})
    assert tracker.close(60.0)
    run = get_runs_by_name(default_tracking_uri(study_dir))["untrained backbone"]
    assert run.data.metrics == {"map_at_r": 0.1, "test/map_at_r": 0.2}
    assert (run.info.end_time, run.info.status) == (ended, "FINISHED")


def test_names_of_losses_with_the_plug_in_are_accepted(
    study_dir: Path, open_tracker: OpenTracker, tracked_study: TrackedStudy
) -> None:
    tracker = open_tracker(study_dir)
    tracked_study.open_study(tracker)
    record = tracked_study.make_record("circle", 1, trial="circle+synthesis-0001")
    job = replace(record.job, loss="circle+synthesis")
    tracked_study.log_trial(tracker, replace(record, job=job))
    assert tracker.flush(60.0)
    assert tracker.get_status().refused == 0
    study = get_runs_by_name(default_tracking_uri(study_dir))["groceries"]
    assert set(study.data.metrics) == {"best/circle synthesis"}
