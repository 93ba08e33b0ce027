"""Real studies on a real Ray: every trial is in Optuna and in MLflow, once, with its true end."""

from __future__ import annotations

import json
import shutil
import signal
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from study.checks import open_data
from study.errors import StudyError
from study.finishing import _gallery
from study.home import StudyHome, cache_dir
from study.plan import load_plan
from study.tracking.reader import read_table
from study.tuning.ledger import Ledger
from study.tuning.record import Record
from study.tuning.run import run
from study.tuning.session import polite_stop
from tests.study.driven import (
    SEARCHED,
    check_complete,
    check_consistent,
    launch,
    recorded,
    start,
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


def test_a_gallery_that_cannot_be_drawn_is_said(real_study: StudyHome, tmp_path: Path) -> None:
    """As when the node is gone that had the only checkpoint."""
    home = StudyHome(tmp_path / "small")
    home.directory.mkdir()
    for name in ("plan.json", "optuna.journal"):
        shutil.copy(real_study.directory / name, home.directory)
    plan = load_plan(home.directory)
    bench = open_data(plan, cache_dir=cache_dir())
    ledger = Ledger(plan, Record(home.directory, plan.spaces))
    said: list[str] = []
    nobody: Any = None
    for loss in plan.losses:
        _gallery(home, plan, nobody, bench, ledger, loss, said.append)
    for loss, words in zip(plan.losses, said, strict=True):
        best = ledger.incumbent(loss)
        assert best is not None
        assert words.startswith(f"no gallery of {loss}: the checkpoint of {best.trial} cannot be")


def test_resuming_a_finished_study_runs_nothing(
    real_study: StudyHome, shared_ray: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Not even the backbone that never changes is scored again.
    monkeypatch.setattr("study.tuning.elsewhere.untrained_metrics", None)
    before = recorded(real_study)
    assert run(real_study, load_plan(real_study.directory), report=False).finished
    pd.testing.assert_frame_equal(before, recorded(real_study))
    check_consistent(real_study)


def test_a_study_whose_data_changed_is_refused(real_study: StudyHome, tmp_path: Path) -> None:
    home = StudyHome(tmp_path / "small")
    home.directory.mkdir()
    for name in ("plan.json", "optuna.journal", "data.json"):
        shutil.copy(real_study.directory / name, home.directory)
    known = json.loads((home.directory / "data.json").read_text())
    assert set(known["untrained"]) == {"validation", "test"}
    (home.directory / "data.json").write_text(json.dumps({**known, "fingerprint": "another"}))
    with pytest.raises(StudyError, match="the data of small are not those it began with"):
        run(home, load_plan(home.directory))
    assert not (home.directory / "mlflow.db").exists()


def test_a_study_that_is_held_is_refused(real_study: StudyHome) -> None:
    with real_study.locked(), pytest.raises(StudyError, match="is being run by process"):
        run(real_study, load_plan(real_study.directory))


def test_confirm_reads_the_test_classes_and_registers_the_winner(real_study: StudyHome) -> None:
    import mlflow
    import numpy as np

    from study.requests import confirm_jobs, confirm_seed
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
    kept = mlflow.MlflowClient().get_model_version_by_alias(plan.name, "winner")
    winner = trials.set_index("trial").loc[kept.tags["dml.trial"]]
    said = json.loads((real_study.report / "report.json").read_text(encoding="utf-8"))
    assert winner["loss"] == said["probability_best"]["losses"][0]["loss"]
    assert winner["seed"] == confirm_seed(plan, 0)
    model = mlflow.pyfunc.load_model(f"models:/{plan.name}@winner")
    vectors = np.asarray(model.predict(np.zeros((2, 28, 28, 1), dtype=np.uint8)))
    assert vectors.shape == (2, 16)
    assert np.allclose(np.linalg.norm(vectors, axis=1), 1.0, atol=1e-5)


def test_confirm_says_how_the_winner_is_served(real_study: StudyHome, tmp_path: Path) -> None:
    """Of a study that is confirmed already, and was moved."""
    from study.tracking.model import serve_command

    moved = StudyHome(tmp_path / real_study.name)
    shutil.copytree(real_study.directory, moved.directory)
    process = launch(tmp_path, "confirm", moved.name)
    printed, _ = process.communicate(timeout=300)
    assert process.returncode == 0, printed
    command = serve_command(moved.tracking_uri(load_plan(moved.directory)), moved.name)
    assert str(moved.directory) in command
    assert printed.splitlines()[-1] == f"its winner:   {command}"


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
    fields["study_id"] = plan.study_id
    with (
        Tracker(uri, spool=real_study.spool, **fields) as tracker,
        Refresher(real_study, plan, tracker, seconds=0.0, warn=pytest.fail) as refresher,
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


def test_a_report_that_cannot_be_made_while_a_study_runs_is_said_once(
    real_study: StudyHome, tmp_path: Path
) -> None:
    from study.finishing import Refresher
    from study.tracking.writer import Tracker

    plan = load_plan(real_study.directory)
    other = StudyHome(tmp_path / "other")
    shutil.copytree(real_study.directory, other.directory)
    shutil.rmtree(other.report)
    other.report.write_text("a file in the report's place", encoding="utf-8")
    said: list[str] = []
    uri = other.tracking_uri(plan)
    with (
        Tracker(
            uri, spool=other.spool, artifact_root=None, experiment=plan.name, study_id=plan.study_id
        ) as tracker,
        Refresher(other, plan, tracker, seconds=0.0, warn=said.append) as refresher,
    ):
        deadline, tries = time.monotonic() + 120, 0
        while tries < 2:
            assert time.monotonic() < deadline
            was_busy = refresher.is_busy
            refresher.tick([])
            tries += was_busy and not refresher.is_busy
            time.sleep(0.05)
            refresher._seconds = 0.0
    assert len(said) == 1
    assert "no report while the study runs" in said[0]
    assert "report" in said[0].partition(":")[2]


@pytest.mark.parametrize(
    ("raised", "status"), [(RuntimeError("a bug"), "FAILED"), (KeyboardInterrupt(), "KILLED")]
)
def test_a_study_that_breaks_off_does_not_run_on_in_mlflow(
    raised: BaseException,
    status: str,
    tmp_path: Path,
    shared_ray: None,
    data_cache: Path,
) -> None:
    from mlflow import MlflowClient

    from study.tracking.writer import Tracker

    home = start(tmp_path, search={"trials": 2, "repeats": 1})
    plan = load_plan(home.directory)

    def strike(*_: object) -> None:
        raise raised

    with pytest.raises(type(raised)):
        run(home, plan, tick=strike)
    uri = home.tracking_uri(plan)
    fields: dict[str, Any] = {"artifact_root": home.artifact_root(plan), "experiment": plan.name}
    with Tracker(uri, spool=home.spool, study_id=plan.study_id, **fields) as tracker:
        assert tracker.flush(60.0)
    client = MlflowClient(uri)
    experiment = client.get_experiment_by_name(plan.name)
    runs = client.search_runs([experiment.experiment_id], "tags.`dml.kind` != 'baseline'")
    assert {run.info.status for run in runs} == {status}


def test_a_frozen_backbone_and_a_loss_of_the_library_end_with_gallery_and_plots(
    tmp_path: Path, shared_ray: None, data_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As on a head without a GPU, whose trials have some: nothing is computed in this process.
    for place in ("elsewhere", "run"):
        monkeypatch.setattr(f"study.tuning.{place}.is_elsewhere", lambda resources: True)
    for name in ("study.tuning.elsewhere.untrained_metrics", "study.finishing.validation_vectors"):
        monkeypatch.setattr(name, None)
    pytest.importorskip("pytorch_metric_learning", reason="the extra `pml` is not installed")
    library = "pml:TripletMarginLoss"
    home = start(
        tmp_path,
        backbone={"frozen": True},
        losses={library: {"search": {"margin": [0.01, 1.0]}}},
        search={"trials": 3, "repeats": 1, "stop_early": False},
    )
    assert run(home, load_plan(home.directory)).finished
    check_complete(home)
    assert (home.report / "index.html").exists()
    assert (home.directory / "galleries" / f"{library}.png").exists()
    assert not (home.directory / "warnings.txt").exists()
    known = json.loads((home.directory / "data.json").read_text())["untrained"]["validation"]
    assert 0 < known["map_at_r"] < known["recall_at_1"]
    import mlflow

    mlflow.set_tracking_uri(home.tracking_uri(load_plan(home.directory)))
    (parent,) = mlflow.search_runs(
        search_all_experiments=True,
        filter_string=f"tags.`mlflow.runName` = '{library}'",
        output_format="list",
    )
    figures = mlflow.artifacts.list_artifacts(run_id=parent.info.run_id, artifact_path="figures")
    assert figures, "its plots hang at its run, too"


def test_a_termination_is_a_polite_stop() -> None:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # Tune leaves its own behind
    try:
        with polite_stop(), pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGTERM)
    finally:
        signal.signal(signal.SIGINT, before)


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
