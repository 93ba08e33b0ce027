"""Job scheduler: which job runs next, which trials stop, and retries after crashes.

The scheduler makes every decision about a study and does not depend on Ray: it hands out jobs,
receives scores and outcomes, and writes each to the journal first. Tune's searcher and scheduler
are thin adapters around it, and simulations drive it directly.

All losses of a study share one run: the next job belongs to the loss with the smallest completed
fraction, so that budgets stay equal and no slot is idle while one loss finishes. Within a loss the
order is: published points, a few Sobol points, Sobol and sampled points interleaved (see
`study.search.interleaving`), repeated seeds, repeated seeds of the incumbent.

A trial can crash the run: the driver, Ray or the machine, e.g. when memory runs out. Each start is
therefore journalled first, and cleared once the trial completes an epoch or the run shuts down
normally (Ctrl-C, a lost node). All trials that were running during a crash are suspects, including
those of a driver that was killed from outside: they are retried last, after further crashes one at
a time, and fail after `CRASHES_TO_FAIL` crashes without an epoch.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from study.config.plan import Plan
from study.search.journal import (
    DEFERRED_ATTR,
    StudyJournal,
    job_from_trial,
    outcome_from_trial,
    start_count_from_trial,
)
from study.search.loss_search import LossSearch
from study.trials.job import Job, LossProgress, TrialOutcome, trial_key

CRASHES_TO_SUSPECT = 2
"""Crashes without an epoch in between after which a trial is a suspect; one may be chance."""
CRASHES_TO_ISOLATE = 4
"""Such crashes after which no other trial starts until this one has completed an epoch."""
CRASHES_TO_FAIL = 10
"""Such crashes after which a trial fails. The number is high so that a driver that is killed from
outside repeatedly does not fail trials that would have trained."""


class JobScheduler:
    """Scheduler of one study, with its state rebuilt from the journal.

    Args:
        plan: Plan of the study.
        journal: Journal of the study.
        requests: Requested jobs (sweeps, confirmations). Requests of earlier runs that were never
            started are kept. A failed request runs again if it is requested again.
        search: False runs only the requests and unfinished jobs.
    """

    def __init__(
        self,
        plan: Plan,
        journal: StudyJournal,
        *,
        requests: Sequence[Job] = (),
        search: bool = True,
    ) -> None:
        self._plan, self._journal, self._is_searching = plan, journal, search
        self.searches = {loss: LossSearch(plan, loss) for loss in plan.losses}
        """The search of each loss, in the plan's order."""
        self._running_jobs: dict[str, Job] = {}
        self._deferred_jobs: dict[str, Job] = {}
        self._deferred_before: set[str] = set()
        self._last_epochs: dict[str, int] = {}  # last reported epoch of open trials
        self._crash_counts: dict[str, int] = {}  # crashes of earlier runs, by open trial
        self._first_epochs: dict[str, int] = {}  # first epoch that a suspect reported in this run
        self._unfinished_jobs: list[Job] = []
        self._suspect_jobs: list[Job] = []
        self._requested_jobs: list[Job] = []
        if journal.is_writable:
            self._write_sampler_attrs()
        recorded = self._replay_journal()
        journal.clear_intermediate_values()
        self._queue_requests(requests, recorded)

    def _write_sampler_attrs(self) -> None:
        # An extension may use another sampler: the entries of earlier stages are kept.
        stage_key = f"sampler/{len(self._plan.stages)}"
        for loss, sampler in self.describe_samplers().items():
            self._journal.write_search_attrs(loss, {"sampler": sampler, stage_key: sampler})

    def _replay_journal(self) -> list[tuple[Job, TrialOutcome | None]]:
        """Rebuild the state from the journal in one pass and return the recorded jobs."""
        recorded = []
        for loss in self._plan.losses:
            for trial in self._journal.get_trials(loss):
                job, outcome = job_from_trial(trial), outcome_from_trial(trial)
                recorded.append((job, outcome))
                self.searches[loss].replay_trial(trial, job, outcome)
                if outcome is None:
                    self._crash_counts[job.trial] = start_count_from_trial(trial)
                    self._enqueue_unfinished(job)
                    self._last_epochs[job.trial] = max(trial.intermediate_values, default=0)
                    if DEFERRED_ATTR in trial.user_attrs:
                        self._deferred_before.add(job.trial)
        self._suspect_jobs.sort(key=lambda job: self.count_crashes(job.trial))
        return recorded

    def _queue_requests(
        self, requests: Sequence[Job], recorded: Sequence[tuple[Job, TrialOutcome | None]]
    ) -> None:
        """Queue the requests that earlier runs did not start, and the new ones."""
        n_started = Counter(job.identity_key for job, _ in recorded)
        # Jobs that need not run again, or are queued already.
        settled = {
            job.identity_key
            for job, outcome in recorded
            if outcome is None or outcome.state != "failed"
        }
        for request in self._journal.read_requests():
            if n_started[request.identity_key]:
                n_started[request.identity_key] -= 1
                continue
            settled.add(request.identity_key)
            self._requested_jobs.append(request)
        new = []
        for request in requests:
            if request.identity_key not in settled:
                settled.add(request.identity_key)
                new.append(request)
        if new:
            # Written before the first of them starts: an interrupted sweep resumes like a search.
            self._journal.add_requests(new)
            self._requested_jobs += new

    def describe_samplers(self) -> dict[str, dict[str, Any]]:
        """Return the sampler of each loss with all its settings."""
        return {loss: search.describe_sampler() for loss, search in self.searches.items()}

    @property
    def waiting_jobs(self) -> Sequence[Job]:
        """Jobs that an earlier run left unfinished, and requests that were not started yet."""
        return [*self._unfinished_jobs, *self._suspect_jobs, *self._requested_jobs]

    @property
    def running_jobs(self) -> Mapping[str, Job]:
        """Jobs that were started and have not ended, by trial."""
        return self._running_jobs

    def next_job(self) -> Job | None:
        """Start and return the next job; None if there is none to start now.

        Jobs that an earlier run left unfinished come first, under their old keys; suspects of its
        crash come last.
        """
        if any(self.count_crashes(trial) >= CRASHES_TO_ISOLATE for trial in self._running_jobs):
            return None
        if self._unfinished_jobs:
            return self._restart_job(self._unfinished_jobs.pop(0))
        job = self._next_requested_job()
        if job is None and self._is_searching:
            job = self._next_search_job()
        if job is not None:
            search = self.searches[job.loss]
            self._journal.start_trial(job, search.get_sampler_attrs(job))
            search.start_job(job)
            self._running_jobs[job.trial] = job
        elif self._suspect_jobs and not self._must_wait(self._suspect_jobs[0]):
            return self._restart_job(self._suspect_jobs.pop(0))
        return job

    def is_finished(self) -> bool:
        """Whether no job is running and none is left for this run."""
        if self._running_jobs or self._deferred_jobs or self.waiting_jobs:
            return False
        return not self._is_searching or self.is_search_finished()

    def is_study_finished(self) -> bool:
        """Whether no job of the study is left, for this run or a later one."""
        return self.is_finished() and self.is_search_finished()

    def is_search_finished(self) -> bool:
        """Whether every planned point and repeat has ended."""
        return all(search.is_finished() for search in self.searches.values())

    def report_score(self, trial: str, epoch: int, score: float) -> bool:
        """Record the score of a trial after an epoch and return whether it should stop early.

        An epoch that was reported before (the trial resumed from an older checkpoint) is not
        recorded again. At the last recorded epoch the decision is made again, because a crash may
        have lost it.
        """
        job = self._running_jobs.get(trial)
        if job is None:
            return False
        last = self.epochs_done(trial)
        if epoch <= last:
            self._clear_suspicion(trial, epoch)
            return epoch == last and self.searches[job.loss].should_stop_at(job, epoch)
        self._last_epochs[trial] = epoch
        self._crash_counts.pop(trial, None)
        self._journal.report_score(trial, epoch, score)
        return self.searches[job.loss].report_score(job, epoch, score)

    def end_trial(self, trial: str, outcome: TrialOutcome) -> None:
        """Record how a trial ended; a second call for the same trial has no effect."""
        job = self._running_jobs.pop(trial, None) or self._deferred_jobs.pop(trial, None)
        if job is None:
            return
        self._last_epochs.pop(trial, None)
        self._crash_counts.pop(trial, None)
        search = self.searches[job.loss]
        self._journal.end_trial(
            trial, outcome, sampler_value=search.value_for_sampler(job, outcome)
        )
        search.end_job(job, outcome)

    def epochs_done(self, trial: str) -> int:
        """Return the last epoch that an open trial has reported."""
        return self._last_epochs.get(trial, 0)

    def count_crashes(self, trial: str) -> int:
        """Return how many crashes of earlier runs an open trial has had since its last epoch."""
        return self._crash_counts.get(trial, 0)

    def requeue_trial(self, trial: str) -> None:
        """Take back a job whose process died; it restarts before any new job."""
        job = self._running_jobs.pop(trial, None)
        if job is not None:
            self._enqueue_unfinished(job)

    def clear_crash_counts(self) -> None:
        """Uncount the starts of open trials, because the run shuts down normally."""
        started = [*self._running_jobs.values(), *self._deferred_jobs.values()]
        requeued = [*self._unfinished_jobs, *self._suspect_jobs]
        for job in [*started, *requeued]:
            trial = job.trial
            self._journal.write_start_count(
                trial, self.count_crashes(trial), self.epochs_done(trial)
            )

    def defer_trial(self, trial: str, reason: str) -> None:
        """Leave a job open: it does not restart in this run, but may still be ended."""
        self._deferred_jobs[trial] = self._running_jobs.pop(trial)
        self._journal.defer_trial(trial, reason)

    def was_deferred(self, trial: str) -> bool:
        """Whether an earlier run deferred a trial."""
        return trial in self._deferred_before

    def get_progress(
        self, *, slots: int | None = None, include_search: bool = False
    ) -> list[LossProgress]:
        """Return the progress of each loss, in the plan's order.

        Args:
            slots: Number of trials that can run at once; further started jobs do not count as
                running.
            include_search: Count the search as planned even if this run does not search.
        """
        running = list(self._running_jobs.values())[:slots]
        waiting = self.waiting_jobs
        return [
            search.get_progress(
                running=[j for j in running if j.loss == loss],
                waiting=[j for j in waiting if j.loss == loss],
                searching=self._is_searching or include_search,
                epochs_running=sum(
                    self.epochs_done(j.trial) for j in self._running_jobs.values() if j.loss == loss
                ),
            )
            for loss, search in self.searches.items()
        ]

    def list_ended_jobs(self) -> list[Job]:
        """Return every job that has ended, in this run or earlier."""
        return [job for search in self.searches.values() for job in search.list_ended_jobs()]

    def get_incumbent(self, loss: str) -> Job | None:
        """Return the job of the best finished trial of a loss's search, if any."""
        return self.searches[loss].get_incumbent()

    def best_trials(self, loss: str, count: int) -> list[str]:
        """Return the keys of the best finished trials of a loss's search, best first."""
        return self.searches[loss].best_trials(count)

    def _clear_suspicion(self, trial: str, epoch: int) -> None:
        """Clear a suspect that resumed from an older checkpoint and has completed an epoch.

        Its first report does not count, because it may come from the checkpoint itself.
        """
        if self.count_crashes(trial) and epoch > self._first_epochs.setdefault(trial, epoch):
            del self._crash_counts[trial]
            self._journal.write_start_count(trial, 0, self.epochs_done(trial))

    def _must_wait(self, suspect: Job) -> bool:
        """Whether a suspect must run alone and another suspect is running."""
        is_suspect_running = any(
            self.count_crashes(trial) >= CRASHES_TO_SUSPECT for trial in self._running_jobs
        )
        return self.count_crashes(suspect.trial) >= CRASHES_TO_ISOLATE and is_suspect_running

    def _enqueue_unfinished(self, job: Job) -> None:
        is_suspect = self.count_crashes(job.trial) >= CRASHES_TO_SUSPECT
        (self._suspect_jobs if is_suspect else self._unfinished_jobs).append(job)

    def _restart_job(self, job: Job) -> Job:
        trial = job.trial
        self._journal.write_start_count(
            trial, self.count_crashes(trial) + 1, self.epochs_done(trial)
        )
        self._first_epochs.pop(trial, None)
        self._running_jobs[trial] = job
        return job

    def _next_requested_job(self) -> Job | None:
        if not self._requested_jobs:
            return None
        job = self._requested_jobs.pop(0)
        number = self.searches[job.loss].take_trial_number()
        return replace(job, number=number, trial=trial_key(job.loss, number))

    def _next_search_job(self) -> Job | None:
        for search in sorted(self.searches.values(), key=lambda s: s.fraction_started()):
            job = search.next_job()
            if job is not None:
                return job
        return None
