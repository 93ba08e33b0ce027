"""Artifacts of runs: the newest files of a study, and no others."""

from __future__ import annotations

import itertools
import threading
from pathlib import Path

import pytest
from mlflow import MlflowClient
from mlflow.entities import Run

from study.directory import default_tracking_uri
from study.tracking.artifacts import store_artifact
from study.tracking.reader import read_table
from study.tracking.spool import has_unshipped_records
from study.tracking.sqlite_store import create_store
from study.utils.atomic_folder import replacing_folder
from tests.support.tracked_study import OpenTracker, TrackedStudy

pytestmark = pytest.mark.server


def _runs(client: MlflowClient, study: str) -> dict[str, Run]:
    """Runs by the first word of their names."""
    experiment = client.get_experiment_by_name(study)
    runs = client.search_runs([experiment.experiment_id], max_results=1000)
    return {run.info.run_name.split(" ")[0]: run for run in runs}


def _files(client: MlflowClient, run: Run, folder: str | None = None) -> list[str]:
    found: list[str] = []
    for item in client.list_artifacts(run.info.run_id, folder):
        found += _files(client, run, item.path) if item.is_dir else [item.path]
    return found


@pytest.mark.parametrize("kind", ["database", "server"])
def test_files_of_an_older_report_and_of_a_former_best_trial_are_removed(
    kind: str,
    study_dir: Path,
    tmp_path: Path,
    open_tracker: OpenTracker,
    tracked_study: TrackedStudy,
    request: pytest.FixtureRequest,
) -> None:
    uri = request.getfixturevalue("mlflow_server") if kind == "server" else None
    report, gallery = tmp_path / "report", tmp_path / "circle.png"
    figures = report / "figures"
    figures.mkdir(parents=True)
    gallery.write_bytes(b"of the first")
    for name in ("index.html", "figures/response-circle.png", "figures/sweep-circle.png"):
        (report / name).write_bytes(b"old")
    tracker = open_tracker(study_dir, uri, experiment="short")
    tracker.open_study(name="short", plan=tracked_study.plan, losses=["circle"], note="")
    for number in (1, 2):
        tracked_study.log_trial(tracker, tracked_study.make_record("circle", number))
    tracker.log_artifact(report, to="study", folder="report")
    tracker.log_artifact(figures, to="circle", folder="figures", only=["sweep-circle.png"])
    tracker.log_gallery(gallery, loss="circle", trial="circle-0001")
    assert tracker.flush(60.0)
    client = MlflowClient(uri or default_tracking_uri(study_dir))
    runs = _runs(client, "short")
    client.log_text(runs["short"].info.run_id, "of a person", "notes.txt")
    assert _files(client, runs["circle"]) == ["circle.png", "figures/sweep-circle.png"]
    assert _files(client, runs["circle-001"]) == ["circle.png"]

    (figures / "sweep-circle.png").unlink()
    for path in (report / "index.html", gallery):
        path.write_bytes(b"new")
    tracker.log_artifact(report, to="study", folder="report")
    tracker.log_artifact(figures, to="circle", folder="figures", only=["response-circle.png"])
    for _ in range(2):  # written twice, as after a crash
        tracker.log_gallery(gallery, loss="circle", trial="circle-0002")
        assert tracker.flush(60.0)
    assert _files(client, runs["short"]) == [
        *("notes.txt", "plan.json", "report/figures/response-circle.png", "report/index.html")
    ]
    assert _files(client, runs["circle"]) == ["circle.png", "figures/response-circle.png"]
    assert _files(client, runs["circle-001"]) == []
    assert _files(client, runs["circle-002"]) == ["circle.png"]
    for run in ("circle", "circle-002"):
        path = client.download_artifacts(runs[run].info.run_id, "circle.png")
        assert Path(path).read_bytes() == b"new"
    assert tracker.get_status().refused == 0


def test_files_reach_study_loss_and_trial(
    study_dir: Path, tmp_path: Path, open_tracker: OpenTracker, tracked_study: TrackedStudy
) -> None:
    page, plots = tmp_path / "report.html", tmp_path / "plots"
    page.write_text("<p>old</p>", encoding="utf-8")
    plots.mkdir()
    (plots / "alpha.png").write_bytes(b"png")
    tracker = open_tracker(study_dir)
    tracked_study.open_study(tracker)
    tracked_study.log_trial(tracker, tracked_study.make_record("circle", 1))
    tracker.log_artifact(page, to="study", folder="report")
    tracker.log_artifact(plots, to="circle", folder="response")
    tracker.log_artifact(page, to="circle-0001")
    tracker.log_artifact(tmp_path / "gone.html", to="study")
    assert tracker.flush(60.0)
    page.write_text("<p>new</p>", encoding="utf-8")
    tracker.log_artifact(page, to="study", folder="report")
    assert tracker.flush(60.0)
    assert tracker.get_status().refused == 1
    client = MlflowClient(default_tracking_uri(study_dir))
    runs = _runs(client, "groceries")
    new = client.download_artifacts(runs["groceries"].info.run_id, "report/report.html")
    assert Path(new).read_text() == "<p>new</p>"
    assert _files(client, runs["circle"]) == ["response/alpha.png"]
    assert _files(client, runs["circle-001"]) == ["report.html"]


def test_a_file_that_cannot_be_stored_does_not_block_records(
    study_dir: Path, tmp_path: Path, open_tracker: OpenTracker, tracked_study: TrackedStudy
) -> None:
    page, artifacts = tmp_path / "report.html", study_dir / "artifacts"
    page.write_text("<p>new</p>", encoding="utf-8")
    artifacts.write_text("a file where the folder should be", encoding="utf-8")
    tracker = open_tracker(study_dir, patience=0.2)
    tracked_study.open_study(tracker)
    tracker.log_artifact(page, to="study", folder="report")
    tracked_study.log_trial(tracker, tracked_study.make_record("circle", 1))
    assert tracker.flush(60.0)
    status = tracker.get_status()
    assert (status.unstored, status.refused) == (2, 0)  # the plan's own file, too
    assert "a file cannot be stored" in status.error
    trials = read_table(default_tracking_uri(study_dir), "groceries").trials
    assert trials["state"].tolist() == ["finished"]
    assert has_unshipped_records(study_dir / "spool")
    artifacts.unlink()
    assert tracker.close(60.0)
    assert (tracker.get_status().unstored, tracker.get_status().error) == (0, "")
    assert not has_unshipped_records(study_dir / "spool")
    assert [path.read_text() for path in artifacts.rglob("report.html")] == ["<p>new</p>"]
    assert list(artifacts.rglob("plan.json"))


def test_a_report_that_is_replaced_while_stored_is_stored_consistently(study_dir: Path) -> None:
    """Page, figures and tables come from the same report, however often it is replaced."""
    client = MlflowClient(default_tracking_uri(study_dir))
    create_store(default_tracking_uri(study_dir))
    experiment = client.create_experiment("busy", (study_dir / "artifacts").as_uri())
    run = client.create_run(experiment)
    report, ended = study_dir / "report", threading.Event()
    _write(report, 0)
    writer = threading.Thread(target=_write_often, args=(report, ended))
    writer.start()
    try:
        for _ in range(10):
            store_artifact(client, run.info.run_id, report, "report")
            stored = study_dir / "artifacts" / run.info.run_id / "artifacts" / "report"
            files = [p for p in stored.rglob("*") if p.is_file() and p.name != "manifest.json"]
            assert len(files) == 61
            assert len({path.read_text() for path in files}) == 1
            store_artifact(
                client, run.info.run_id, report / "figures", "figures", ["0.png", "29.png"]
            )
            drawn = sorted(stored.with_name("figures").iterdir())
            assert [p.name for p in drawn] == ["0.png", "29.png"]
            assert len({path.read_text() for path in drawn}) == 1
    finally:
        ended.set()
        writer.join()
    assert int((stored / "index.html").read_text()) > 0, "the report must have been replaced"


def _write_often(report: Path, ended: threading.Event) -> None:
    for number in itertools.count(1):
        _write(report, number)
        if ended.wait(0.002):
            return


def _write(report: Path, number: int) -> None:
    with replacing_folder(report) as new:
        for name in ("index.html", *(f"figures/{i}.png" for i in range(30))):
            (new / name).write_text(str(number))
        for i in range(30):
            (new / "tables" / f"{i}.csv").write_text(str(number))
