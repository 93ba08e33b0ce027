"""What strikes one trial strikes it alone, and a study that was killed goes on where it was."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from study.home import StudyHome
from study.plan import load_plan
from study.tuning.brake import MOST_FAILURES
from study.tuning.run import run
from tests.study.driven import (
    check_complete,
    check_resumed,
    ended_trials,
    launch,
    recorded,
    start,
    starts,
    wait_for,
    write_features,
    write_study,
)
from tests.study.troubled import STRUCK, TroubledTrial

pytestmark = pytest.mark.ray

HUGE = 2**40


@pytest.fixture(scope="module")
def troubled(
    tmp_path_factory: pytest.TempPathFactory, shared_ray: None, data_cache: Path
) -> StudyHome:
    """A study whose trials are struck by this and that, while the clock jumps backwards."""
    folder = tmp_path_factory.mktemp("troubled")
    real, started = time.time, time.monotonic()

    def jumping() -> float:
        return real() - 3600.0 * int(time.monotonic() - started)

    home = start(
        folder,
        data={"name": "arrays", "path": str(write_features(folder))},
        losses={
            STRUCK: None,
            "triplet": {"search": {"embedding_dim": {"choices": [8, HUGE]}}},
            "circle": {"search": {"head_lr": [1e-3, 1e30, "log"]}, "fixed": {"clip_grad": 0.0}},
        },
        training={"epochs": 3, "batch_size": 32},
        search={"trials": 7, "repeats": 1, "sampler": "sobol"},
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(time, "time", jumping)
        summary = run(home, load_plan(home.directory), trainable=TroubledTrial, report=False)
    assert summary.finished
    assert summary.tracked
    return home


def test_a_point_that_needs_too_much_memory_fails_alone(troubled: StudyHome) -> None:
    trials = check_complete(troubled)
    mine = trials[trials["loss"] == "triplet"]
    huge = mine["knob.embedding_dim"] == HUGE
    assert 0 < huge.sum() < len(mine)
    assert (mine[huge]["state"] == "failed").all()
    assert mine[huge]["error"].str.contains("memory").all()
    assert (mine[~huge]["state"] == "finished").all()


def test_a_point_that_explodes_has_diverged(troubled: StudyHome) -> None:
    trials = check_complete(troubled)
    mine = trials[trials["loss"] == "circle"]
    exploded = mine[mine["knob.head_lr"] > 1e20]
    assert len(exploded)
    assert (exploded["state"] == "diverged").all()
    assert exploded["score"].isna().all()
    assert (mine["state"] == "finished").any()


@pytest.mark.parametrize(
    ("number", "state", "epochs", "words"),
    [
        (1, "failed", 0, "Input/output error"),
        (2, "failed", 0, "CUDA out of memory"),
        (3, "diverged", 1, "vectors are NaN"),
        (4, "finished", 3, ""),
        (5, "failed", 0, "device-side assert"),
    ],
    ids=["exception in data", "CUDA out of memory", "NaN loss", "killed worker", "broken GPU"],
)
def test_what_strikes_a_trial_strikes_it_alone(
    troubled: StudyHome, number: int, state: str, epochs: int, words: str
) -> None:
    trials = check_complete(troubled)
    mine = trials[trials["loss"] == STRUCK]
    hit = mine[mine["number"] == number].to_dict("records")[0]
    assert (hit["state"], hit["epochs"]) == (state, epochs)
    assert words in hit["error"]
    assert (troubled.errors / f"{hit['trial']}.txt").exists() == (state == "failed")
    assert (mine[~mine["number"].between(1, 5)]["state"] == "finished").all(), "others train on"
    assert (troubled.checkpoints / f"{STRUCK}-0004.killed").exists()


def test_a_clock_that_goes_backwards_changes_nothing_but_times(troubled: StudyHome) -> None:
    trials = check_complete(troubled)  # order and completeness come from steps
    assert trials["started"].max() - trials["started"].min() > 3600
    assert not trials.sort_values("number")["started"].is_monotonic_increasing
    assert (trials[trials["state"] == "finished"]["seconds"] > 0).all()


def test_interrupted_killed_and_resumed(tmp_path: Path, data_cache: Path) -> None:
    """ctrl-C, then SIGKILL; the last resume ends with every trial there, once."""
    root, home = tmp_path / "studies", StudyHome(tmp_path / "studies" / "s")
    process = launch(root, "run", str(write_study(tmp_path)), "--no-report")
    wait_for(home, 1, process)
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 130, output
    assert "study resume s" in output
    assert "Traceback" not in output
    assert (recorded(home)["state"] == "running").any()
    assert set(starts(home).values()) == {0}, "a pause is no trial's fault"
    assert "trials ended" in (note := _note(home))
    assert "report/index.html" not in note
    process = launch(root, "resume", "s", "--no-report")
    wait_for(home, ended_trials(home) + 2, process)
    os.kill(process.pid, signal.SIGKILL)  # the driver alone: its workers learn it by themselves
    process.wait()
    before = recorded(home)
    assert (before["state"] == "running").any()
    assert set(starts(home).values()) <= {0, 1}
    process = launch(root, "resume", "s", "--no-report")
    output, _ = process.communicate(timeout=300)
    assert process.returncode == 0, output
    assert "untrained backbone" in output
    check_resumed(home, before)
    assert f"{len(recorded(home))} of " in _note(home)


def test_a_study_whose_every_trial_fails_says_so_and_stops(
    tmp_path: Path, data_cache: Path
) -> None:
    root, home = tmp_path / "studies", StudyHome(tmp_path / "studies" / "s")
    training = {"epochs": 2, "batch_size": 32, "embedding_dim": HUGE}
    search = {"trials": 20, "repeats": 1}
    file = write_study(tmp_path, losses=["triplet"], training=training, search=search)
    ended = 0  # what fails again after a resume has failed
    for command in (("run", str(file)), ("resume", "s")):
        process = launch(root, *command, "--no-report")
        output, _ = process.communicate(timeout=300)
        assert process.returncode == 1, output
        assert "Traceback" not in output
        assert "in a row failed" in output, output
        (line,) = [line for line in output.splitlines() if "in a row failed" in line]
        assert "before their first epoch" in line
        assert "memory" in line
        assert line.endswith("mend it, then go on with: study resume s")
        states = recorded(home)["state"]
        assert (states == "failed").sum() == ended
        left_open = int((states == "running").sum())
        assert MOST_FAILURES <= left_open < 10
        assert len(list(home.errors.iterdir())) == ended + left_open
        ended += left_open


def _note(home: StudyHome) -> str:
    """The words on the study's own run."""
    from mlflow import MlflowClient

    client = MlflowClient(home.tracking_uri(load_plan(home.directory)))
    experiment = client.get_experiment_by_name(home.name).experiment_id
    (study,) = client.search_runs([experiment], "tags.`dml.kind` = 'study'")
    return str(study.data.tags["mlflow.note.content"])
