"""Real studies on a real Ray: every trial is in Optuna and in MLflow, once, with its true end."""

from __future__ import annotations

import os
import signal
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
from tests.study.driven import (
    check_complete,
    check_consistent,
    ended_trials,
    launch,
    recorded,
    wait_for,
    write_study,
)

CONTENT: dict[str, Any] = {
    "name": "small",
    "data": {"name": "glyphs", "classes": 200, "samples": 6},
    "losses": ["proxy_anchor", "triplet"],
    "training": {"epochs": 3, "batch_size": 32, "embedding_dim": 16},
    "search": {"trials": 5, "repeats": 2, "stop_early": {"grace_epochs": 1, "reduction": 2}},
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
    assert run(finished, load_plan(finished.directory)).finished
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


def test_failures_and_divergence_are_results(
    tmp_path: Path, shared_ray: None, data_cache: Path
) -> None:
    """A point that asks for too much memory fails alone; one that explodes has diverged."""
    huge = 2**40
    home = start(
        tmp_path,
        losses={
            "triplet": {"search": {"embedding_dim": {"choices": [8, huge]}}},
            "circle": {"search": {"backbone_lr": [1e-3, 1e30, "log"]}},
        },
        training={"epochs": 2, "batch_size": 32},
        search={"trials": 8, "repeats": 1, "sampler": "sobol"},
    )
    summary = run(home, load_plan(home.directory))
    assert summary.finished
    trials = check_consistent(home)
    failed = trials[trials["state"] == "failed"]
    assert set(failed["loss"]) == {"triplet"}
    assert (failed["knob.embedding_dim"] == huge).all()
    assert len(failed) == (trials["knob.embedding_dim"] == huge).sum()
    assert failed["error"].str.contains("memory").all()
    assert {p.stem for p in (home.directory / "errors").iterdir()} == set(failed["trial"])
    diverged = trials[trials["state"] == "diverged"]
    assert set(diverged["loss"]) == {"circle"}
    assert diverged["score"].isna().all()


def test_interrupted_terminated_killed_and_resumed(tmp_path: Path, data_cache: Path) -> None:
    """ctrl-C, SIGTERM, then SIGKILL; the last resume ends with every trial there, once."""
    root, home = tmp_path / "studies", StudyHome(tmp_path / "studies" / "s")
    process = launch(root, "run", str(write_study(tmp_path)), "--no-report")
    for polite in (signal.SIGINT, signal.SIGTERM):
        wait_for(home, ended_trials(home) + 1, process)
        process.send_signal(polite)
        output, _ = process.communicate(timeout=120)
        assert process.returncode == 130, output
        assert "study resume s" in output
        assert "Traceback" not in output
        assert (recorded(home)["state"] == "running").any()
        process = launch(root, "resume", "s", "--no-report")
    wait_for(home, ended_trials(home) + 2, process)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    before = recorded(home)
    assert (before["state"] == "running").any()
    process = launch(root, "resume", "s")
    output, _ = process.communicate(timeout=300)
    assert process.returncode == 0, output
    assert "untrained backbone" in output
    after = check_complete(home)
    done = before[before["state"] != "running"]
    kept = done.merge(after, on="trial", suffixes=("", "_after"))
    assert (kept["state"] == kept["state_after"]).all()
    assert len(kept) == len(done)
    assert set(before["trial"]) <= set(after["trial"])
    assert (home.report / "index.html").exists()
