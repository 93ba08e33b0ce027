"""Failure policy: lost processes, lost nodes and unreachable checkpoints."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from study.runner.controller import TrialController
from study.runner.failure_policy import MAX_LOST_PROCESSES
from tests.support.controllers import RecordingListener, open_controller
from tests.support.running_studies import write_features
from tests.support.scheduler_simulation import make_plan
from trainables.actors.worker import TrialWorker
from trainables.config import TrialSpec


def test_a_trial_that_kills_its_process_in_every_second_epoch_fails_in_the_end(
    tmp_path: Path,
) -> None:
    """The resumed trial repeats the report of its checkpoint, which is not a new epoch."""
    listener = RecordingListener()
    controller = open_controller(make_plan(losses=["triplet"]), tmp_path, listener)
    spec = controller.start_next_trial()
    assert spec is not None
    trial = spec["trial"]
    for _ in range(60):
        controller.handle_result(trial, {"state": "running", "epoch": 1, "score": 0.5})
        controller.handle_lost_process(trial)
        if trial in listener.outcomes:
            break
        again = controller.start_next_trial()
        assert again is not None
        assert again["trial"] == trial
    outcome = listener.outcomes[trial]
    assert (outcome.state, outcome.epochs) == ("failed", 1)


def test_a_checkpoint_store_that_does_not_answer_is_asked_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A real trial with nothing to restore, while S3 is away for a moment; then for long."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "x")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "x")
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")  # no server listens
    plan = make_plan(
        losses=["triplet"],
        data={"name": "arrays", "path": str(write_features(tmp_path))},
        training={"epochs": 1, "batch_size": 32, "embedding_dim": 8},
        search={"trials": 1, "repeats": 1, "stop_early": False},
    )
    listener = RecordingListener()
    controller = open_controller(plan, tmp_path, listener)
    worker = TrialWorker()
    for away in (True, False):
        spec = controller.start_next_trial()
        assert spec is not None
        place = "s3://bucket/prefix" if away else spec["checkpoint_dir"]
        worker.assign_trial(TrialSpec.from_dict({**spec, "checkpoint_dir": place}))
        result = worker.step()
        assert result["state"] == ("lost" if away else "finished"), result["error"]
        assert controller.handle_result(spec["trial"], result)
    assert [o.state for o in listener.outcomes.values()] == ["finished"]


def test_a_trial_that_never_reaches_its_checkpoint_says_why_it_failed(tmp_path: Path) -> None:
    plan = make_plan(losses=["triplet"], search={"trials": 1, "repeats": 1})
    listener = RecordingListener()
    controller = open_controller(plan, tmp_path, listener)
    tries = 0
    while (spec := controller.start_next_trial()) is not None:
        tries += 1
        controller.handle_result(
            spec["trial"], {"state": "lost", "epoch": 0, "error": "OSError: S3 is away"}
        )
    assert tries == MAX_LOST_PROCESSES + 1
    (outcome,) = listener.outcomes.values()
    assert (outcome.state, outcome.error) == ("failed", "OSError: S3 is away")


def lose(folder: Path, nodes_lost: Callable[[], int], times: int) -> TrialController:
    """A trial that never finishes an epoch, because its process is lost again and again."""
    plan = make_plan()
    controller = open_controller(plan, folder, count_lost_nodes=nodes_lost)
    for _ in range(times):
        spec = controller.start_next_trial()
        assert spec is not None
        assert spec["trial"].endswith("-0000"), "it is never given up"
        controller.handle_lost_process(spec["trial"])
    return controller


def test_lost_nodes_are_pauses_and_lost_processes_are_not_for_ever(tmp_path: Path) -> None:
    count = iter(range(1000))
    for name in "ab":
        (tmp_path / name).mkdir()
    spot = lose(tmp_path / "a", lambda: next(count), 4 * MAX_LOST_PROCESSES)
    assert sum(p.failed for p in spot.scheduler.get_progress()) == 0
    assert sum(p.ended for p in spot.scheduler.get_progress()) == 0
    crash = lose(tmp_path / "b", lambda: 0, MAX_LOST_PROCESSES + 1)
    other = crash.start_next_trial()
    assert other is not None
    crash.handle_result(other["trial"], {"state": "running", "epoch": 1, "score": 0.5})
    (failed,) = (job for job in crash.scheduler.list_ended_jobs() if job.trial != other["trial"])
    assert failed.trial.endswith("-0000"), "it was its own fault, since another one trains"


def test_a_node_that_ray_calls_dead_only_later_is_a_pause_too(tmp_path: Path) -> None:
    """Ranks end as soon as the other node is silent: the count rises before the next start."""
    looks = iter(range(1000))
    late = lose(tmp_path, lambda: next(looks) // 2, 4 * MAX_LOST_PROCESSES)
    assert sum(p.failed + p.ended for p in late.scheduler.get_progress()) == 0
