"""The tracker: calls that never wait for the server, warnings, and redaction."""

from __future__ import annotations

import json
import logging
import os
import signal
import time
from pathlib import Path

import pytest

from study.directory import default_tracking_uri
from study.errors import StudyError
from study.tracking.tracker import Tracker
from tests.support.tracked_study import OpenTracker, TrackedStudy, get_runs_by_name

pytestmark = pytest.mark.slow


def test_the_spool_of_a_finished_study_is_empty(finished: Path) -> None:
    assert not list((finished / "spool").glob("*.jsonl"))


def test_calls_return_at_once_even_while_shipping(
    study_dir: Path, open_tracker: OpenTracker, tracked_study: TrackedStudy
) -> None:
    tracker = open_tracker(study_dir, process=True)
    tracked_study.open_study(tracker)
    tracker.start_trial(tracked_study.make_record("circle", 1))
    times = []
    for epoch in range(2000):
        begin = time.perf_counter()
        tracker.log_epoch("circle-0001", epoch, tracked_study.make_metrics(1, 1), timestamp=1.8e9)
        times.append(time.perf_counter() - begin)
    assert sorted(times)[len(times) // 2] < 1e-3


def test_one_study_has_one_writer(study_dir: Path, open_tracker: OpenTracker) -> None:
    open_tracker(study_dir)
    with pytest.raises(StudyError, match="another process"):
        open_tracker(study_dir)


def test_a_shipper_that_was_killed_is_replaced(
    study_dir: Path,
    open_tracker: OpenTracker,
    tracked_study: TrackedStudy,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("study.tracking.tracker._SHIPPER_RESTART_SECONDS", 0.0)
    tracker: Tracker = open_tracker(study_dir, process=True)
    tracked_study.open_study(tracker)
    assert tracker._shipper is not None
    os.kill(tracker._shipper.pid, signal.SIGKILL)
    tracker._shipper.wait()
    tracked_study.log_trial(tracker, tracked_study.make_record("circle", 1))
    assert tracker.flush(60.0)
    assert any(
        name.startswith("circle-001") for name in get_runs_by_name(default_tracking_uri(study_dir))
    )


def _full(file: int, data: bytes) -> int:
    raise OSError(28, "No space left on device")


def test_a_full_disk_is_one_warning_and_loses_no_record(
    study_dir: Path,
    open_tracker: OpenTracker,
    tracked_study: TrackedStudy,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    tracker = open_tracker(study_dir)
    tracked_study.open_study(tracker)

    with monkeypatch.context() as patch, caplog.at_level(logging.WARNING):
        patch.setattr("study.tracking.spool.os.write", _full)
        tracked_study.log_trial(tracker, tracked_study.make_record("circle", 1))
    assert [record.message.count("No space left") for record in caplog.records] == [1]
    assert tracker.flush(60.0)
    assert any(
        name.startswith("circle-001") for name in get_runs_by_name(default_tracking_uri(study_dir))
    )


def test_records_lost_on_a_full_disk_are_reported(
    study_dir: Path,
    open_tracker: OpenTracker,
    tracked_study: TrackedStudy,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    tracker = open_tracker(study_dir)
    tracked_study.open_study(tracker)

    with monkeypatch.context() as patch, caplog.at_level(logging.WARNING):
        patch.setattr("study.tracking.spool.os.write", _full)
        patch.setattr("study.tracking.spool.MAX_PENDING_LINES", 2)
        tracked_study.log_trial(tracker, tracked_study.make_record("circle", 1))
    assert sum("records are lost" in record.message for record in caplog.records) == 1
    assert not tracker.flush(60.0)
    with caplog.at_level(logging.WARNING):
        assert not tracker.close(60.0)
    assert "records were lost while the disk was full" in caplog.records[-1].message


def test_the_end_of_a_trial_is_synced_to_disk(
    study_dir: Path,
    open_tracker: OpenTracker,
    tracked_study: TrackedStudy,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tracker = open_tracker(study_dir, process=True)
    synced: list[str] = []

    def fsync(file: int) -> None:
        lines = Path(f"/proc/self/fd/{file}").readlink().read_text(encoding="utf-8")
        synced.append(json.loads(lines.splitlines()[-1])["op"])

    monkeypatch.setattr("study.tracking.spool.os.fsync", fsync)
    tracked_study.open_study(tracker)
    tracked_study.log_trial(tracker, tracked_study.make_record("circle", 1))
    assert synced == ["study", "end"]


def test_no_secret_of_the_plan_reaches_the_store(
    study_dir: Path,
    open_tracker: OpenTracker,
    tracked_study: TrackedStudy,
    monkeypatch: pytest.MonkeyPatch,
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
    plan = {**tracked_study.plan, "file": file, "dataset": dataset}
    tracker.open_study(name="groceries", plan=plan, losses=["circle"], note="token: hidden7")
    record = tracked_study.make_record(
        "circle",
        1,
        fixed={"weights": "https://hidden8@host/w.pt"},
        tags={"origin_of_data": "postgresql://ada:hid/den9@db/x", "secret": "hidden9"},
    )
    tracker.start_trial(record)
    error = "OSError: GET https://h/x?X-Amz-Signature=hidden10 Authorization: Bearer hidden11-1"
    tracker.end_trial(record.job.trial, state="failed", error=error, timestamp=1.8e9)
    tracker.set_note("hidden1-in-the-environment")
    tracker.log_artifact(study_dir / "password=hidden12", to="study")  # refused, with the reason
    assert tracker.close(60.0)
    assert tracker.get_status().refused == 1
    seen = b"".join(path.read_bytes() for path in study_dir.rglob("*") if path.is_file())
    assert b"0123" in seen
    assert b"hidden" not in seen
    assert b"hid/den" not in seen
