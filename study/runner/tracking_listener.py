"""What the tracker is told: of trials as they run, and of earlier ones when a study goes on."""

from __future__ import annotations

import datetime
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from optuna.trial import FrozenTrial

from search_spaces.space import Value
from study.jobs import Job, Outcome
from study.plan import Plan
from study.tracking.records import TrialRecord
from study.tracking.writer import Tracker
from study.tuning.record import Record, job_of, outcome_of


class TrackingListener:
    """Turns what happens at the desk into MLflow records.

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
        self._describe = Describer(plan, tags)

    def started(self, job: Job) -> None:
        """A trial starts, or starts again."""
        self._tracker.trial_started(self._describe(job, started=self._clock()))

    def epoch(self, job: Job, epoch: int, metrics: Mapping[str, float], host: str) -> None:
        """A trial finished an epoch there."""
        self._tracker.epoch(job.trial, epoch, metrics, timestamp=self._clock(), host=host)

    def ended(self, job: Job, outcome: Outcome) -> None:
        """A trial ended."""
        self._tracker.trial_ended(
            job.trial,
            state=outcome.state,
            error=outcome.error,
            host=outcome.host,
            seconds=outcome.seconds,
            timestamp=self._clock(),
        )


class Describer:
    """Makes the tracker's records of jobs; what all jobs of a loss share is found once.

    Args:
        plan: The study.
        tags: Tags of every trial.
    """

    def __init__(self, plan: Plan, tags: Mapping[str, str]) -> None:
        self._fixed: dict[str, dict[str, Value]] = {}
        self._tags: dict[str, dict[str, str]] = {}
        self._folds = plan.file.protocol.folds
        for loss, space in plan.spaces.items():
            settings, arguments = plan.settings(loss, plan.example(loss))
            known = {**vars(settings), **arguments}
            self._fixed[loss] = {k: v for k, v in known.items() if k not in space.searched}
            self._tags[loss] = {**tags, "space_version": space.version}

    def __call__(self, job: Job, *, started: float) -> TrialRecord:
        """A job as the tracker is told of it."""
        return TrialRecord(
            trial=job.trial,
            loss=job.loss,
            number=job.number,
            origin=job.origin,
            seed=job.seed,
            split=job.split,
            point=job.point,
            anchor=job.anchor,
            swept=job.swept,
            knobs=job.values,
            fixed=self._fixed[job.loss],
            tags={**self._tags[job.loss], "fold": self._fold(job)},
            started=started,
        )

    def _fold(self, job: Job) -> str:
        """The folds a trial is scored on: all of them, unless it is scored on test classes."""
        if job.split == "test":
            return "none"
        return "1 of 1" if self._folds == 1 else f"1-{self._folds} of {self._folds}"


def tell_again(tracker: Tracker, plan: Plan, directory: Path, tags: Mapping[str, str]) -> None:
    """Tell of every trial of earlier runs, from the journal.

    Should the tracker's spool be lost, or MLflow's store, this puts every trial back. A store that
    lacks nothing takes nothing.
    """
    record = Record(directory, plan.spaces)  # of its own: a running study forgets learning curves
    describe = Describer(plan, tags)
    for loss in plan.losses:
        for trial in record.trials(loss):
            job, outcome = job_of(trial), outcome_of(trial)
            started = _moment(trial.datetime_start, 0.0)
            tracker.settle(
                describe(job, started=started),
                curve=_curve(trial, outcome, plan.file.protocol.objective),
                state="running" if outcome is None else outcome.state,
                error="" if outcome is None else outcome.error,
                host="" if outcome is None else outcome.host,
                seconds=None if outcome is None else outcome.seconds,
                timestamp=_moment(trial.datetime_complete, started),
            )


def _curve(
    trial: FrozenTrial, outcome: Outcome | None, objective: str
) -> dict[int, dict[str, float]]:
    """Metrics by epoch: the scores of all, everything of the last."""
    curve = {epoch: {objective: score} for epoch, score in trial.intermediate_values.items()}
    if not curve:
        return {}
    last = max(curve)
    if outcome is None:
        del curve[last]  # the trial goes on from there, and tells of it itself
    elif outcome.metrics and last == outcome.epochs:
        curve[last] = dict(outcome.metrics)
        if outcome.score_std == outcome.score_std:
            curve[last]["score_std"] = outcome.score_std
    return curve


def _moment(when: datetime.datetime | None, otherwise: float) -> float:
    return when.timestamp() if when is not None else otherwise
