"""Who runs next, and who stops?

The ledger decides everything about a study and knows nothing of Ray: it hands out jobs, takes
reports and outcomes, and writes each to the record first. Tune's searcher and scheduler are thin
adapters around it, and simulations drive it directly.

All losses of a study share one run: the next job belongs to the loss that is furthest behind, so
budgets stay equal and no slot idles at a loss's tail. Within a loss the order is: published points,
a few Sobol points, then Sobol points and the sampler's side by side (`order` says why), repeated
seeds, repeated seeds of the incumbent.

A trial may take the whole run with it: its driver, Ray, or the machine, when memory runs out. Only
the record can tell, so each start is counted there before it happens, and uncounted if it brings an
epoch or if the run lives to say how it ended (ctrl-C, a lost node). Whoever ran beside such a trial
is suspected with it, and so is whoever runs when somebody else kills the driver: suspects only come
last, and after more deaths one by one, each until an epoch clears it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from study.jobs import Job, Outcome, Progress, trial_key
from study.plan import Plan
from study.tuning.record import SET_ASIDE, Record, job_of, outcome_of, starts_of
from study.tuning.search import LossSearch

SUSPECT = 2
"""Starts of a trial with which the run died, each before another epoch: one may be bad luck."""
APART = 4
"""Likewise, after which no other trial starts beside it until it has finished an epoch."""
MOST_STARTS = 10
"""Likewise, after which it has failed. Many: a driver that is killed from outside again and again
must not cost trials that would have trained."""


class Ledger:
    """The state of a study, rebuilt from its record.

    Args:
        plan: What to run.
        record: What was asked and came of it so far.
        requests: Trainings asked for by name (sweeps, confirmations); those of earlier runs that
            were never started are remembered. One that failed runs again when it is asked again.
        search: False runs only the requests and what was left unfinished.
    """

    def __init__(
        self,
        plan: Plan,
        record: Record,
        *,
        requests: Sequence[Job] = (),
        search: bool = True,
    ) -> None:
        self._plan, self._record, self._search = plan, record, search
        self._losses = {loss: LossSearch(plan, loss, record) for loss in plan.losses}
        if record.writable:
            for loss, sampler in self.samplers().items():
                # An extension may have another: what chose the earlier points stays written.
                stage = f"sampler/{len(plan.stages)}"
                record.describe(loss, {"sampler": sampler, stage: sampler})
        self._running: dict[str, Job] = {}
        self._aside: dict[str, Job] = {}
        self._set_aside_before: set[str] = set()
        self._epochs: dict[str, int] = {}  # the last one reported, of trials that have not ended
        self._starts: dict[str, int] = {}  # of open trials, by earlier runs; see `starts_of`
        self._first_report: dict[str, int] = {}  # of suspects, by this run
        self._unfinished: list[Job] = []
        self._suspects: list[Job] = []
        self._requests: list[Job] = []
        started: Counter[str] = Counter()
        done = set[str]()  # what need not be run again, or is about to be
        for loss in plan.losses:
            for trial in record.trials(loss):
                job, outcome = job_of(trial), outcome_of(trial)
                started[job.identity] += 1
                if outcome is None or outcome.state != "failed":
                    done.add(job.identity)
                if outcome is None:
                    self._starts[job.trial] = starts_of(trial)
                    self._take_back(job)
                    self._epochs[job.trial] = max(trial.intermediate_values, default=0)
                    if SET_ASIDE in trial.user_attrs:
                        self._set_aside_before.add(job.trial)
        self._suspects.sort(key=lambda job: self.starts(job.trial))
        for request in record.requests():
            if started[request.identity]:
                started[request.identity] -= 1
                continue
            done.add(request.identity)
            self._requests.append(request)
        new = []
        for request in requests:
            if request.identity not in done:
                done.add(request.identity)
                new.append(request)
        record.forget_curves()
        if new:
            # Before the first of them starts: an interrupted sweep is continued like a search.
            record.request(new)
            self._requests += new

    def samplers(self) -> dict[str, dict[str, Any]]:
        """The sampler of each loss, with every setting."""
        return {loss: search.sampler_record() for loss, search in self._losses.items()}

    @property
    def waiting(self) -> Sequence[Job]:
        """Jobs that an earlier run left open, and requests that were not started yet."""
        return [*self._unfinished, *self._suspects, *self._requests]

    @property
    def running(self) -> Mapping[str, Job]:
        """Jobs handed out and not ended, by trial."""
        return self._running

    def next_job(self) -> Job | None:
        """The next job; None when there is nothing to hand out right now.

        Jobs that a crash left unfinished come first, under their old keys; those that may have
        caused it come last.
        """
        if any(self.starts(trial) >= APART for trial in self._running):
            return None
        if self._unfinished:
            return self._start_again(self._unfinished.pop(0))
        job_or_none = self._next_request() or (self._next_searched() if self._search else None)
        if job_or_none is not None:
            notes = self._losses[job_or_none.loss].sampler_notes(job_or_none)
            self._record.start(job_or_none, notes)
            self._losses[job_or_none.loss].started(job_or_none)
            self._running[job_or_none.trial] = job_or_none
        elif self._suspects and not self._waits(self._suspects[0]):
            return self._start_again(self._suspects.pop(0))
        return job_or_none

    def is_finished(self) -> bool:
        """Whether nothing runs and nothing will in this run."""
        if self._running or self._aside or self.waiting:
            return False
        return not self._search or self.search_is_finished()

    def study_is_finished(self) -> bool:
        """Whether nothing of the study is left, be it for this run or for a later one."""
        return self.is_finished() and self.search_is_finished()

    def search_is_finished(self) -> bool:
        """Whether every point and repeat of the plan has ended."""
        return all(search.is_finished() for search in self._losses.values())

    def report(self, trial: str, epoch: int, score: float) -> bool:
        """A trial's score after an epoch; True when it should stop early.

        An epoch that was reported before (its trial went on from an older checkpoint) is not
        counted again; if it is the last one known, a decision to stop there may have been lost.
        """
        job = self._running.get(trial)
        if job is None:
            return False
        last = self.epochs_done(trial)
        if epoch <= last:
            self._clear_if_it_moves(trial, epoch)
            return epoch == last and self._losses[job.loss].is_low(job, epoch)
        self._epochs[trial] = epoch
        self._starts.pop(trial, None)
        self._record.report(trial, epoch, score)
        return self._losses[job.loss].report(job, epoch, score)

    def end(self, trial: str, outcome: Outcome) -> None:
        """How a trial ended. Ending it twice changes nothing."""
        job = self._running.pop(trial, None) or self._aside.pop(trial, None)
        if job is None:
            return
        self._epochs.pop(trial, None)
        self._starts.pop(trial, None)
        search = self._losses[job.loss]
        self._record.end(trial, outcome, told=search.value_for_sampler(job, outcome))
        search.ended(job, outcome)

    def epochs_done(self, trial: str) -> int:
        """Epochs a running trial has reported."""
        return self._epochs.get(trial, 0)

    def starts(self, trial: str) -> int:
        """How often earlier runs died with an open trial that has finished no epoch since."""
        return self._starts.get(trial, 0)

    def give_back(self, trial: str) -> None:
        """Take a job back whose process died; it is handed out again before any new one."""
        job = self._running.pop(trial, None)
        if job is not None:
            self._take_back(job)

    def pause(self) -> None:
        """The run ends in order, so no open trial is to blame: its start does not count."""
        started = [*self._running.values(), *self._aside.values()]
        for job in [*started, *self._unfinished, *self._suspects]:  # taken back, some of them
            trial = job.trial
            self._record.count_starts(trial, self.starts(trial), self.epochs_done(trial))

    def set_aside(self, trial: str, reason: str) -> None:
        """Leave a job open that is not handed out again in this run, but may be ended."""
        self._aside[trial] = self._running.pop(trial)
        self._record.set_aside(trial, reason)

    def was_set_aside(self, trial: str) -> bool:
        """Whether an earlier run left a job open so."""
        return trial in self._set_aside_before

    def progress(self, *, slots: int | None = None, whole: bool = False) -> list[Progress]:
        """How far each loss is, in the plan's order.

        Args:
            slots: Trials that can run at once; more than that are asked for but wait.
            whole: Count the search as planned even if this run leaves it alone.
        """
        running = list(self._running.values())[:slots]
        asked = self.waiting
        return [
            search.progress(
                running=[j for j in running if j.loss == loss],
                waiting=[j for j in asked if j.loss == loss],
                searching=self._search or whole,
                epochs_running=sum(
                    self.epochs_done(j.trial) for j in self._running.values() if j.loss == loss
                ),
            )
            for loss, search in self._losses.items()
        ]

    def ended_jobs(self) -> list[Job]:
        """Every job that has ended, in this run or before."""
        return [job for search in self._losses.values() for job in search.ended_jobs()]

    def incumbent(self, loss: str) -> Job | None:
        """The best finished trial of a loss's search, if any."""
        return self._losses[loss].incumbent()

    def best(self, loss: str, count: int) -> list[str]:
        """Keys of the best finished trials of a loss's search, best first."""
        return self._losses[loss].best(count)

    def _clear_if_it_moves(self, trial: str, epoch: int) -> None:
        """A trial that went on from an old checkpoint runs, though it brings nothing new yet.

        Its first report may be the checkpoint's own.
        """
        if self.starts(trial) and epoch > self._first_report.setdefault(trial, epoch):
            del self._starts[trial]
            self._record.count_starts(trial, 0, self.epochs_done(trial))

    def _waits(self, suspect: Job) -> bool:
        """Whether it has to wait for the others that are suspected to be cleared."""
        others = any(self.starts(trial) >= SUSPECT for trial in self._running)
        return self.starts(suspect.trial) >= APART and others

    def _take_back(self, job: Job) -> None:
        suspected = self.starts(job.trial) >= SUSPECT
        (self._suspects if suspected else self._unfinished).append(job)

    def _start_again(self, job: Job) -> Job:
        trial = job.trial
        self._record.count_starts(trial, self.starts(trial) + 1, self.epochs_done(trial))
        self._first_report.pop(trial, None)
        self._running[trial] = job
        return job

    def _next_request(self) -> Job | None:
        if not self._requests:
            return None
        job = self._requests.pop(0)
        number = self._losses[job.loss].next_number()
        return replace(job, number=number, trial=trial_key(job.loss, number))

    def _next_searched(self) -> Job | None:
        for search in sorted(self._losses.values(), key=lambda s: s.share_asked()):
            job = search.next_job()
            if job is not None:
                return job
        return None
