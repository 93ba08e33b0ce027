"""Tests of studies with failing trials, and of interrupted, killed and resumed studies."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from study.config.plan import load_plan
from study.directory import StudyDirectory
from study.runner.circuit_breaker import MAX_CONSECUTIVE_FAILURES
from study.runner.run import RunOptions, run
from tests.support.failing_trials import FAILING_LOSS, FailingTrial
from tests.support.running_studies import (
    check_complete,
    check_resumed,
    count_ended_trials,
    create_study,
    launch_command,
    read_journal_rows,
    read_start_counts,
    wait_for_ended_trials,
    write_features,
    write_study,
)

pytestmark = [pytest.mark.ray, pytest.mark.faults, pytest.mark.xdist_group("trials")]

HUGE = 2**40


@pytest.fixture(scope="module")
def failing_study(
    tmp_path_factory: pytest.TempPathFactory, shared_ray: None, data_cache: Path
) -> StudyDirectory:
    """Return a study whose trials failed in various ways while the clock jumped backwards."""
    folder = tmp_path_factory.mktemp("failing")
    real, started = time.time, time.monotonic()

    def jump_back() -> float:
        return real() - 3600.0 * int(time.monotonic() - started)

    study_dir = create_study(
        folder,
        data={"name": "arrays", "path": str(write_features(folder))},
        losses={
            FAILING_LOSS: None,
            "triplet": {"search": {"embedding_dim": {"choices": [8, HUGE]}}},
            "circle": {"search": {"head_lr": [1e-3, 1e30, "log"]}, "fixed": {"clip_grad": 0.0}},
        },
        training={"epochs": 3, "batch_size": 32},
        search={"trials": 7, "repeats": 1, "sampler": "sobol"},
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(time, "time", jump_back)
        options = RunOptions(trainable=FailingTrial, report=False)
        summary = run(study_dir, load_plan(study_dir.path), options=options)
    assert summary.is_finished
    assert summary.is_tracked
    return study_dir


def test_a_point_that_needs_too_much_memory_fails_alone(failing_study: StudyDirectory) -> None:
    trials = check_complete(failing_study)
    triplet = trials[trials["loss"] == "triplet"]
    huge = triplet["knob.embedding_dim"] == HUGE
    assert 0 < huge.sum() < len(triplet)
    assert (triplet[huge]["state"] == "failed").all()
    assert triplet[huge]["error"].str.contains("memory").all()
    assert (triplet[~huge]["state"] == "finished").all()


def test_a_point_with_exploding_gradients_has_diverged(failing_study: StudyDirectory) -> None:
    trials = check_complete(failing_study)
    circle = trials[trials["loss"] == "circle"]
    exploded = circle[circle["knob.head_lr"] > 1e20]
    assert len(exploded)
    assert (exploded["state"] == "diverged").all()
    assert exploded["score"].isna().all()
    assert (circle["state"] == "finished").any()


@pytest.mark.parametrize(
    ("number", "state", "epochs", "message"),
    [
        (1, "failed", 0, "Input/output error"),
        (2, "failed", 0, "CUDA out of memory"),
        (3, "diverged", 1, "diverged"),
        (4, "finished", 3, ""),
        (5, "failed", 0, "device-side assert"),
    ],
    ids=["exception in data", "CUDA out of memory", "NaN loss", "killed worker", "broken GPU"],
)
def test_an_error_in_a_trial_does_not_affect_others(
    failing_study: StudyDirectory, number: int, state: str, epochs: int, message: str
) -> None:
    trials = check_complete(failing_study)
    failing = trials[trials["loss"] == FAILING_LOSS]
    trial = failing[failing["number"] == number].to_dict("records")[0]
    assert (trial["state"], trial["epochs"]) == (state, epochs)
    assert message in trial["error"]
    assert (failing_study.errors_dir / f"{trial['trial']}.txt").exists() == (state == "failed")
    assert (failing[~failing["number"].between(1, 5)]["state"] == "finished").all()
    assert (failing_study.checkpoints_dir / f"{FAILING_LOSS}-0004.killed").exists()


def test_a_clock_that_goes_backwards_changes_nothing_but_times(
    failing_study: StudyDirectory,
) -> None:
    trials = check_complete(failing_study)  # order and completeness do not depend on times
    assert trials["started"].max() - trials["started"].min() > 3600
    assert not trials.sort_values("number")["started"].is_monotonic_increasing
    assert (trials[trials["state"] == "finished"]["seconds"] > 0).all()


def test_a_study_is_interrupted_killed_and_resumed(tmp_path: Path, data_cache: Path) -> None:
    """Ctrl-C, then SIGKILL; after the last resume every trial exists once."""
    root, study_dir = tmp_path / "studies", StudyDirectory(tmp_path / "studies" / "s")
    process = launch_command(root, "run", str(write_study(tmp_path)), "--no-report")
    wait_for_ended_trials(study_dir, 1, process)
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 130, output
    assert "study resume s" in output
    assert "Traceback" not in output
    assert (read_journal_rows(study_dir)["state"] == "running").any()
    assert set(read_start_counts(study_dir).values()) == {0}, (
        "an interruption does not count against trials"
    )
    assert "trials ended" in (note := _note(study_dir))
    assert "report/index.html" not in note
    process = launch_command(root, "resume", "s", "--no-report")
    wait_for_ended_trials(study_dir, count_ended_trials(study_dir) + 2, process)
    os.kill(process.pid, signal.SIGKILL)  # the driver only; its workers must notice
    process.wait()
    before = read_journal_rows(study_dir)
    assert (before["state"] == "running").any()
    assert set(read_start_counts(study_dir).values()) <= {0, 1}
    process = launch_command(root, "resume", "s", "--no-report")
    output, _ = process.communicate(timeout=300)
    assert process.returncode == 0, output
    assert "untrained backbone" in output
    check_resumed(study_dir, before)
    assert f"{len(read_journal_rows(study_dir))} of " in _note(study_dir)


def test_a_study_whose_trials_all_fail_stops_with_a_message(
    tmp_path: Path, data_cache: Path
) -> None:
    root, study_dir = tmp_path / "studies", StudyDirectory(tmp_path / "studies" / "s")
    training = {"epochs": 2, "batch_size": 32, "embedding_dim": HUGE}
    search = {"trials": 20, "repeats": 1}
    file = write_study(tmp_path, losses=["triplet"], training=training, search=search)
    ended = 0  # trials that fail again after a resume have failed
    for command in (("run", str(file)), ("resume", "s")):
        process = launch_command(root, *command, "--no-report")
        output, _ = process.communicate(timeout=300)
        assert process.returncode == 1, output
        assert "Traceback" not in output
        assert "in a row failed" in output, output
        (line,) = [line for line in output.splitlines() if "in a row failed" in line]
        assert "before their first epoch" in line
        assert "memory" in line
        assert line.endswith("study resume s")
        states = read_journal_rows(study_dir)["state"]
        assert (states == "failed").sum() == ended
        left_open = int((states == "running").sum())
        assert MAX_CONSECUTIVE_FAILURES <= left_open < 10
        assert len(list(study_dir.errors_dir.iterdir())) == ended + left_open
        ended += left_open


def _note(study_dir: StudyDirectory) -> str:
    """Return the note of the study's own MLflow run."""
    from mlflow import MlflowClient

    client = MlflowClient(study_dir.tracking_uri(load_plan(study_dir.path)))
    experiment = client.get_experiment_by_name(study_dir.name).experiment_id
    (study,) = client.search_runs([experiment], "tags.`dml.kind` = 'study'")
    return str(study.data.tags["mlflow.note.content"])
