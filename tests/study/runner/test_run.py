"""Real studies on a real Ray: every trial is in Optuna and in MLflow, once, with its true end."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from study.config.plan import load_plan
from study.directory import StudyDirectory
from study.errors import StudyError
from study.runner.retention import CheckpointRetention
from study.runner.run import RunOptions, run
from study.tracking.reader import read_table
from tests.support.displays import RecordingDisplay
from tests.support.late_checkpoints import LateCheckpointTrial
from tests.support.running_studies import (
    SEARCH_ORIGINS,
    check_complete,
    check_consistent,
    create_study,
    launch_command,
    read_journal_rows,
)

pytestmark = [pytest.mark.ray, pytest.mark.xdist_group("ray")]


def test_a_study_runs_as_planned(real_study: StudyDirectory) -> None:
    trials = check_complete(real_study)
    plan = load_plan(real_study.path)
    searched = trials[trials["origin"].isin(SEARCH_ORIGINS)]
    assert Counter(searched["loss"]) == {"proxy_anchor": 5, "triplet": 5}
    assert set(trials["state"]) <= {"finished", "stopped"}
    assert (trials[trials["origin"] != "bayes"]["state"] == "finished").all()
    search = trials[trials["origin"].isin([*SEARCH_ORIGINS, "repeat"])]
    assert len(search) <= sum(plan.max_trials(loss) for loss in plan.losses)


def test_only_the_best_checkpoint_of_each_loss_is_left(real_study: StudyDirectory) -> None:
    names = {p.stem for p in real_study.checkpoints_dir.iterdir()}
    table = read_table(real_study.tracking_uri(load_plan(real_study.path)), "small")
    search = table.trials[
        table.trials["origin"].isin(SEARCH_ORIGINS) & (table.trials["state"] == "finished")
    ]
    best = search.loc[search.groupby("loss")["score"].idxmax()]["trial"]
    # Of each confirmed point (the best and the published one of either loss) the first seed stays.
    confirmed = table.trials[table.trials["origin"] == "confirm"].groupby("point")["trial"].first()
    assert len(best) == 2
    assert names == {*best, *confirmed}


def test_checkpoints_that_appear_after_their_removal_are_removed_at_the_end(
    tmp_path: Path, shared_ray: None
) -> None:
    study_dir = create_study(
        tmp_path,
        losses=["triplet"],
        training={"epochs": 1, "batch_size": 32, "embedding_dim": 8},
        search={"trials": 6, "repeats": 1, "stop_early": False},
        resources={"max_concurrent": 1},
    )
    written: list[set[str]] = []
    remove_stale = CheckpointRetention.remove_stale_checkpoints

    def record_and_remove(retention: CheckpointRetention) -> None:
        written.append({path.stem for path in study_dir.checkpoints_dir.glob("*.pt")})
        remove_stale(retention)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(CheckpointRetention, "remove_stale_checkpoints", record_and_remove)
        options = RunOptions(trainable=LateCheckpointTrial, report=False)
        assert run(study_dir, load_plan(study_dir.path), options=options).is_finished
    trials = check_complete(study_dir)
    assert len(written[-1]) > 1, "otherwise nothing appeared late"
    kept = {path.stem for path in study_dir.checkpoints_dir.iterdir()}
    assert kept == {trials.set_index("trial")["score"].idxmax()}


def test_resuming_a_finished_study_runs_nothing(
    real_study: StudyDirectory, shared_ray: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Not even the backbone that never changes is scored again.
    monkeypatch.setattr("study.runner.remote_scoring.untrained_metrics", None)
    before = read_journal_rows(real_study)
    assert run(real_study, load_plan(real_study.path), options=RunOptions(report=False)).is_finished
    pd.testing.assert_frame_equal(before, read_journal_rows(real_study))
    check_consistent(real_study)


def test_a_study_whose_data_changed_is_refused(real_study: StudyDirectory, tmp_path: Path) -> None:
    study_dir = StudyDirectory(tmp_path / "small")
    study_dir.path.mkdir()
    for name in ("plan.json", "optuna.journal", "data.json"):
        shutil.copy(real_study.path / name, study_dir.path)
    known = json.loads((study_dir.path / "data.json").read_text())
    assert set(known["untrained"]) == {"validation", "test"}
    (study_dir.path / "data.json").write_text(json.dumps({**known, "fingerprint": "another"}))
    with pytest.raises(StudyError, match="the data of small changed"):
        run(study_dir, load_plan(study_dir.path))
    assert not (study_dir.path / "mlflow.db").exists()


def test_a_study_that_is_held_is_refused(real_study: StudyDirectory) -> None:
    with real_study.hold_lock(), pytest.raises(StudyError, match="is being run by process"):
        run(real_study, load_plan(real_study.path))


def test_confirm_reads_the_test_classes_and_registers_the_winner(
    real_study: StudyDirectory,
) -> None:
    import mlflow
    import numpy as np

    from study.runner.points import find_incumbents
    from study.search.requests import confirm_seed, make_confirm_jobs

    plan = load_plan(real_study.path)
    jobs = make_confirm_jobs(plan, find_incumbents(real_study, plan))
    trials = check_consistent(real_study)
    confirmed = trials[trials["origin"] == "confirm"]
    assert len(confirmed) == len(jobs)
    assert set(confirmed["split"]) == {"test"}
    assert (confirmed["epochs"] == 3).all()
    table = read_table(real_study.tracking_uri(plan), plan.name)
    assert set(table.baseline) == {"validation", "test"}
    text = (real_study.report_dir / "index.html").read_text(encoding="utf-8")
    assert "best test epoch" in text
    mlflow.set_tracking_uri(real_study.tracking_uri(plan))
    kept = mlflow.MlflowClient().get_model_version_by_alias(plan.name, "winner")
    winner = trials.set_index("trial").loc[kept.tags["dml.trial"]]
    said = json.loads((real_study.report_dir / "report.json").read_text(encoding="utf-8"))
    assert winner["loss"] == said["probability_best"]["losses"][0]["loss"]
    assert winner["seed"] == confirm_seed(plan, 0)
    model = mlflow.pyfunc.load_model(f"models:/{plan.name}@winner")
    vectors = np.asarray(model.predict(np.zeros((2, 28, 28, 1), dtype=np.uint8)))
    assert vectors.shape == (2, 16)
    assert np.allclose(np.linalg.norm(vectors, axis=1), 1.0, atol=1e-5)


def test_confirm_says_how_the_winner_is_served(real_study: StudyDirectory, tmp_path: Path) -> None:
    """Of a study that is confirmed already, and was moved."""
    from study.tracking.model_registry import serve_command

    moved = StudyDirectory(tmp_path / real_study.name)
    shutil.copytree(real_study.path, moved.path)
    process = launch_command(tmp_path, "confirm", moved.name)
    printed, _ = process.communicate(timeout=300)
    assert process.returncode == 0, printed
    command = serve_command(moved.tracking_uri(load_plan(moved.path)), moved.name)
    assert str(moved.path) in command
    assert printed.splitlines()[-1] == f"its winner:   {command}"


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

    from study.tracking.tracker import Tracker

    study_dir = create_study(tmp_path, search={"trials": 2, "repeats": 1})
    plan = load_plan(study_dir.path)

    class StrikingDisplay(RecordingDisplay):
        def show_progress(self, *_: object) -> None:
            raise raised

    with pytest.raises(type(raised)):
        run(study_dir, plan, display=StrikingDisplay())
    uri = study_dir.tracking_uri(plan)
    fields: dict[str, Any] = {
        "artifact_root": study_dir.artifact_root(plan),
        "experiment": plan.name,
    }
    with Tracker(uri, spool=study_dir.spool_dir, study_id=plan.study_id, **fields) as tracker:
        assert tracker.flush(60.0)
    client = MlflowClient(uri)
    experiment = client.get_experiment_by_name(plan.name)
    runs = client.search_runs([experiment.experiment_id], "tags.`dml.kind` != 'baseline'")
    assert {run.info.status for run in runs} == {status}


def test_a_frozen_backbone_and_a_loss_of_the_library_end_with_gallery_and_plots(
    tmp_path: Path, shared_ray: None, data_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As on a head without a GPU, whose trials have some: nothing is computed in this process.
    for place in ("remote_scoring", "run"):
        monkeypatch.setattr(f"study.runner.{place}.gpus_are_remote", lambda resources: True)
    for name in (
        "study.runner.remote_scoring.untrained_metrics",
        "study.runner.publish.embed_validation_items",
    ):
        monkeypatch.setattr(name, None)
    pytest.importorskip("pytorch_metric_learning", reason="the extra `pml` is not installed")
    library = "pml:TripletMarginLoss"
    study_dir = create_study(
        tmp_path,
        backbone={"frozen": True},
        losses={library: {"search": {"margin": [0.01, 1.0]}}},
        search={"trials": 3, "repeats": 1, "stop_early": False},
    )
    assert run(study_dir, load_plan(study_dir.path)).is_finished
    check_complete(study_dir)
    assert (study_dir.report_dir / "index.html").exists()
    assert (study_dir.path / "galleries" / f"{library}.png").exists()
    assert not (study_dir.path / "warnings.txt").exists()
    known = json.loads((study_dir.path / "data.json").read_text())["untrained"]["validation"]
    assert 0 < known["map_at_r"] < known["recall_at_1"]
    import mlflow

    mlflow.set_tracking_uri(study_dir.tracking_uri(load_plan(study_dir.path)))
    (parent,) = mlflow.search_runs(
        search_all_experiments=True,
        filter_string=f"tags.`mlflow.runName` = '{library}'",
        output_format="list",
    )
    figures = mlflow.artifacts.list_artifacts(run_id=parent.info.run_id, artifact_path="figures")
    assert figures, "its plots hang at its run, too"


@pytest.mark.postgres
def test_the_same_study_in_postgresql_tells_no_secret(
    real_study: StudyDirectory,
    postgres: str,
    tmp_path: Path,
    shared_ray: None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What the sampler's clock cannot change is equal, number for number, in both stores."""
    monkeypatch.setenv("MLFLOW_TRACKING_TOKEN", "hidden-in-the-environment")
    study_dir = create_study(
        tmp_path,
        tracking={"uri": postgres},
        storage={
            "checkpoints": str(tmp_path / "hidden-in-the-environment" / "token=hidden-in-a-path")
        },
    )
    plan = load_plan(study_dir.path)
    summary = run(study_dir, plan)
    assert summary.is_finished
    assert summary.is_tracked
    check_complete(study_dir)
    equal = []
    for one in (real_study, study_dir):
        trials = read_table(one.tracking_uri(load_plan(one.path)), "small").trials
        fixed = trials[trials["origin"].isin(["published", "sobol"])].reset_index(drop=True)
        params = [name for name in fixed.columns if name.startswith("knob.")]
        columns = ["trial", "origin", "state", "point", "seed", "epochs", "score", *params]
        equal.append(fixed[[*columns, "metric.loss", "metric.recall_at_1"]].to_csv())
    assert equal[0] == equal[1]
    seen = _everything_in(postgres, "small")
    assert "proxy_anchor-0000" in seen
    for path in study_dir.path.rglob("*"):
        if path.is_file() and path.name not in ("plan.json", "study.yaml"):
            seen += path.read_bytes().decode(errors="replace")
    for path in (study_dir.path / "artifacts").rglob("plan.json"):
        seen += path.read_text(encoding="utf-8")
    words = ("s3cret-word", "hidden-in-a-path", "hidden-in-the-environment")
    assert [word for word in words if word in seen] == []


def _everything_in(uri: str, experiment: str) -> str:
    """Settings, tags, datasets and words of every run, as a person with access would see them."""
    from mlflow import MlflowClient

    from study.utils.tracking_uri import with_driver

    client = MlflowClient(with_driver(uri))
    found = client.get_experiment_by_name(experiment)
    runs = client.search_runs([found.experiment_id], max_results=1000)
    return str([found.tags, *(run.to_dictionary() for run in runs)])
