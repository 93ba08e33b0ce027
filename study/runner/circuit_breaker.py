"""Do trials fail by themselves, or is something wrong with all of them?

Storage that does not answer or data that are gone fail every trial before its first epoch, within
seconds, and would use up a study's budget. So the first failures are only suspected: once another
trial gets going they were the trials' own; while none does and they become many, nothing is
started, and as soon as nobody is left who could still get going the run stops. What is suspected
then is open still, and runs when the study goes on.
"""

from __future__ import annotations

from study.jobs import Job, Outcome

MOST_FAILURES = 5
"""Different points in a row that fail before their first epoch: then it is not the points."""


class Brake:
    """Watches the starts of a run's trials."""

    def __init__(self) -> None:
        self._failed: list[tuple[Job, Outcome]] = []
        self._starting: set[str] = set()

    @property
    def is_on(self) -> bool:
        """Whether nothing may be started now."""
        return len({job.point for job, _ in self._failed}) >= MOST_FAILURES

    @property
    def reason(self) -> str:
        """Why the run is over; empty while it is not."""
        if not self.is_on or self._starting:
            return ""
        error = self._failed[-1][1].error
        return f"{len(self._failed)} trials in a row failed before their first epoch ({error})"

    def started(self, trial: str) -> None:
        """A trial was handed out."""
        self._starting.add(trial)

    def gone(self, trial: str) -> None:
        """A trial is no longer about to get going: it ended, or its process did."""
        self._starting.discard(trial)

    def failed(self, job: Job, outcome: Outcome) -> None:
        """A trial failed before its first epoch."""
        self.gone(job.trial)
        self._failed.append((job, outcome))

    def works(self, trial: str) -> list[tuple[Job, Outcome]]:
        """A trial reports; if it has just got going, the failures before were the trials' own."""
        if trial not in self._starting:
            return []  # it started before whatever happened since
        self.gone(trial)
        return self.release()

    def release(self) -> list[tuple[Job, Outcome]]:
        """The failures that were suspected; they are no longer."""
        released, self._failed = self._failed, []
        return released
