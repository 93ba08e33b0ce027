"""What the tracker is told: of trials as they run, and of earlier ones when a study goes on."""

from __future__ import annotations

import datetime
import time
from collections.abc import Callable, Mapping

from optuna.trial import FrozenTrial

from study.jobs import Job, Outcome
from study.plan import Plan
from study.tracking.records import TrialRecord
from study.tracking.writer import Tracker
from study.tuning.record import Record, job_of, outcome_of

SECONDS = "seconds"


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
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._tracker, self._plan, self._tags = tracker, plan, dict(tags)
        self._clock = clock

    def started(self, job: Job) -> None:
        """A trial starts, or starts again."""
        record = trial_record(self._plan, job, self._tags, started=self._clock())
        self._tracker.trial_started(record)

    def epoch(self, job: Job, epoch: int, metrics: Mapping[str, float]) -> None:
        """A trial finished an epoch."""
        self._tracker.epoch(job.trial, epoch, metrics, timestamp=self._clock())

    def ended(self, job: Job, outcome: Outcome) -> None:
        """A trial ended."""
        self._tracker.trial_ended(
            job.trial,
            state=outcome.state,
            error=outcome.error,
            host=outcome.host,
            timestamp=self._clock(),
        )


def trial_record(plan: Plan, job: Job, tags: Mapping[str, str], *, started: float) -> TrialRecord:
    """A job as the tracker is told of it."""
    settings, arguments = plan.settings(job.loss, job.values)
    fixed = {k: v for k, v in {**vars(settings), **arguments}.items() if k not in job.values}
    own = {"space_version": plan.spaces[job.loss].version, "fold": _fold(plan, job)}
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
        fixed=fixed,
        tags={**tags, **own},
        started=started,
    )


def tell_again(tracker: Tracker, plan: Plan, record: Record, tags: Mapping[str, str]) -> None:
    """Tell of every trial of earlier runs, from the journal.

    The journal is on disk before the tracker's spool is: should the spool be lost, or MLflow's
    store, this puts every trial back. A store that lacks nothing takes nothing.
    """
    for loss in plan.losses:
        for trial in record.trials(loss):
            job, outcome = job_of(trial), outcome_of(trial)
            started = _moment(trial.datetime_start, 0.0)
            tracker.settle(
                trial_record(plan, job, tags, started=started),
                curve=_curve(trial, outcome, plan.file.protocol.objective),
                state="running" if outcome is None else outcome.state,
                error="" if outcome is None else outcome.error,
                host="" if outcome is None else outcome.host,
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
        others = outcome.seconds - outcome.metrics.get(SECONDS, 0.0)
        for epoch in set(curve) - {last}:  # so that they add up to the trial's own
            curve[epoch][SECONDS] = others / (len(curve) - 1)
    return curve


def _fold(plan: Plan, job: Job) -> str:
    """The folds a trial is scored on: all of them, unless it is scored on test classes."""
    count = plan.file.protocol.folds
    if job.split == "test":
        return "none"
    return "1 of 1" if count == 1 else f"1-{count} of {count}"


def _moment(when: datetime.datetime | None, otherwise: float) -> float:
    return when.timestamp() if when is not None else otherwise
