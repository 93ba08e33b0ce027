"""Checkpoints of a worker's trials on a slow disk: what waits for them and what does not."""

from __future__ import annotations

import statistics
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.support.slow_disk import SlowDisk
from tests.support.trial_specs import make_spec
from trainables.actors.worker import TrialWorker
from trainables.config import TrialSpec
from trainables.training.checkpoints import checkpoint_path, load_checkpoint, remove_checkpoint
from trainables.training.replica import ModelReplica

SMALL_GLYPHS = {"name": "glyphs", "classes": 48, "samples": 4}


@pytest.fixture
def spec(tmp_path: Path, data_cache: Path) -> TrialSpec:
    """A trial of four epochs that decides by time when to write."""
    return make_spec("triplet", tmp_path, dataset=SMALL_GLYPHS, cache_dir=str(data_cache))


@pytest.fixture
def worker(spec: TrialSpec) -> TrialWorker:
    worker = TrialWorker()
    worker.assign_trial(spec)
    return worker


@pytest.fixture
def step_seconds(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Times of all training steps."""
    times: list[float] = []
    run_step = ModelReplica._run_training_step

    def time_step(replica: ModelReplica, *args: Any) -> None:
        started = time.perf_counter()
        run_step(replica, *args)
        times.append(time.perf_counter() - started)

    monkeypatch.setattr(ModelReplica, "_run_training_step", time_step)
    return times


def test_steps_take_as_long_as_without_a_checkpoint_being_written(
    worker: TrialWorker, spec: TrialSpec, slow_disk: SlowDisk, step_seconds: list[float]
) -> None:
    """The disk accepts nothing during two epochs, which end nevertheless."""
    assert worker.step()["state"] == "running"
    before = statistics.median(step_seconds)
    step_seconds.clear()
    assert [worker.step()["epoch"] for _ in range(2)] == [2, 3]
    slow_disk.wait_for_write()
    assert slow_disk.written == []
    assert load_checkpoint(spec.checkpoint_dir, spec.trial) is None
    # The test machine's other processes also slow steps down; a write would take 60 s.
    assert statistics.median(step_seconds) < 5 * before + 0.02
    slow_disk.release()
    assert worker.step()["state"] == "finished"


def test_the_checkpoint_is_complete_when_the_trial_is_finished(
    worker: TrialWorker, spec: TrialSpec, slow_disk: SlowDisk
) -> None:
    for _ in range(3):
        worker.step()
    threading.Timer(0.3, slow_disk.release).start()
    assert worker.step()["state"] == "finished"
    assert slow_disk.written == [1, 4], "the first write was in flight; the last follows it"
    payload = load_checkpoint(spec.checkpoint_dir, spec.trial)
    assert payload is not None
    assert payload["epoch"] == 4


def test_an_error_of_the_disk_is_a_warning_of_the_next_report(
    worker: TrialWorker, slow_disk: SlowDisk
) -> None:
    slow_disk.error = OSError("no space left on device")
    results = [worker.step() for _ in range(2)]
    assert [result["warning"] for result in results] == ["", ""], "the write is in flight"
    slow_disk.release()
    assert worker._training is not None
    worker._training.finish_checkpoint()
    results += [worker.step() for _ in range(2)]
    assert [result["state"] for result in results] == ["running"] * 3 + ["finished"]
    assert "epoch 1 was not written" in results[2]["warning"]
    assert "no space left" in results[2]["warning"]
    assert "epoch 4 was not written" in results[3]["warning"]


def test_the_next_trial_starts_after_the_checkpoint_of_the_last(
    worker: TrialWorker, spec: TrialSpec, slow_disk: SlowDisk
) -> None:
    worker.step()
    worker.step()
    slow_disk.wait_for_write()
    threading.Timer(0.3, slow_disk.release).start()
    worker.assign_trial(replace(spec, trial="triplet-0001"))
    assert slow_disk.written == [1]
    assert worker.step()["epoch"] == 1


def test_a_trial_that_continues_in_the_same_process_reads_what_was_in_flight(
    worker: TrialWorker, spec: TrialSpec, slow_disk: SlowDisk
) -> None:
    worker.step()
    second = worker.step()
    slow_disk.wait_for_write()
    threading.Timer(0.3, slow_disk.release).start()
    worker.assign_trial(spec)
    assert worker.step()["epoch"] == 1, "the report of the checkpoint"
    again = worker.step()
    assert (again["epoch"], again["score"]) == (2, second["score"])


def test_a_pruned_trial_leaves_nothing(
    worker: TrialWorker, spec: TrialSpec, slow_disk: SlowDisk, tmp_path: Path
) -> None:
    """The study removes the checkpoint after a report, while the process still writes it."""
    worker.step()
    assert list(tmp_path.iterdir()) == [], "a trial pruned at its first report writes nothing"
    worker.step()
    slow_disk.wait_for_write()
    remove_checkpoint(tmp_path, spec.trial)
    slow_disk.release()
    worker.assign_trial(replace(spec, trial="triplet-0001"))
    assert list(tmp_path.iterdir()) == []
    assert worker.step()["warning"] == ""


def test_a_failed_trial_reports_after_its_checkpoint_is_written(
    worker: TrialWorker,
    spec: TrialSpec,
    slow_disk: SlowDisk,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The study removes it after the report."""

    def fail(*_: Any) -> None:
        slow_disk.wait_for_write()
        threading.Timer(0.3, slow_disk.release).start()
        raise ValueError("wrong value")

    worker.step()
    monkeypatch.setattr(ModelReplica, "train_epoch", fail)
    assert worker.step()["state"] == "failed"
    assert slow_disk.written == [1]
    assert checkpoint_path(Path(spec.checkpoint_dir), spec.trial).exists()


def test_epochs_are_written_as_the_study_file_says(spec: TrialSpec, slow_disk: SlowDisk) -> None:
    slow_disk.release()
    for every, written in ((1, [1, 2, 3, 4]), (2, [2, 4]), (3, [3, 4]), (9, [4])):
        slow_disk.written.clear()
        worker = TrialWorker()
        worker.assign_trial(replace(spec, trial=f"every-{every}", checkpoint_every=every))
        while worker.step()["state"] == "running":
            pass
        assert slow_disk.written == written
