"""Real studies on a real Ray: every trial is in Optuna and in MLflow, once, with its true end."""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from study.home import StudyHome
from study.plan import build_plan, load_plan, save_plan
from study.read_file import parse_study
from study.tracking.reader import read_table
from study.tuning.run import run
from study.tuning.session import polite_stop
from tests.study.driven import (
    check_complete,
    check_consistent,
    check_resumed,
    ended_trials,
    launch,
    recorded,
    wait_for,
    write_features,
    write_study,
)
from tests.study.troubled import STRUCK, TroubledTrial

CONTENT: dict[str, Any] = {
    "name": "small",
    "data": {"name": "glyphs", "classes": 120, "samples": 4},
    "losses": ["proxy_anchor", "triplet"],
    "training": {"epochs": 3, "batch_size": 32, "embedding_dim": 16},
    "search": {"trials": 5, "repeats": 2, "stop_early": {"grace_epochs": 1, "reduction": 2}},
    "protocol": {"confirm_seeds": 2},
}
pytestmark = pytest.mark.ray


def start(root: Path, **changes: Any) -> StudyHome:
    plan = build_plan(parse_study({**CONTENT, **changes}))
    home = StudyHome(root / plan.name)
    home.directory.mkdir(parents=True)
    save_plan(plan, home.directory)
    return home


@pytest.fixture(scope="module")
def finished(
    tmp_path_factory: pytest.TempPathFactory, shared_ray: None, data_cache: Path
) -> StudyHome:
    home = start(tmp_path_factory.mktemp("finished"))
    summary = run(home, load_plan(home.directory))
    assert summary.finished
    assert summary.tracked
    return home


def test_a_study_runs_as_planned(finished: StudyHome) -> None:
    trials = check_consistent(finished)
    plan = load_plan(finished.directory)
    searched = trials[trials["origin"] != "repeat"]
    assert Counter(searched["loss"]) == {"proxy_anchor": 5, "triplet": 5}
    assert set(trials["state"]) <= {"finished", "stopped"}
    assert (trials[trials["origin"] != "bayes"]["state"] == "finished").all()
    assert len(trials) <= sum(plan.trials(loss) for loss in plan.losses)


def test_only_the_best_checkpoint_of_each_loss_is_left(finished: StudyHome) -> None:
    names = sorted(p.stem for p in finished.checkpoints.iterdir())
    assert len(names) == 2
    table = read_table(finished.tracking_uri(load_plan(finished.directory)), "small")
    search = table.trials[
        (table.trials["origin"] != "repeat") & (table.trials["state"] == "finished")
    ]
    best = search.loc[search.groupby("loss")["score"].idxmax()]["trial"]
    assert names == sorted(best)


def test_resuming_a_finished_study_runs_nothing(finished: StudyHome, shared_ray: None) -> None:
    before = recorded(finished)
    assert run(finished, load_plan(finished.directory), report=False).finished
    pd.testing.assert_frame_equal(before, recorded(finished))
    check_consistent(finished)


def test_a_study_that_is_held_is_refused(finished: StudyHome) -> None:
    from study.errors import StudyError

    with finished.locked(), pytest.raises(StudyError, match="is being run by process"):
        run(finished, load_plan(finished.directory))


def test_confirm_reads_the_test_classes_and_registers_the_winner(
    finished: StudyHome, shared_ray: None
) -> None:
    import mlflow
    import numpy as np

    from study.requests import confirm_jobs
    from study.running import incumbents

    plan = load_plan(finished.directory)
    jobs = confirm_jobs(plan, incumbents(finished, plan))
    summary = run(finished, plan, requests=jobs, search=False)
    assert summary.finished
    trials = check_consistent(finished)
    confirmed = trials[trials["origin"] == "confirm"]
    assert len(confirmed) == len(jobs)
    assert set(confirmed["split"]) == {"test"}
    assert (confirmed["epochs"] == 3).all()
    table = read_table(finished.tracking_uri(plan), plan.name)
    assert set(table.baseline) == {"validation", "test"}
    text = (finished.report / "index.html").read_text(encoding="utf-8")
    assert "best test epoch" in text
    mlflow.set_tracking_uri(finished.tracking_uri(plan))
    model = mlflow.pyfunc.load_model(f"models:/{plan.name}/1")
    vectors = np.asarray(model.predict(np.zeros((2, 28, 28, 1), dtype=np.uint8)))
    assert vectors.shape == (2, 16)
    assert np.allclose(np.linalg.norm(vectors, axis=1), 1.0, atol=1e-5)


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


def test_a_termination_is_a_polite_stop() -> None:
    with polite_stop(), pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGTERM)


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
    process = launch(root, "resume", "s", "--no-report")
    wait_for(home, ended_trials(home) + 2, process)
    os.kill(process.pid, signal.SIGKILL)  # the driver alone: its workers learn it by themselves
    process.wait()
    before = recorded(home)
    assert (before["state"] == "running").any()
    process = launch(root, "resume", "s")
    output, _ = process.communicate(timeout=300)
    assert process.returncode == 0, output
    assert "untrained backbone" in output
    check_resumed(home, before)
    assert (home.report / "index.html").exists()
