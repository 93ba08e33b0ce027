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
from study.plan import load_plan
from study.tracking.reader import read_table
from study.tuning.run import run
from tests.study.driven import (
    SEARCHED,
    check_complete,
    check_consistent,
    ended_trials,
    launch,
    recorded,
    start,
    wait_for,
    write_study,
)

pytestmark = pytest.mark.ray


def test_a_study_runs_as_planned(real_study: StudyHome) -> None:
    trials = check_complete(real_study)
    plan = load_plan(real_study.directory)
    searched = trials[trials["origin"].isin(SEARCHED)]
    assert Counter(searched["loss"]) == {"proxy_anchor": 5, "triplet": 5}
    assert set(trials["state"]) <= {"finished", "stopped"}
    assert (trials[trials["origin"] != "bayes"]["state"] == "finished").all()
    search = trials[trials["origin"].isin([*SEARCHED, "repeat"])]
    assert len(search) <= sum(plan.trials(loss) for loss in plan.losses)


def test_only_the_best_checkpoint_of_each_loss_is_left(real_study: StudyHome) -> None:
    names = {p.stem for p in real_study.checkpoints.iterdir()}
    table = read_table(real_study.tracking_uri(load_plan(real_study.directory)), "small")
    search = table.trials[
        table.trials["origin"].isin(SEARCHED) & (table.trials["state"] == "finished")
    ]
    best = search.loc[search.groupby("loss")["score"].idxmax()]["trial"]
    # Of each confirmed point (the best and the published one of either loss) the first seed stays.
    confirmed = table.trials[table.trials["origin"] == "confirm"].groupby("point")["trial"].first()
    assert len(best) == 2
    assert names == {*best, *confirmed}


def test_resuming_a_finished_study_runs_nothing(real_study: StudyHome, shared_ray: None) -> None:
    before = recorded(real_study)
    assert run(real_study, load_plan(real_study.directory)).finished
    pd.testing.assert_frame_equal(before, recorded(real_study))
    check_consistent(real_study)


def test_a_study_that_is_held_is_refused(real_study: StudyHome) -> None:
    from study.errors import StudyError

    with real_study.locked(), pytest.raises(StudyError, match="is being run by process"):
        run(real_study, load_plan(real_study.directory))


def test_confirm_reads_the_test_classes_and_registers_the_winner(real_study: StudyHome) -> None:
    import mlflow
    import numpy as np

    from study.requests import confirm_jobs
    from study.running import incumbents

    plan = load_plan(real_study.directory)
    jobs = confirm_jobs(plan, incumbents(real_study, plan))
    trials = check_consistent(real_study)
    confirmed = trials[trials["origin"] == "confirm"]
    assert len(confirmed) == len(jobs)
    assert set(confirmed["split"]) == {"test"}
    assert (confirmed["epochs"] == 3).all()
    table = read_table(real_study.tracking_uri(plan), plan.name)
    assert set(table.baseline) == {"validation", "test"}
    text = (real_study.report / "index.html").read_text(encoding="utf-8")
    assert "best test epoch" in text
    mlflow.set_tracking_uri(real_study.tracking_uri(plan))
    model = mlflow.pyfunc.load_model(f"models:/{plan.name}/1")
    vectors = np.asarray(model.predict(np.zeros((2, 28, 28, 1), dtype=np.uint8)))
    assert vectors.shape == (2, 16)
    assert np.allclose(np.linalg.norm(vectors, axis=1), 1.0, atol=1e-5)


def test_the_report_is_made_anew_while_a_study_runs(real_study: StudyHome, tmp_path: Path) -> None:
    from mlflow import MlflowClient

    from study.finishing import Refresher
    from study.tracking.writer import Tracker

    plan = load_plan(real_study.directory)
    uri = real_study.tracking_uri(plan)
    page = real_study.report / "index.html"
    before = page.read_bytes()
    page.write_text("an older report", encoding="utf-8")
    fields: dict[str, Any] = {"artifact_root": None, "experiment": plan.name}
    with (
        Tracker(uri, spool=real_study.spool, **fields) as tracker,
        Refresher(real_study, plan, tracker, seconds=0.0) as refresher,
    ):
        deadline = time.monotonic() + 120
        while page.read_bytes() != before or refresher.is_busy:
            assert time.monotonic() < deadline
            refresher.tick([])
            time.sleep(0.1)
        assert tracker.flush(60.0)
    client = MlflowClient(uri)
    experiment = client.get_experiment_by_name(plan.name)
    (study,) = client.search_runs([experiment.experiment_id], "tags.`dml.kind` = 'study'")
    path = client.download_artifacts(study.info.run_id, "report/index.html", str(tmp_path))
    assert Path(path).read_bytes() == before


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


@pytest.mark.postgres
def test_the_same_study_in_postgresql_tells_no_secret(
    real_study: StudyHome,
    postgres: str,
    tmp_path: Path,
    shared_ray: None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What the sampler's clock cannot change is equal, number for number, in both stores."""
    monkeypatch.setenv("MLFLOW_TRACKING_TOKEN", "hidden-in-the-environment")
    home = start(
        tmp_path,
        tracking={"uri": postgres},
        storage={
            "checkpoints": str(tmp_path / "hidden-in-the-environment" / "token=hidden-in-a-path")
        },
    )
    plan = load_plan(home.directory)
    summary = run(home, plan)
    assert summary.finished
    assert summary.tracked
    check_complete(home)
    equal = []
    for one in (real_study, home):
        trials = read_table(one.tracking_uri(load_plan(one.directory)), "small").trials
        fixed = trials[trials["origin"].isin(["published", "sobol"])].reset_index(drop=True)
        knobs = [name for name in fixed.columns if name.startswith("knob.")]
        columns = ["trial", "origin", "state", "point", "seed", "epochs", "score", *knobs]
        equal.append(fixed[[*columns, "metric.loss", "metric.recall_at_1"]].to_csv())
    assert equal[0] == equal[1]
    seen = _everything_in(postgres, "small")
    assert "proxy_anchor-0000" in seen
    for path in home.directory.rglob("*"):
        if path.is_file() and path.name not in ("plan.json", "study.yaml"):
            seen += path.read_bytes().decode(errors="replace")
    for path in (home.directory / "artifacts").rglob("plan.json"):
        seen += path.read_text(encoding="utf-8")
    words = ("s3cret-word", "hidden-in-a-path", "hidden-in-the-environment")
    assert [word for word in words if word in seen] == []


def _everything_in(uri: str, experiment: str) -> str:
    """Settings, tags, datasets and words of every run, as a person with access would see them."""
    from mlflow import MlflowClient

    from study.tracking.address import with_driver

    client = MlflowClient(with_driver(uri))
    found = client.get_experiment_by_name(experiment)
    runs = client.search_runs([found.experiment_id], max_results=1000)
    return str([found.tags, *(run.to_dictionary() for run in runs)])
