"""The search of one loss: which of its points is next, and what does its sampler know?"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from optuna.trial import FrozenTrial

from search_spaces.space import Value
from study.corners import corners
from study.jobs import Job, Outcome, Progress, trial_key
from study.plan import Plan
from study.table import Origin
from study.tuning.asha import Rungs
from study.tuning.choosing import Chooser
from study.tuning.order import Counts, Order
from study.tuning.outlook import Outlook
from study.tuning.record import TOLD, Record, is_search, job_of, outcome_of
from study.tuning.sampling import sobol_point
from trainables.seeding import derive


class LossSearch:
    """One loss of a study.

    Learning curves are not held: memory does not grow with the number of epochs.

    Args:
        plan: The study.
        loss: Registry name.
        record: Read once; the ledger writes to it.
    """

    def __init__(self, plan: Plan, loss: str, record: Record) -> None:
        self._plan, self.loss = plan, loss
        self._space = plan.spaces[loss]
        self._search = plan.file.search
        self._epochs = plan.epochs(loss)
        self._published = plan.published(loss)
        stop = self._search.stop_early
        # A trial with a frozen backbone must not be judged against one that already trains it.
        warmup = plan.settings(loss, plan.example(loss))[0].warmup_epochs
        if "warmup_epochs" in self._space.distributions:
            warmup = max(int(v) for v in corners(self._space.distributions["warmup_epochs"]))
        self._rungs = Rungs(
            epochs=self._epochs if stop.enabled else 0,
            grace=max(stop.grace_epochs, warmup + 1),
            reduction=stop.reduction,
        )
        self._outlook = Outlook(
            epochs=self._epochs if stop.enabled else 0,
            grace=max(stop.grace_epochs, warmup + 1),
            rungs=self._rungs.milestones,
        )
        self._jobs: dict[str, Job] = {}
        self._outcomes: dict[str, Outcome] = {}
        self._states: Counter[str] = Counter()
        self._epochs_done = 0
        self._asked: dict[Origin, int] = dict.fromkeys(("published", "sobol", "bayes"), 0)
        self._searched: list[Job] = []
        self._open_points = 0
        self._scored = 0  # points of the search that reached full length
        self._order = Order(plan, loss)
        self._best: Job | None = None
        # Those that failed, too: like a point that failed they were this loss's budget, which is
        # that of every other; the analyses count the seeds that have a score, and say what failed.
        self._repeated: set[str] = set()
        self._chooser = Chooser(plan, loss)
        self._mirror = self._chooser.mirror
        self._numbers = 0
        for trial in record.trials(loss):
            self._replay(trial)

    def sampler_record(self) -> dict[str, Any]:
        """The sampler of this loss with every setting, its seed, and where trials are stopped."""
        return {
            **self._chooser.record(),
            "seed": self._search.seed,
            "sobol": {"share": self._search.sobol_share, "scrambled": True},
            "repeats": self._search.repeats,
            "stopped_at": list(self._rungs.milestones),
            "foretold_at": list(self._outlook.checks),
            "reduction": self._search.stop_early.reduction,
        }

    # What is next?

    def next_number(self) -> int:
        """A number no trial of this loss has."""
        self._numbers += 1
        return self._numbers - 1

    def next_job(self) -> Job | None:
        """The next job of the search; None when it must wait or is done."""
        for i in range(len(self._plan.stages)):
            if self._asked["published"] < len(self._published):
                return self._job("published", self._published[self._asked["published"]])
            sobol, chosen = self._asked["sobol"], self._asked["bayes"]
            part = self._order.next_part(i, Counts(sobol, chosen), ended=self._scored)
            if part == "sobol":
                seed = self._search.seed
                return self._job("sobol", sobol_point(self._space, sobol, seed=seed))
            if part == "bayes":
                return self._job("bayes", self._chooser.choose(chosen))
            # Seed noise is needed by the analyses, not by the search: its repeats come last, and
            # keep the slots busy while the stage's last points end.
            repeat = self._next_repeat(self._repeated_points())
            if repeat is not None:
                return repeat
            # The incumbent is known only when this stage has ended, as it has if a later one began.
            if self._open_points and len(self._searched) <= self._points_up_to(i):
                return None
            repeat = self._next_repeat(self._incumbent_of_stage(i))
            if repeat is not None:
                return repeat
        return None

    def is_finished(self) -> bool:
        """Whether all planned jobs have ended."""
        if len(self._outcomes) < len(self._jobs):
            return False
        last = len(self._plan.stages) - 1
        asked = (
            self._asked["published"] >= len(self._published)
            and self._asked["sobol"] >= self._plan.sobol(self.loss, last)
            and self._asked["bayes"] >= self._plan.chosen(self.loss, last)
        )
        return asked and self._open_repeats() == 0

    def planned(self) -> int:
        """Jobs of the search, repeats included, as far as is known now."""
        points = self._plan.points(self.loss)
        if len(self._searched) >= points and not self._open_points:
            return points + len(self._repeated) + self._open_repeats()
        return max(self._plan.trials(self.loss), points + len(self._repeated))

    def share_asked(self) -> float:
        """How much of the plan was handed out: the loss with the least is served first."""
        return (len(self._searched) + len(self._repeated)) / max(self.planned(), 1)

    def sampler_notes(self, job: Job) -> dict[str, Any]:
        """What the sampler wrote on its own point, for the record."""
        return self._mirror.notes() if job.origin == "bayes" else {}

    # What happened?

    def started(self, job: Job, notes: Mapping[str, Any] | None = None) -> None:
        """A job was written down and handed out; `notes` are the recorded ones of its sampler."""
        self._jobs[job.trial] = job
        self._numbers = max(self._numbers, job.number + 1)
        if is_search(job):
            self._asked[job.origin] += 1
            self._searched.append(job)
            self._open_points += 1
            self._mirror.add(job, notes)
        elif job.origin == "repeat":
            self._repeated.add(job.identity)

    def report(self, job: Job, epoch: int, score: float) -> bool:
        """A score after an epoch; True when the trial should stop early."""
        if job.split != "test":
            self._outlook.report(job.trial, epoch, score)
        if not is_search(job) or epoch >= self._epochs:
            return False
        low = self._rungs.report(job.trial, epoch, score)
        # Only the sampler's own points may be stopped: the space-filling part and every repeat,
        # sweep and confirmation must reach full length for the analyses to be unbiased.
        return job.origin == "bayes" and self._is_to_stop(job, epoch, low=low)

    def is_low(self, job: Job, epoch: int) -> bool:
        """Whether a score that was recorded before should have stopped the trial."""
        low = self._rungs.is_low(job.trial, epoch)
        return job.origin == "bayes" and self._is_to_stop(job, epoch, low=low)

    def ended(self, job: Job, outcome: Outcome) -> None:
        """A job ended."""
        self._take(job, outcome, self.value_for_sampler(job, outcome))

    def value_for_sampler(self, job: Job, outcome: Outcome) -> float | None:
        """What a sampler that ignores stopped trials is told of one; None: nothing special."""
        corrects = self._chooser.needs_full_values
        if not corrects or outcome.state != "stopped" or not is_search(job):
            return None
        return self._outlook.value(job.trial, outcome)

    def ended_jobs(self) -> list[Job]:
        """Every job of this loss that has ended."""
        return [self._jobs[trial] for trial in self._outcomes]

    def incumbent(self) -> Job | None:
        """The best finished trial of the search."""
        return self._best

    def best(self, count: int) -> list[str]:
        """Keys of the best finished trials of the search, best first."""
        done = [
            (-outcome.score, self._jobs[trial].number, trial)
            for trial, outcome in self._outcomes.items()
            if outcome.state == "finished" and is_search(self._jobs[trial])
        ]
        return [trial for _, _, trial in sorted(done)[:count]]

    def progress(
        self,
        *,
        running: Sequence[Job],
        waiting: Sequence[Job],
        searching: bool,
        epochs_running: int,
    ) -> Progress:
        """How far this loss is."""
        ended, best = len(self._outcomes), self._best
        planned = max(self.planned() if searching else 0, len(self._jobs)) + len(
            [j for j in waiting if j.trial not in self._jobs]
        )
        done = self._epochs_done + epochs_running
        open_epochs = (planned - ended) * self._epochs - epochs_running
        return Progress(
            loss=self.loss,
            planned=planned,
            ended=ended,
            running=len(running),
            stopped=self._states["stopped"],
            diverged=self._states["diverged"],
            failed=self._states["failed"],
            best=self._outcomes[best.trial].score if best else math.nan,
            best_trial=best.trial if best else "",
            epochs_done=done,
            epochs_planned=done + max(open_epochs, 0),
        )

    # Inside

    def _job(self, origin: Origin, values: Mapping[str, Value], seed: int | None = None) -> Job:
        number = self._numbers
        if seed is None:
            # By its place among its like: which part comes next may depend on the clock.
            place = self._asked[origin]
            seed = derive(self._search.seed, "trial", self.loss, origin, place) % 2**31
        return Job(
            trial=trial_key(self.loss, number),
            loss=self.loss,
            number=number,
            origin=origin,
            values=dict(values),
            seed=seed,
        )

    def _is_to_stop(self, job: Job, epoch: int, *, low: bool) -> bool:
        """By the trial's rank at a rung, until enough learning curves tell what it will reach."""
        best = self._outcomes[self._best.trial].score if self._best else -math.inf
        hopeless = self._outlook.is_hopeless(job.trial, epoch, best)
        return low if hopeless is None else hopeless

    def _repeated_points(self) -> list[Job]:
        """Points whose seeds are repeated before the sampler starts: published, some Sobol."""
        count = self._plan.repeated_sobol(self.loss)
        published = [j for j in self._searched if j.origin == "published"][:1]
        return published + [j for j in self._searched if j.origin == "sobol"][:count]

    def _points_up_to(self, stage: int) -> int:
        return sum(s.points for s in self._plan.stages[: stage + 1])

    def _incumbent_of_stage(self, stage: int) -> list[Job]:
        """The best finished point of the search up to the end of a stage."""
        if stage == len(self._plan.stages) - 1:
            return [self._best] if self._best else []
        finished = [
            job
            for job in self._searched[: self._points_up_to(stage)]
            if job.trial in self._outcomes and self._outcomes[job.trial].state == "finished"
        ]
        best = max(finished, key=lambda j: self._outcomes[j.trial].score, default=None)
        return [best] if best else []

    def _open_repeats(self) -> int:
        """Repeats that are known to be wanted and were not asked yet."""
        points = self._repeated_points()
        for stage in range(len(self._plan.stages)):
            points += self._incumbent_of_stage(stage)
        wanted = {j.identity for point in points for j in self._repeats_of(point)}
        return len(wanted - self._repeated)

    def _repeats_of(self, job: Job) -> list[Job]:
        """The same point with other seeds (far apart: neighbouring seeds are used by replicas)."""
        seeds = [derive(job.seed, "repeat", k) % 2**31 for k in range(1, self._search.repeats)]
        return [self._job("repeat", job.values, seed) for seed in seeds]

    def _next_repeat(self, jobs: Sequence[Job]) -> Job | None:
        for job in jobs:
            for repeat in self._repeats_of(job):
                if repeat.identity not in self._repeated:
                    return repeat
        return None

    def _take(self, job: Job, outcome: Outcome, told: float | None) -> None:
        """An outcome enters the books, from a running study or from the record."""
        self._outcomes[job.trial] = outcome
        self._states[outcome.state] += 1
        self._epochs_done += outcome.epochs
        self._outlook.ended(job.trial, outcome)
        if not is_search(job):
            return
        self._open_points -= 1
        self._scored += outcome.state == "finished"
        self._mirror.tell(job.trial, outcome, told)
        if outcome.state == "finished" and job.origin != "bayes":
            self._rungs.witness(job.trial, outcome.score)
        if outcome.state == "finished" and self._is_better(job, outcome.score):
            self._best = job

    def _is_better(self, job: Job, score: float) -> bool:
        """Of equals the one that was asked first is the best, in whatever order they end."""
        if self._best is None:
            return True
        best = self._outcomes[self._best.trial].score
        return (score, -job.number) > (best, -self._best.number)

    def _replay(self, trial: FrozenTrial) -> None:
        """Take a recorded trial into account, as if it had been asked and ended here."""
        job, outcome = job_of(trial), outcome_of(trial)
        curve = trial.intermediate_values
        self.started(job, trial.system_attrs)
        if job.split != "test":
            self._outlook.replay(job.trial, curve)
        if is_search(job):
            self._rungs.replay(job.trial, {e: s for e, s in curve.items() if e < self._epochs})
        if outcome is not None:
            # A stop that was being written when the power went may not have come about, and an
            # extended study may have another sampler.
            corrects = outcome.state == "stopped" and self._chooser.needs_full_values
            self._take(job, outcome, trial.user_attrs.get(TOLD) if corrects else None)
