"""Every trial is in MLflow exactly once, even if records on their way there are lost."""

from __future__ import annotations

import math
import shutil
from pathlib import Path

import pandas as pd
import pytest
from mlflow import MlflowClient

from study.config.plan import Plan, save_plan
from study.directory import StudyDirectory
from study.runner.run import RunOptions, run
from study.runner.study_record import start_tracking
from study.runner.tracking_listener import TrackingListener, resend_history
from study.search.job_scheduler import JobScheduler
from study.search.journal import StudyJournal
from study.tracking.reader import read_table
from study.tracking.tracker import Tracker
from study.trials.job import Job, TrialOutcome
from tests.support.running_studies import check_complete, check_consistent, write_features
from tests.support.scheduler_simulation import closeness_score, make_plan

pytestmark = pytest.mark.slow

COUNTS = {f"{p}_{k}": 1 for p in ("train", "validation", "test") for k in ("classes", "items")}
DATA = {"name": "glyphs", "kind": "images", "fingerprint": "x", "notes": [], **COUNTS}
EPOCHS = 3


class Session:
    """One run of a study whose trials are functions: journal, tracker and all, but no Ray."""

    def __init__(self, study_dir: StudyDirectory, plan: Plan) -> None:
        self.record = StudyJournal(study_dir.path, plan.spaces, writable=True)
        self.ledger = JobScheduler(plan, self.record)
        self.tracker = Tracker(
            study_dir.tracking_uri(plan),
            spool=study_dir.spool_dir,
            artifact_root=study_dir.artifact_root(plan),
            experiment=plan.name,
            interval=0.05,
        )
        start_tracking(self.tracker, plan, DATA, {})
        resend_history(self.tracker, plan, study_dir.path, {})
        self._listener = TrackingListener(self.tracker, plan, {})

    def train(self, trials: int, *, open_after: int | None = None) -> None:
        """Run some trials; the last one stays open after `open_after` epochs."""
        for count in range(trials):
            job = self.ledger.next_job()
            if job is None:
                return
            self._listener.on_trial_start(job)
            last = count + 1 == trials and open_after is not None
            self._epochs(job, open_after if last and open_after is not None else EPOCHS)
            if not last:
                metrics = self._metrics(job, EPOCHS)
                outcome = TrialOutcome(
                    "finished", EPOCHS, metrics["map_at_r"], seconds=7.5, host="n"
                )
                self._end(job, outcome, metrics)

    def fail(self) -> None:
        """A trial that diverges after its first epoch."""
        job = self.ledger.next_job()
        assert job is not None
        self._listener.on_trial_start(job)
        self._epochs(job, 1)
        self._end(job, TrialOutcome("diverged", 1, math.nan, error="loss is NaN", host="n"), {})

    def _epochs(self, job: Job, upto: int) -> None:
        # A trial that continues from its checkpoint repeats the last report.
        for epoch in range(max(self.ledger.epochs_done(job.trial), 1), upto + 1):
            metrics = self._metrics(job, epoch)
            self._listener.on_epoch_end(job, epoch, metrics, {"host": "n"})
            self.ledger.report_score(job.trial, epoch, metrics["map_at_r"])

    def _end(self, job: Job, outcome: TrialOutcome, metrics: dict[str, float]) -> None:
        from dataclasses import replace

        outcome = replace(outcome, metrics=metrics)
        self._listener.on_trial_end(job, outcome)
        self.ledger.end_trial(job.trial, outcome)

    def _metrics(self, job: Job, epoch: int) -> dict[str, float]:
        score = closeness_score(job, epoch)
        return {"map_at_r": score, "recall_at_1": score + 0.1, "seconds": 2.0 + 0.5 * (epoch - 1)}


@pytest.fixture
def study(tmp_path: Path) -> tuple[StudyDirectory, Plan]:
    search = {"trials": 6, "repeats": 1, "stop_early": False}
    plan = make_plan(losses=["triplet"], training={"epochs": EPOCHS}, search=search)
    study_dir = StudyDirectory(tmp_path / "s")
    study_dir.path.mkdir()
    save_plan(plan, study_dir.path)
    return study_dir, plan


@pytest.mark.parametrize("lost", ["spool", "store"])
def test_a_lost_spool_or_store_is_made_good_from_the_journal(
    study: tuple[StudyDirectory, Plan], lost: str
) -> None:
    study_dir, plan = study
    first = Session(study_dir, plan)
    first.train(2)
    assert first.tracker.flush(300.0)
    if lost == "spool":  # from here on nothing is shipped
        assert first.tracker._shipper is not None
        first.tracker._shipper.kill()
        first.tracker._shipper.wait()
    first.fail()
    first.train(2, open_after=2)
    first.tracker.close(0.0 if lost == "spool" else 300.0)
    if lost == "spool":
        assert len(read_table(study_dir.tracking_uri(plan), plan.name).trials) == 2
        shutil.rmtree(study_dir.spool_dir)
    else:
        (study_dir.path / "mlflow.db").unlink()
        shutil.rmtree(study_dir.path / "artifacts")
    again = Session(study_dir, plan)
    again.train(9)
    assert again.tracker.close(300.0)
    assert again.tracker.get_status().refused == 0
    trials = check_complete(study_dir)
    assert trials["state"].value_counts().to_dict() == {"finished": 5, "diverged": 1}
    finished = trials[trials["state"] == "finished"]
    assert finished["seconds"].tolist() == pytest.approx([7.5] * 5)
    assert (finished["metric.recall_at_1"] == finished["score"] + 0.1).all()
    assert set(trials[trials["state"] == "diverged"]["error"]) == {"loss is NaN"}


def test_a_study_that_lost_nothing_is_left_as_it_is(study: tuple[StudyDirectory, Plan]) -> None:
    study_dir, plan = study
    first = Session(study_dir, plan)
    first.fail()
    first.train(3, open_after=2)
    assert first.tracker.close(300.0)
    before = read_table(study_dir.tracking_uri(plan), plan.name)
    again = Session(study_dir, plan)
    assert again.tracker.close(300.0)
    after = read_table(study_dir.tracking_uri(plan), plan.name)
    pd.testing.assert_frame_equal(before.trials, after.trials)
    pd.testing.assert_frame_equal(before.curves, after.curves)
    check_consistent_open(study_dir)


def check_consistent_open(study_dir: StudyDirectory) -> None:
    import sqlite3

    with sqlite3.connect(study_dir.path / "mlflow.db") as connection:
        tags = {row[0] for row in connection.execute("SELECT DISTINCT key FROM tags")}
    assert "restored" not in tags
    assert {"code_version", "fold"} & tags == {"fold"}


def test_records_that_are_sent_late_are_not_sent_twice(study: tuple[StudyDirectory, Plan]) -> None:
    """The spool of a run that was cut off is shipped first; the journal then adds nothing."""
    study_dir, plan = study
    first = Session(study_dir, plan)
    assert first.tracker._shipper is not None
    first.tracker._shipper.kill()
    first.tracker._shipper.wait()
    first.train(3, open_after=2)
    first.tracker.close(0.0)
    again = Session(study_dir, plan)
    again.train(9)
    assert again.tracker.close(300.0)
    trials = check_complete(study_dir)
    assert check_consistent(study_dir)["trial"].is_unique
    assert (trials["seconds"] == 7.5).all()
    check_consistent_open(study_dir)


def test_a_run_beside_an_unfinished_search_does_not_finish_the_study(
    tmp_path: Path, data_cache: Path
) -> None:
    """As after a sweep: this run is done, the study is not, and MLflow says how far it is."""
    path = write_features(tmp_path)
    plan = make_plan(losses=["triplet"], data={"name": "arrays", "path": str(path)})
    study_dir = StudyDirectory(tmp_path / "s")
    study_dir.path.mkdir()
    save_plan(plan, study_dir.path)
    scheduler = JobScheduler(plan, StudyJournal(study_dir.path, plan.spaces, writable=True))
    for _ in range(3):
        job = scheduler.next_job()
        assert job is not None
        scheduler.end_trial(job.trial, TrialOutcome("finished", 9, 0.5))
    summary = run(study_dir, plan, search=False, options=RunOptions(report=False))
    assert summary.is_finished
    assert summary.is_tracked
    client = MlflowClient(study_dir.tracking_uri(plan))
    experiment = client.get_experiment_by_name(plan.name).experiment_id
    (study,) = client.search_runs([experiment], "tags.`dml.kind` = 'study'")
    assert study.info.status == "KILLED"
    planned = plan.max_trials("triplet")
    assert f"3 of {planned} trials ended" in study.data.tags["mlflow.note.content"]
