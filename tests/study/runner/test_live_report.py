"""Live reports of a study that ran on a real Ray."""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from typing import Any

import pytest

from study.config.plan import Plan, load_plan
from study.directory import StudyDirectory
from study.runner.display import ProgressDisplay
from study.runner.live_report import LiveReport
from study.search.job_scheduler import JobScheduler
from study.search.journal import StudyJournal
from study.tracking.tracker import Tracker
from tests.support.displays import RecordingDisplay

pytestmark = [pytest.mark.ray, pytest.mark.xdist_group("ray")]


def open_live_report(
    study_dir: StudyDirectory, plan: Plan, tracker: Tracker, display: ProgressDisplay
) -> LiveReport:
    scheduler = JobScheduler(plan, StudyJournal(study_dir.path, plan.spaces))
    return LiveReport(study_dir, plan, tracker, scheduler, display, interval_seconds=0.0)


def test_the_report_is_rebuilt_while_a_study_runs(
    real_study: StudyDirectory, tmp_path: Path
) -> None:
    from mlflow import MlflowClient

    display = RecordingDisplay()
    plan = load_plan(real_study.path)
    uri = real_study.tracking_uri(plan)
    page = real_study.report_dir / "index.html"
    before = page.read_bytes()
    page.write_text("an older report", encoding="utf-8")
    fields: dict[str, Any] = {"artifact_root": None, "experiment": plan.name}
    fields["study_id"] = plan.study_id
    with (
        Tracker(uri, spool=real_study.spool_dir, **fields) as tracker,
        open_live_report(real_study, plan, tracker, display) as live_report,
    ):
        deadline = time.monotonic() + 120
        while page.read_bytes() != before or live_report.is_busy:
            assert time.monotonic() < deadline
            live_report.update()
            time.sleep(0.1)
        assert tracker.flush(60.0)
    client = MlflowClient(uri)
    experiment = client.get_experiment_by_name(plan.name)
    (study,) = client.search_runs([experiment.experiment_id], "tags.`dml.kind` = 'study'")
    path = client.download_artifacts(study.info.run_id, "report/index.html", str(tmp_path))
    assert Path(path).read_bytes() == before
    assert display.warnings == []


def test_a_report_that_cannot_be_made_is_one_warning(
    real_study: StudyDirectory, tmp_path: Path
) -> None:
    plan = load_plan(real_study.path)
    other = StudyDirectory(tmp_path / "other")
    shutil.copytree(real_study.path, other.path)
    shutil.rmtree(other.report_dir)
    other.report_dir.write_text("a file in the report's place", encoding="utf-8")
    display = RecordingDisplay()
    uri = other.tracking_uri(plan)
    with (
        Tracker(
            uri,
            spool=other.spool_dir,
            artifact_root=None,
            experiment=plan.name,
            study_id=plan.study_id,
        ) as tracker,
        open_live_report(other, plan, tracker, display) as live_report,
    ):
        deadline, tries = time.monotonic() + 120, 0
        while tries < 2:
            assert time.monotonic() < deadline
            was_busy = live_report.is_busy
            live_report.update()
            tries += was_busy and not live_report.is_busy
            time.sleep(0.05)
            live_report._interval_seconds = 0.0
    assert len(display.warnings) == 1
    assert "no report while the study runs" in display.warnings[0]
    assert "report" in display.warnings[0].partition(":")[2]
