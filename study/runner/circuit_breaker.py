"""Circuit breaker: stops a run whose trials all fail before their first epoch.

Unreachable storage or missing data fail every trial within seconds and would use up a study's
budget. Failures before the first epoch are therefore suspected first. Once another trial completes
an epoch they count as the trials' own. While none does and the failures become many, no trial is
started, and when no started trial is left that could still complete an epoch, the run stops. The
suspected trials stay open and run again when the study is resumed.
"""

from __future__ import annotations

from study.trials.job import Job, TrialOutcome

MAX_CONSECUTIVE_FAILURES = 5
"""Different points in a row that fail before their first epoch until the breaker opens."""


class CircuitBreaker:
    """Observes the starts of a run's trials."""

    def __init__(self) -> None:
        self._suspected_failures: list[tuple[Job, TrialOutcome]] = []
        self._starting_trials: set[str] = set()

    @property
    def is_open(self) -> bool:
        """Whether no trial may be started now."""
        return len({job.point for job, _ in self._suspected_failures}) >= MAX_CONSECUTIVE_FAILURES

    @property
    def stop_reason(self) -> str:
        """Why the run is over; empty while it is not."""
        if not self.is_open or self._starting_trials:
            return ""
        count, error = len(self._suspected_failures), self._suspected_failures[-1][1].error
        return f"{count} trials in a row failed before their first epoch ({error})"

    def record_start(self, trial: str) -> None:
        """A trial was started."""
        self._starting_trials.add(trial)

    def record_exit(self, trial: str) -> None:
        """A trial ended, or its process died: it will not complete an epoch now."""
        self._starting_trials.discard(trial)

    def record_failure(self, job: Job, outcome: TrialOutcome) -> None:
        """A trial failed before its first epoch."""
        self.record_exit(job.trial)
        self._suspected_failures.append((job, outcome))

    def record_progress(self, trial: str) -> list[tuple[Job, TrialOutcome]]:
        """A trial reports; after its first report, return the failures that are now confirmed."""
        if trial not in self._starting_trials:
            return []  # it started before the failures
        self.record_exit(trial)
        return self.release_failures()

    def release_failures(self) -> list[tuple[Job, TrialOutcome]]:
        """Return the suspected failures and stop suspecting them."""
        released, self._suspected_failures = self._suspected_failures, []
        return released
