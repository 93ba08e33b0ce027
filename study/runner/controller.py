"""Trial controller: receives Tune's events, asks the scheduler, informs the tracker.

Tune's searcher and scheduler (`tune_adapters`) call it. It holds no Ray object, so everything that
happens in a cluster reaches the study through these few calls.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from study.config.plan import Plan
from study.runner.display import NullDisplay, ProgressDisplay
from study.runner.failure_policy import FailurePolicy
from study.runner.host_checks import HostChecks
from study.runner.retention import CheckpointRetention
from study.search.job_scheduler import JobScheduler
from study.trials.job import Job, LossProgress, TrialOutcome
from study.trials.table import TrialStateName

ENVIRONMENT_TAGS = (
    "host",
    "gpu",
    "precision",
    "torch_version",
    "cudnn_version",
    "timm_version",
)
"""What a result says about where its epoch ran."""


class TrialListener(Protocol):
    """Receives the events of every trial; the tracker is one."""

    def on_trial_start(self, job: Job) -> None:
        """A trial starts, or starts again."""

    def on_epoch_end(
        self, job: Job, epoch: int, metrics: Mapping[str, float], environment: Mapping[str, str]
    ) -> None:
        """A trial completed an epoch; `environment` has the values of `ENVIRONMENT_TAGS`."""

    def on_trial_end(self, job: Job, outcome: TrialOutcome) -> None:
        """A trial ended."""


class TrialController:
    """Starts trials, handles their results and ends them.

    Args:
        plan: The study.
        scheduler: Decides which job is next and which trial stops early.
        listener: Receives the events.
        cache_dir: Where nodes keep decoded data.
        count_slots: Returns how many trials run at once. One more is started ahead, so that no
            slot waits.
        retention: Keeps and removes checkpoints.
        failure_policy: Decides about failing and lost trials.
        host_checks: Checks what trials report about their hosts.
        display: Shows warnings.
    """

    def __init__(
        self,
        plan: Plan,
        scheduler: JobScheduler,
        listener: TrialListener,
        *,
        cache_dir: Path,
        count_slots: Callable[[], int],
        retention: CheckpointRetention,
        failure_policy: FailurePolicy,
        host_checks: HostChecks,
        display: ProgressDisplay | None = None,
    ) -> None:
        self._plan, self.scheduler, self._listener = plan, scheduler, listener
        self._cache_dir, self._count_slots = cache_dir, count_slots
        self._retention, self._failures, self._host_checks = retention, failure_policy, host_checks
        self._display = display or NullDisplay()
        self._trial_seconds: dict[str, float] = {}
        # One trial waits for a slot, unless the file limits how many run: Tune would start it.
        self._n_jobs_ahead = 1 if plan.file.resources.max_concurrent is None else 0

    def start_next_trial(self) -> dict[str, Any] | None:
        """Return the next trial's spec as plain values; None when nothing can start now."""
        while (
            len(self.scheduler.running_jobs) < self._count_slots() + self._n_jobs_ahead
            and self._failures.may_start
        ):
            job = self.scheduler.next_job()
            if job is None:
                if self.scheduler.running_jobs:
                    return None
                # No trial is left whose start could show that the deferred failures are general.
                confirmed = self._failures.release_failures()
                if not confirmed:
                    return None
                self._end_trials(confirmed)
                continue
            if (spec := self._start_trial(job)) is not None:
                return spec
        return None

    def _start_trial(self, job: Job) -> dict[str, Any] | None:
        """Return the spec of a job; None when the trial fails at once."""
        self._failures.detect_lost_node(job.trial)
        self._listener.on_trial_start(job)
        if error := self._failures.find_crash_error(job.trial):
            epochs_done = self.scheduler.epochs_done(job.trial)
            self._end_trial(job, TrialOutcome("failed", epochs_done, math.nan, error=error))
            self._display.show_warning(f"{job.trial} has failed: {error}")
            return None
        try:
            spec = self._plan.build_trial_spec(
                job, cache_dir=self._cache_dir, checkpoint_dir=self._retention.checkpoint_dir
            )
        except ValueError as error:  # one impossible point must not end the study
            self._end_trial(job, TrialOutcome("failed", 0, math.nan, error=str(error)))
            return None
        self._failures.record_start(job.trial)
        return spec.to_dict()

    @property
    def stop_reason(self) -> str:
        """Why no trial will be started any more though the plan is not done; empty if none."""
        return self._failures.stop_reason

    def get_progress(self) -> list[LossProgress]:
        """Return the progress of each loss; the trial started ahead does not count as running."""
        return self.scheduler.get_progress(slots=self._count_slots())

    def get_running_jobs(self) -> dict[str, Job]:
        """Return the running jobs, without the one started ahead."""
        return dict(itertools.islice(self.scheduler.running_jobs.items(), self._count_slots()))

    def handle_result(self, trial: str, result: Mapping[str, Any]) -> bool:
        """Handle a trial's report after an epoch; return whether the trial must stop."""
        if result["state"] == "held":  # the trial itself runs elsewhere or has ended
            return self._release_gpu(result)
        job = self.scheduler.running_jobs.get(trial)
        if job is None:
            return True
        if result.get("refuses_next_trial"):
            self._failures.expect_refusal()
        state, epoch = result["state"], int(result["epoch"])
        self._trial_seconds[trial] = float(
            result.get("seconds", self._trial_seconds.get(trial, 0.0))
        )
        if state == "lost":
            return self._handle_lost_trial(job, result)
        epochs_done = max(epoch, self.scheduler.epochs_done(trial))
        if state == "failed":
            self._failures.write_traceback(trial, str(result.get("traceback", "")))
            self._fail_trial(job, self._failure_outcome(job, state, epochs_done, result))
            return True
        self._end_trials(self._failures.record_result(trial))
        if state == "diverged":
            self._end_trial(job, self._failure_outcome(job, state, epochs_done, result))
            return True
        self._host_checks.check_result(trial, result)
        score = float(result["score"])
        if not math.isfinite(score):  # a sampler cannot use such a value
            result = {**result, "error": f"the score is {score}"}
            epochs_done = self.scheduler.epochs_done(trial)
            self._end_trial(job, self._failure_outcome(job, "diverged", epochs_done, result))
            return True
        return self._record_epoch(job, epoch, score, result)

    def _record_epoch(self, job: Job, epoch: int, score: float, result: Mapping[str, Any]) -> bool:
        """Record an epoch with a finite score; return whether the trial ends with it."""
        if epoch > self.scheduler.epochs_done(job.trial):  # not repeated from a checkpoint
            self._failures.record_new_epoch(job.trial)
        metrics, host = _extract_metrics(result), str(result.get("host", ""))
        environment = {key: str(result[key]) for key in ENVIRONMENT_TAGS if result.get(key)}
        score_std = float(result.get("score_std", math.nan))
        logged = {**metrics, "score_std": score_std} if math.isfinite(score_std) else metrics
        self._listener.on_epoch_end(job, epoch, logged, environment)
        stops_early = self.scheduler.report_score(job.trial, epoch, score)
        is_finished = result["state"] == "finished"
        if not is_finished and not stops_early:
            return False
        self._end_trial(
            job,
            TrialOutcome(
                state="finished" if is_finished else "stopped",
                epochs=epoch,
                score=score,
                score_std=score_std,
                seconds=self._trial_seconds[job.trial],
                host=host,
                metrics=metrics,
            ),
        )
        return True

    def handle_lost_process(self, trial: str) -> None:
        """Retry a trial whose process died without a report, or refused the trial."""
        job = self.scheduler.running_jobs.get(trial)
        if job is not None:
            self._retry_trial(job, counts=not self._failures.take_refusal())

    def _handle_lost_trial(self, job: Job, result: Mapping[str, Any]) -> bool:
        """Retry a trial that reported why it cannot continue; return whether its process is free.

        The process that reports the last fault of a GPU is not freed: it holds the GPU.
        """
        trial, error = job.trial, str(result.get("error", ""))
        self._failures.write_traceback(trial, str(result.get("traceback", "")))
        gpu = str(result.get("faulty_gpu", ""))
        if not gpu:
            self._retry_trial(job, reason=error)
            return True
        gpu_faults, error = self._failures.gpu_faults, f"{error} ({gpu})"
        gpu_faults.record_fault(gpu, trial)
        is_avoided, is_certain = gpu_faults.is_avoided(gpu), bool(result.get("hardware_fault"))
        self._display.show_warning(
            f"{trial}: {error}; another process continues the trial"
            + ("; this GPU is not used any more in this run" if is_avoided else "")
        )
        if is_avoided:
            gpu_faults.record_holder(_process_name(result))
        if is_avoided and self._count_slots() <= 0:
            self._stop_or_fail(job, error, is_certain=is_certain)
        elif not self._retry_trial(job, reason=error, counts=not is_certain):
            gpu_faults.forgive_faults(trial)
        return not is_avoided or self._release_gpu(result)

    def _stop_or_fail(self, job: Job, error: str, *, is_certain: bool) -> None:
        """Stop the run at the last GPU's last fault, or blame the trial that does so repeatedly."""
        if is_certain or not self.scheduler.was_deferred(job.trial):
            self._failures.stop_for_gpus(job.trial, error)
            return
        self._failures.gpu_faults.forgive_faults(job.trial)
        self._fail_lost_trial(job, error)

    def _release_gpu(self, result: Mapping[str, Any]) -> bool:
        """Return whether a process that holds a GPU may end."""
        gpu_faults, process = self._failures.gpu_faults, _process_name(result)
        is_over = self.scheduler.is_finished() or bool(self.stop_reason)
        if is_over or not gpu_faults.is_avoided(str(result["faulty_gpu"])):
            gpu_faults.remove_holder(process)
            return True
        gpu_faults.record_holder(process)
        return False

    def _retry_trial(self, job: Job, *, reason: str = "", counts: bool = True) -> bool:
        """Requeue a trial, or fail it if it was lost too often; return whether it was requeued."""
        error = self._failures.retry_lost_process(job.trial, counts=counts)
        if error:
            self._fail_lost_trial(job, reason or error)
        return not error

    def _fail_lost_trial(self, job: Job, error: str) -> None:
        epochs_done = self.scheduler.epochs_done(job.trial)
        outcome = self._failure_outcome(job, "failed", epochs_done, {"error": error})
        self._fail_trial(job, outcome)

    def _fail_trial(self, job: Job, outcome: TrialOutcome) -> None:
        if not self._failures.defer_failure(job, outcome):
            self._end_trial(job, outcome)

    def _end_trials(self, failures: Sequence[tuple[Job, TrialOutcome]]) -> None:
        for job, outcome in failures:
            self._end_trial(job, outcome)

    def _end_trial(self, job: Job, outcome: TrialOutcome) -> None:
        # The tracker writes first: if the process dies between the two lines, the trial is still
        # open in the journal and ends again after a resume, which changes nothing in the tracker.
        self._failures.record_end(job.trial)
        self._listener.on_trial_end(job, outcome)
        self.scheduler.end_trial(job.trial, outcome)
        self._trial_seconds.pop(job.trial, None)
        self._retention.update_after(job)

    def _failure_outcome(
        self, job: Job, state: TrialStateName, epochs: int, result: Mapping[str, Any]
    ) -> TrialOutcome:
        return TrialOutcome(
            state=state,
            epochs=epochs,
            score=math.nan,
            seconds=self._trial_seconds.get(job.trial, 0.0),
            error=str(result.get("error", "")),
            host=str(result.get("host", "")),
        )


def _process_name(result: Mapping[str, Any]) -> str:
    return f"{result.get('hostname', '')}:{result.get('pid', '')}"  # Tune adds both


def _extract_metrics(result: Mapping[str, Any]) -> dict[str, float]:
    prefix = "metrics/"  # Tune flattens nested results
    flat = {k.removeprefix(prefix): v for k, v in result.items() if k.startswith(prefix)}
    return {k: float(v) for k, v in (flat or result.get("metrics", {})).items()}
