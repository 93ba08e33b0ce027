"""Tracking listener: sends trial events to the tracker, and earlier trials when a study resumes."""

from __future__ import annotations

import datetime
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from optuna.trial import FrozenTrial

from search_spaces.space import ParamValue
from study.config.plan import Plan
from study.search.journal import StudyJournal, job_from_trial, outcome_from_trial
from study.tracking.records import TrialRecord
from study.tracking.tracker import Tracker
from study.trials.job import Job, TrialOutcome


class TrackingListener:
    """Turns the controller's events into MLflow records.

    Args:
        tracker: Writes in the background.
        plan: The study.
        tags: Tags of every trial (code version, data fingerprint).
        clock: Seconds since the epoch, UTC.
    """

    def __init__(
        self,
        tracker: Tracker,
        plan: Plan,
        tags: Mapping[str, str],
        *,
        clock: Callable[[], float] | None = None,
    ) -> None:
        self._tracker, self._clock = tracker, clock or time.time
        self._describe_trial = TrialDescriber(plan, tags)

    def on_trial_start(self, job: Job) -> None:
        """A trial starts, or starts again."""
        self._tracker.start_trial(self._describe_trial(job, started=self._clock()))

    def on_epoch_end(
        self, job: Job, epoch: int, metrics: Mapping[str, float], environment: Mapping[str, str]
    ) -> None:
        """A trial completed an epoch."""
        self._tracker.log_epoch(
            job.trial, epoch, metrics, timestamp=self._clock(), tags=environment
        )

    def on_trial_end(self, job: Job, outcome: TrialOutcome) -> None:
        """A trial ended."""
        self._tracker.end_trial(
            job.trial,
            state=outcome.state,
            error=outcome.error,
            host=outcome.host,
            seconds=outcome.seconds,
            timestamp=self._clock(),
        )


class TrialDescriber:
    """Builds tracking records of jobs; what all jobs of a loss share is computed once.

    Args:
        plan: The study.
        tags: Tags of every trial.
    """

    def __init__(self, plan: Plan, tags: Mapping[str, str]) -> None:
        self._fixed_params: dict[str, dict[str, ParamValue]] = {}
        self._tags_by_loss: dict[str, dict[str, str]] = {}
        self._n_folds = plan.file.protocol.folds
        for loss, space in plan.spaces.items():
            settings, arguments = plan.resolve_settings(loss, plan.example_point(loss))
            known = {**vars(settings), **arguments}
            self._fixed_params[loss] = {
                k: v for k, v in known.items() if k not in space.searched_params
            }
            self._tags_by_loss[loss] = {**tags, "space_version": space.version_hash}

    def __call__(self, job: Job, *, started: float) -> TrialRecord:
        """Return the tracking record of a job."""
        return TrialRecord(
            job,
            fixed=self._fixed_params[job.loss],
            tags={**self._tags_by_loss[job.loss], "fold": self._format_folds(job)},
            started=started,
        )

    def _format_folds(self, job: Job) -> str:
        """Name the folds that a trial is scored on: all, unless it is scored on test classes."""
        if job.split == "test":
            return "none"
        return "1 of 1" if self._n_folds == 1 else f"1-{self._n_folds} of {self._n_folds}"


def resend_history(tracker: Tracker, plan: Plan, directory: Path, tags: Mapping[str, str]) -> None:
    """Send every trial of earlier runs from the journal to the tracker.

    If the tracker's spool or MLflow's store was lost, this restores every trial. A store that is
    complete does not change.
    """
    # A journal object of its own, because a running study drops learning curves from memory.
    journal = StudyJournal(directory, plan.spaces)
    describe = TrialDescriber(plan, tags)
    for loss in plan.losses:
        for trial in journal.get_trials(loss):
            job, outcome = job_from_trial(trial), outcome_from_trial(trial)
            started = _timestamp_or_default(trial.datetime_start, 0.0)
            tracker.reconcile_trial(
                describe(job, started=started),
                curve=_metrics_by_epoch(trial, outcome, plan.file.protocol.objective),
                state="running" if outcome is None else outcome.state,
                error="" if outcome is None else outcome.error,
                host="" if outcome is None else outcome.host,
                seconds=None if outcome is None else outcome.seconds,
                timestamp=_timestamp_or_default(trial.datetime_complete, started),
            )


def _metrics_by_epoch(
    trial: FrozenTrial, outcome: TrialOutcome | None, objective: str
) -> dict[int, dict[str, float]]:
    """Return metrics by epoch: the objective of every epoch, all metrics of the last one."""
    curve = {epoch: {objective: score} for epoch, score in trial.intermediate_values.items()}
    if not curve:
        return {}
    last = max(curve)
    if outcome is None:
        del curve[last]  # the trial continues from there and reports it itself
    elif outcome.metrics and last == outcome.epochs:
        curve[last] = dict(outcome.metrics)
        if outcome.score_std == outcome.score_std:
            curve[last]["score_std"] = outcome.score_std
    return curve


def _timestamp_or_default(when: datetime.datetime | None, otherwise: float) -> float:
    return when.timestamp() if when is not None else otherwise
