"""The desk's listener that keeps the tracker informed."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from study.jobs import Job, Outcome
from study.plan import Plan
from study.tracking.records import TrialRecord
from study.tracking.writer import Tracker


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
        self._tracker, self._plan, self._tags = tracker, plan, dict(tags)
        self._clock = clock or time.time

    def started(self, job: Job) -> None:
        """A trial starts, or starts again."""
        space = self._plan.spaces[job.loss]
        settings, arguments = self._plan.settings(job.loss, job.values)
        fixed = {k: v for k, v in {**vars(settings), **arguments}.items() if k not in job.values}
        self._tracker.trial_started(
            TrialRecord(
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
                tags={
                    **self._tags,
                    "space_version": space.version,
                    "folds": str(self._plan.file.protocol.folds),
                },
                started=self._clock(),
            )
        )

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
