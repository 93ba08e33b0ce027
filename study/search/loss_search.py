"""Search of one loss: the order of its jobs, its pruners, its sampler and its incumbent."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from optuna.trial import FrozenTrial

from search_spaces.space import ParamValue, range_endpoints
from study.config.plan import Plan
from study.search.asha import SuccessiveHalving
from study.search.curve_prediction import CurvePredictor
from study.search.designs import sobol_point
from study.search.interleaving import PointCounts, PointInterleaver
from study.search.journal import SAMPLER_VALUE_ATTR, is_search_job
from study.search.loss_sampler import LossSampler
from study.trials.job import Job, LossProgress, TrialOutcome, trial_key
from study.trials.table import SEARCH_ORIGINS, TrialOrigin
from trainables.utils.seeding import derive_seed


class LossSearch:
    """Search state of one loss.

    Learning curves are not kept, so memory does not grow with the number of epochs.

    Args:
        plan: Plan of the study.
        loss: Registry name of the loss.
    """

    def __init__(self, plan: Plan, loss: str) -> None:
        self._plan, self.loss = plan, loss
        self._space = plan.spaces[loss]
        self._search_config = plan.file.search
        self._full_epochs = plan.epochs_per_trial(loss)
        self._published_points = plan.published_points(loss)
        stop = self._search_config.stop_early
        # A trial whose backbone is still frozen must not be compared with one that trains it.
        warmup = plan.resolve_settings(loss, plan.example_point(loss))[0].warmup_epochs
        if "warmup_epochs" in self._space.distributions:
            warmup = max(
                int(v) for v in range_endpoints(self._space.distributions["warmup_epochs"])
            )
        self._halving = SuccessiveHalving(
            epochs=self._full_epochs if stop.enabled else 0,
            grace=max(stop.grace_epochs, warmup + 1),
            reduction=stop.reduction,
        )
        self._curve_predictor = CurvePredictor(
            epochs=self._full_epochs if stop.enabled else 0,
            grace=max(stop.grace_epochs, warmup + 1),
            rungs=self._halving.milestones,
        )
        self._jobs: dict[str, Job] = {}
        self._outcomes: dict[str, TrialOutcome] = {}
        self._state_counts: Counter[str] = Counter()
        self._epochs_done = 0
        self._started_counts: dict[TrialOrigin, int] = dict.fromkeys(SEARCH_ORIGINS, 0)
        self._search_jobs: list[Job] = []
        self._n_open_points = 0
        self._n_finished_points = 0  # points of the search that reached full length
        self._interleaver = PointInterleaver(plan, loss)
        self._best_job: Job | None = None
        # Failed repeats count as well, like failed points: every loss has the same budget. The
        # analyses count the seeds that have a score and report the failures.
        self._started_repeats: set[str] = set()
        self.sampler = LossSampler(plan, loss)
        self._next_number = 0

    def describe_sampler(self) -> dict[str, Any]:
        """Return the settings of the sampler, its seed and the epochs at which trials may stop."""
        return {
            **self.sampler.describe_settings(),
            "seed": self._search_config.seed,
            "sobol": {"share": self._search_config.sobol_share, "scrambled": True},
            "repeats": self._search_config.repeats,
            "stopped_at": list(self._halving.milestones),
            "foretold_at": list(self._curve_predictor.prediction_epochs),
            "reduction": self._search_config.stop_early.reduction,
        }

    # Next jobs

    def take_trial_number(self) -> int:
        """Reserve and return the next trial number of this loss."""
        self._next_number += 1
        return self._next_number - 1

    def next_job(self) -> Job | None:
        """Return the next job of the search; None if it must wait or is complete."""
        for stage in range(len(self._plan.stages)):
            n_published = self._started_counts["published"]
            if n_published < len(self._published_points):
                return self._make_job("published", self._published_points[n_published])
            n_sobol, n_sampled = self._started_counts["sobol"], self._started_counts["bayes"]
            source = self._interleaver.next_source(
                stage, PointCounts(n_sobol, n_sampled), n_ended=self._n_finished_points
            )
            if source == "sobol":
                seed = self._search_config.seed
                return self._make_job("sobol", sobol_point(self._space, n_sobol, seed=seed))
            if source == "bayes":
                return self._make_job("bayes", self.sampler.sample_point(n_sampled))
            # The analyses need repeated seeds, the search does not: repeats come last and keep the
            # slots busy while the last points of the stage are running.
            repeat = self._next_repeat(self._points_to_repeat())
            if repeat is not None:
                return repeat
            # The incumbent of a stage is final when the stage has ended, which is certain once a
            # later stage has begun.
            if self._n_open_points and len(self._search_jobs) <= self._points_up_to(stage):
                return None
            repeat = self._next_repeat(self._incumbent_of_stage(stage))
            if repeat is not None:
                return repeat
        return None

    def is_finished(self) -> bool:
        """Whether all planned jobs have ended."""
        if len(self._outcomes) < len(self._jobs):
            return False
        last = len(self._plan.stages) - 1
        all_started = (
            self._started_counts["published"] >= len(self._published_points)
            and self._started_counts["sobol"] >= self._plan.n_sobol_points(self.loss, last)
            and self._started_counts["bayes"] >= self._plan.n_sampler_points(self.loss, last)
        )
        return all_started and self._count_open_repeats() == 0

    def count_planned_jobs(self) -> int:
        """Return the number of jobs of the search, repeats included, as far as known now."""
        n_points = self._plan.n_points
        if len(self._search_jobs) >= n_points and not self._n_open_points:
            return n_points + len(self._started_repeats) + self._count_open_repeats()
        return max(self._plan.max_trials(self.loss), n_points + len(self._started_repeats))

    def fraction_started(self) -> float:
        """Return the fraction of planned jobs that were started; the lowest loss comes first."""
        n_started = len(self._search_jobs) + len(self._started_repeats)
        return n_started / max(self.count_planned_jobs(), 1)

    def get_sampler_attrs(self, job: Job) -> dict[str, Any]:
        """Return the attributes that the sampler stored with its point, for the journal."""
        return self.sampler.get_system_attrs() if job.origin == "bayes" else {}

    # Events

    def start_job(self, job: Job, sampler_attrs: Mapping[str, Any] | None = None) -> None:
        """Register a started job.

        Args:
            job: The job, already written to the journal.
            sampler_attrs: Recorded attributes of the sampler, when the journal is replayed.
        """
        self._jobs[job.trial] = job
        self._next_number = max(self._next_number, job.number + 1)
        if is_search_job(job):
            self._started_counts[job.origin] += 1
            self._search_jobs.append(job)
            self._n_open_points += 1
            self.sampler.add_trial(job, sampler_attrs)
        elif job.origin == "repeat":
            self._started_repeats.add(job.identity_key)

    def report_score(self, job: Job, epoch: int, score: float) -> bool:
        """Record a score after an epoch and return whether the trial should stop early."""
        if job.split != "test":
            self._curve_predictor.report_score(job.trial, epoch, score)
        if not is_search_job(job) or epoch >= self._full_epochs:
            return False
        is_low = self._halving.report_score(job.trial, epoch, score)
        # Only sampled points may be stopped: Sobol points, repeats, sweeps and confirmations must
        # reach full length for the analyses to be unbiased.
        return job.origin == "bayes" and self._should_stop(job, epoch, is_low=is_low)

    def should_stop_at(self, job: Job, epoch: int) -> bool:
        """Whether a score that was recorded earlier should have stopped the trial."""
        is_low = self._halving.should_stop_at(job.trial, epoch)
        return job.origin == "bayes" and self._should_stop(job, epoch, is_low=is_low)

    def end_job(self, job: Job, outcome: TrialOutcome) -> None:
        """Register the outcome of a job."""
        self._record_outcome(job, outcome, self.value_for_sampler(job, outcome))

    def replay_trial(self, trial: FrozenTrial, job: Job, outcome: TrialOutcome | None) -> None:
        """Register a trial of the journal, as if it had started and ended in this process.

        Args:
            trial: The recorded trial, with its learning curve.
            job: Its job.
            outcome: Its outcome; None if it is open.
        """
        curve = trial.intermediate_values
        self.start_job(job, trial.system_attrs)
        if job.split != "test":
            self._curve_predictor.replay_curve(job.trial, curve)
        if is_search_job(job):
            self._halving.replay_curve(
                job.trial, {e: s for e, s in curve.items() if e < self._full_epochs}
            )
        if outcome is not None:
            # A crash may have left a sampler value of a stop that did not happen, and an extended
            # study may have another sampler.
            uses_value = outcome.state == "stopped" and self.sampler.needs_full_values
            self._record_outcome(
                job, outcome, trial.user_attrs.get(SAMPLER_VALUE_ATTR) if uses_value else None
            )

    def value_for_sampler(self, job: Job, outcome: TrialOutcome) -> float | None:
        """Return the full-length score to report for a stopped trial; None for its own score."""
        needs_value = self.sampler.needs_full_values
        if not needs_value or outcome.state != "stopped" or not is_search_job(job):
            return None
        return self._curve_predictor.predict_final_score(job.trial, outcome)

    def list_ended_jobs(self) -> list[Job]:
        """Return every job of this loss that has ended."""
        return [self._jobs[trial] for trial in self._outcomes]

    def get_incumbent(self) -> Job | None:
        """Return the job of the best finished trial of the search; None if there is none."""
        return self._best_job

    def best_trials(self, count: int) -> list[str]:
        """Return the keys of the best finished trials of the search, best first."""
        ranking = [
            (-outcome.score, self._jobs[trial].number, trial)
            for trial, outcome in self._outcomes.items()
            if outcome.state == "finished" and is_search_job(self._jobs[trial])
        ]
        return [trial for _, _, trial in sorted(ranking)[:count]]

    def get_progress(
        self,
        *,
        running: Sequence[Job],
        waiting: Sequence[Job],
        searching: bool,
        epochs_running: int,
    ) -> LossProgress:
        """Return the progress of this loss.

        Args:
            running: Its running jobs.
            waiting: Its jobs that wait to be started.
            searching: Whether the rest of the search counts as planned.
            epochs_running: Epochs completed by running trials.
        """
        ended, best = len(self._outcomes), self._best_job
        planned = max(self.count_planned_jobs() if searching else 0, len(self._jobs)) + len(
            [j for j in waiting if j.trial not in self._jobs]
        )
        done = self._epochs_done + epochs_running
        open_epochs = (planned - ended) * self._full_epochs - epochs_running
        return LossProgress(
            loss=self.loss,
            planned=planned,
            ended=ended,
            running=len(running),
            stopped=self._state_counts["stopped"],
            diverged=self._state_counts["diverged"],
            failed=self._state_counts["failed"],
            best=self._outcomes[best.trial].score if best else math.nan,
            best_trial=best.trial if best else "",
            epochs_done=done,
            epochs_planned=done + max(open_epochs, 0),
        )

    # Internals

    def _make_job(
        self, origin: TrialOrigin, params: Mapping[str, ParamValue], seed: int | None = None
    ) -> Job:
        number = self._next_number
        if seed is None:
            # Derived from the index within the origin: which origin is next may depend on timing.
            index = self._started_counts[origin]
            seed = derive_seed(self._search_config.seed, "trial", self.loss, origin, index) % 2**31
        return Job(
            trial=trial_key(self.loss, number),
            loss=self.loss,
            number=number,
            origin=origin,
            params=dict(params),
            seed=seed,
        )

    def _should_stop(self, job: Job, epoch: int, *, is_low: bool) -> bool:
        """Decide by the predicted final score, or by the rank at a rung if unpredictable."""
        best = self._outcomes[self._best_job.trial].score if self._best_job else -math.inf
        cannot_win = self._curve_predictor.cannot_reach(job.trial, epoch, best)
        return is_low if cannot_win is None else cannot_win

    def _points_to_repeat(self) -> list[Job]:
        """Return the points that are repeated besides the incumbent: published, some Sobol."""
        count = self._plan.n_repeated_sobol_points(self.loss)
        published = [j for j in self._search_jobs if j.origin == "published"][:1]
        return published + [j for j in self._search_jobs if j.origin == "sobol"][:count]

    def _points_up_to(self, stage: int) -> int:
        return sum(s.points for s in self._plan.stages[: stage + 1])

    def _incumbent_of_stage(self, stage: int) -> list[Job]:
        """Return the best finished point of the search up to the end of a stage."""
        if stage == len(self._plan.stages) - 1:
            return [self._best_job] if self._best_job else []
        finished = [
            job
            for job in self._search_jobs[: self._points_up_to(stage)]
            if job.trial in self._outcomes and self._outcomes[job.trial].state == "finished"
        ]
        best = max(finished, key=lambda j: self._outcomes[j.trial].score, default=None)
        return [best] if best else []

    def _count_open_repeats(self) -> int:
        """Return the number of planned repeats, as far as known, that were not started."""
        points = self._points_to_repeat()
        for stage in range(len(self._plan.stages)):
            points += self._incumbent_of_stage(stage)
        planned = {j.identity_key for point in points for j in self._make_repeats(point)}
        return len(planned - self._started_repeats)

    def _make_repeats(self, job: Job) -> list[Job]:
        """Return jobs at the same point with hashed seeds; replicas use the seeds next to it."""
        seeds = [
            derive_seed(job.seed, "repeat", k) % 2**31
            for k in range(1, self._search_config.repeats)
        ]
        return [self._make_job("repeat", job.params, seed) for seed in seeds]

    def _next_repeat(self, jobs: Sequence[Job]) -> Job | None:
        for job in jobs:
            for repeat in self._make_repeats(job):
                if repeat.identity_key not in self._started_repeats:
                    return repeat
        return None

    def _record_outcome(self, job: Job, outcome: TrialOutcome, full_value: float | None) -> None:
        """Register an outcome of this process or of the journal."""
        self._outcomes[job.trial] = outcome
        self._state_counts[outcome.state] += 1
        self._epochs_done += outcome.epochs
        self._curve_predictor.end_trial(job.trial, outcome)
        if not is_search_job(job):
            return
        self._n_open_points -= 1
        self._n_finished_points += outcome.state == "finished"
        self.sampler.tell_outcome(job.trial, outcome, full_value)
        if outcome.state == "finished" and job.origin != "bayes":
            self._halving.add_final_score(job.trial, outcome.score)
        if outcome.state == "finished" and self._beats_incumbent(job, outcome.score):
            self._best_job = job

    def _beats_incumbent(self, job: Job, score: float) -> bool:
        """Whether a score beats the incumbent; of equal scores the lower trial number wins."""
        if self._best_job is None:
            return True
        best = self._outcomes[self._best_job.trial].score
        return (score, -job.number) > (best, -self._best_job.number)
