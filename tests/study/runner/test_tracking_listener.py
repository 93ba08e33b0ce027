"""Is every trial in MLflow once, even if what was on its way there is gone?"""

from __future__ import annotations

import math
import shutil
from pathlib import Path

import pandas as pd
import pytest
from mlflow import MlflowClient

from study.home import StudyHome
from study.jobs import Job, Outcome
from study.plan import Plan, save_plan
from study.tracking.reader import read_table
from study.tracking.writer import Tracker
from study.tuning.describing import open_tracking
from study.tuning.ledger import Ledger
from study.tuning.record import Record
from study.tuning.run import run
from study.tuning.telling import TrackingListener, tell_again
from tests.study.driven import check_complete, check_consistent, write_features
from tests.study.tuning_simulation import closeness, make_plan

COUNTS = {f"{p}_{k}": 1 for p in ("train", "validation", "test") for k in ("classes", "items")}
DATA = {"name": "glyphs", "kind": "images", "fingerprint": "x", "notes": [], **COUNTS}
EPOCHS = 3


class Session:
    """One run of a study whose trials are functions: journal, tracker and all, but no Ray."""

    def __init__(self, home: StudyHome, plan: Plan) -> None:
        self.record = Record(home.directory, plan.spaces, writable=True)
        self.ledger = Ledger(plan, self.record)
        self.tracker = Tracker(
            home.tracking_uri(plan),
            spool=home.spool,
            artifact_root=home.artifact_root(plan),
            experiment=plan.name,
            interval=0.05,
        )
        open_tracking(self.tracker, plan, DATA, {})
        tell_again(self.tracker, plan, home.directory, {})
        self._listener = TrackingListener(self.tracker, plan, {})

    def train(self, trials: int, *, open_after: int | None = None) -> None:
        """Run so many trials; the last stays open after some epochs if so wanted."""
        for count in range(trials):
            job = self.ledger.next_job()
            if job is None:
                return
            self._listener.started(job)
            last = count + 1 == trials and open_after is not None
            self._epochs(job, open_after if last and open_after is not None else EPOCHS)
            if not last:
                metrics = self._metrics(job, EPOCHS)
                outcome = Outcome("finished", EPOCHS, metrics["map_at_r"], seconds=7.5, host="n")
                self._end(job, outcome, metrics)

    def fail(self) -> None:
        """A trial that diverges after its first epoch."""
        job = self.ledger.next_job()
        assert job is not None
        self._listener.started(job)
        self._epochs(job, 1)
        self._end(job, Outcome("diverged", 1, math.nan, error="loss is NaN", host="n"), {})

    def _epochs(self, job: Job, upto: int) -> None:
        # As a trial that goes on from its checkpoint: it repeats the last report.
        for epoch in range(max(self.ledger.epochs_done(job.trial), 1), upto + 1):
            metrics = self._metrics(job, epoch)
            self._listener.epoch(job, epoch, metrics, "n")
            self.ledger.report(job.trial, epoch, metrics["map_at_r"])

    def _end(self, job: Job, outcome: Outcome, metrics: dict[str, float]) -> None:
        from dataclasses import replace

        outcome = replace(outcome, metrics=metrics)
        self._listener.ended(job, outcome)
        self.ledger.end(job.trial, outcome)

    def _metrics(self, job: Job, epoch: int) -> dict[str, float]:
        score = closeness(job, epoch)
        return {"map_at_r": score, "recall_at_1": score + 0.1, "seconds": 2.0 + 0.5 * (epoch - 1)}


@pytest.fixture
def study(tmp_path: Path) -> tuple[StudyHome, Plan]:
    search = {"trials": 6, "repeats": 1, "stop_early": False}
    plan = make_plan(losses=["triplet"], training={"epochs": EPOCHS}, search=search)
    home = StudyHome(tmp_path / "s")
    home.directory.mkdir()
    save_plan(plan, home.directory)
    return home, plan


@pytest.mark.parametrize("lost", ["spool", "store"])
def test_a_lost_spool_or_store_is_made_good_from_the_journal(
    study: tuple[StudyHome, Plan], lost: str
) -> None:
    home, plan = study
    first = Session(home, plan)
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
        assert len(read_table(home.tracking_uri(plan), plan.name).trials) == 2
        shutil.rmtree(home.spool)
    else:
        (home.directory / "mlflow.db").unlink()
        shutil.rmtree(home.directory / "artifacts")
    again = Session(home, plan)
    again.train(9)
    assert again.tracker.close(300.0)
    assert again.tracker.status().refused == 0
    trials = check_complete(home)
    assert trials["state"].value_counts().to_dict() == {"finished": 5, "diverged": 1}
    finished = trials[trials["state"] == "finished"]
    assert finished["seconds"].tolist() == pytest.approx([7.5] * 5)
    assert (finished["metric.recall_at_1"] == finished["score"] + 0.1).all()
    assert set(trials[trials["state"] == "diverged"]["error"]) == {"loss is NaN"}


def test_a_study_that_lost_nothing_is_left_as_it_is(study: tuple[StudyHome, Plan]) -> None:
    home, plan = study
    first = Session(home, plan)
    first.fail()
    first.train(3, open_after=2)
    assert first.tracker.close(300.0)
    before = read_table(home.tracking_uri(plan), plan.name)
    again = Session(home, plan)
    assert again.tracker.close(300.0)
    after = read_table(home.tracking_uri(plan), plan.name)
    pd.testing.assert_frame_equal(before.trials, after.trials)
    pd.testing.assert_frame_equal(before.curves, after.curves)
    check_consistent_open(home)


def check_consistent_open(home: StudyHome) -> None:
    import sqlite3

    with sqlite3.connect(home.directory / "mlflow.db") as connection:
        tags = {row[0] for row in connection.execute("SELECT DISTINCT key FROM tags")}
    assert "restored" not in tags
    assert {"code_version", "fold"} & tags == {"fold"}


def test_what_is_shipped_late_is_not_told_twice(study: tuple[StudyHome, Plan]) -> None:
    """The spool of a run that was cut off is shipped first; the journal then adds nothing."""
    home, plan = study
    first = Session(home, plan)
    assert first.tracker._shipper is not None
    first.tracker._shipper.kill()
    first.tracker._shipper.wait()
    first.train(3, open_after=2)
    first.tracker.close(0.0)
    again = Session(home, plan)
    again.train(9)
    assert again.tracker.close(300.0)
    trials = check_complete(home)
    assert check_consistent(home)["trial"].is_unique
    assert (trials["seconds"] == 7.5).all()
    check_consistent_open(home)


def test_a_run_beside_an_unfinished_search_does_not_finish_the_study(
    tmp_path: Path, data_cache: Path
) -> None:
    """As after a sweep: this run is done, the study is not, and MLflow says how far it is."""
    path = write_features(tmp_path)
    plan = make_plan(losses=["triplet"], data={"name": "arrays", "path": str(path)})
    home = StudyHome(tmp_path / "s")
    home.directory.mkdir()
    save_plan(plan, home.directory)
    ledger = Ledger(plan, Record(home.directory, plan.spaces, writable=True))
    for _ in range(3):
        job = ledger.next_job()
        assert job is not None
        ledger.end(job.trial, Outcome("finished", 9, 0.5))
    summary = run(home, plan, search=False, report=False)
    assert summary.finished
    assert summary.tracked
    client = MlflowClient(home.tracking_uri(plan))
    experiment = client.get_experiment_by_name(plan.name).experiment_id
    (study,) = client.search_runs([experiment], "tags.`dml.kind` = 'study'")
    assert study.info.status == "KILLED"
    planned = plan.trials("triplet")
    assert f"3 of {planned} trials ended" in study.data.tags["mlflow.note.content"]
