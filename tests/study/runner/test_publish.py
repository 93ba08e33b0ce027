"""Publishing of galleries, reports and notes."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from study.config.plan import load_plan
from study.directory import StudyDirectory
from study.runner.context import RunContext
from study.runner.preflight import open_data
from study.runner.publish import _log_gallery
from study.search.job_scheduler import JobScheduler
from study.search.journal import StudyJournal
from study.utils.paths import cache_dir
from tests.support.displays import RecordingDisplay

pytestmark = [pytest.mark.ray, pytest.mark.xdist_group("ray")]


def test_a_gallery_that_cannot_be_drawn_is_said(real_study: StudyDirectory, tmp_path: Path) -> None:
    """As when the node is gone that had the only checkpoint."""
    study_dir = StudyDirectory(tmp_path / "small")
    study_dir.path.mkdir()
    for name in ("plan.json", "optuna.journal"):
        shutil.copy(real_study.path / name, study_dir.path)
    plan = load_plan(study_dir.path)
    context = open_data(plan, cache_dir=cache_dir())
    scheduler = JobScheduler(plan, StudyJournal(study_dir.path, plan.spaces))
    display = RecordingDisplay()
    tracker: Any = None
    run_context = RunContext(study_dir, plan, context, scheduler, tracker, display)
    for loss in plan.losses:
        _log_gallery(run_context, loss, None)
    for loss, words in zip(plan.losses, display.warnings, strict=True):
        best = scheduler.get_incumbent(loss)
        assert best is not None
        assert words.startswith(f"no gallery of {loss}: the checkpoint of {best.trial} cannot be")
