"""Run context: what every part of an open run shares."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from study.config.plan import Plan
from study.directory import StudyDirectory
from study.runner.display import ProgressDisplay
from study.search.job_scheduler import JobScheduler
from study.tracking.tracker import Tracker
from study.trials.job import Job
from trainables.config import TrialSpec
from trainables.training.context import TrainingContext


class PeriodicTask(Protocol):
    """Something to update a few times a second while trials run."""

    def update(self) -> None:
        """Do what is due; return at once if nothing is."""


@dataclass(frozen=True)
class RunContext:
    """The parts of an open run.

    Args:
        study_dir: The study's directory.
        plan: What to run.
        training: Data and backbone, as the trials open them.
        scheduler: Decides which job is next and which trial stops.
        tracker: Writes to MLflow in the background.
        display: Shows messages and progress; logs warnings to a file, too.
    """

    study_dir: StudyDirectory
    plan: Plan
    training: TrainingContext
    scheduler: JobScheduler
    tracker: Tracker
    display: ProgressDisplay

    def build_trial_spec(self, job: Job) -> TrialSpec:
        """Return the spec of a job's trial, with this machine's cache directory."""
        return self.plan.build_trial_spec(
            job,
            cache_dir=self.training.cache_dir,
            checkpoint_dir=self.study_dir.checkpoint_location(self.plan),
        )
