"""Failure policy: whether a failing or lost trial is retried, deferred or failed."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from pathlib import Path

from study.runner.circuit_breaker import CircuitBreaker
from study.runner.gpu_faults import GpuFaults
from study.search.job_scheduler import CRASHES_TO_FAIL, JobScheduler
from study.trials.job import Job, TrialOutcome
from study.utils.redaction import redact

MAX_LOST_PROCESSES = 5
"""Lost processes of a trial within one epoch; one more and the trial has failed."""


class FailurePolicy:
    """Accounts for failures, lost processes and lost nodes of a run's trials.

    - A trial that fails before its first epoch is deferred: the cause may affect every trial (see
      `CircuitBreaker`). It has failed if it fails the same way after the study is resumed.
    - A lost process is retried, up to `MAX_LOST_PROCESSES` times without a new epoch.
    - A lost node is a pause, however often it happens (spot instances).
    - A hardware fault of a GPU does not count against the trial; the GPU is avoided after
      `MAX_GPU_FAULTS` faults, which limits their number. Other errors of a GPU count like lost
      processes, because a kernel may fail on the point's sizes: a trial whose faults follow it
      over several GPUs has failed, and the GPUs are used again.
    - If the last usable GPU is to be avoided, the run stops and the trial is deferred.
    - A trial during which the whole run crashed again and again fails at its next start.

    Args:
        scheduler: Defers and requeues trials.
        errors_dir: Where tracebacks of failed trials are written; None writes none.
        count_lost_nodes: Returns how many nodes the cluster has lost so far.
        gpu_faults: Faults of GPUs in this run; None starts with none.
    """

    def __init__(
        self,
        scheduler: JobScheduler,
        *,
        errors_dir: Path | None = None,
        count_lost_nodes: Callable[[], int] = lambda: 0,
        gpu_faults: GpuFaults | None = None,
    ) -> None:
        self._scheduler, self._errors_dir = scheduler, errors_dir
        self._count_lost_nodes = count_lost_nodes
        self._breaker = CircuitBreaker()
        self._lost_processes: dict[str, int] = {}
        self._lost_nodes_seen: dict[str, int] = {}
        self._n_expected_refusals = 0
        self._gpu_stop_reason = ""
        self.gpu_faults = gpu_faults or GpuFaults()

    @property
    def may_start(self) -> bool:
        """Whether trials may be started now."""
        return not self._breaker.is_open and not self._gpu_stop_reason

    @property
    def stop_reason(self) -> str:
        """Why no trial will be started any more though the plan is not done; empty if none."""
        return self._gpu_stop_reason or self._breaker.stop_reason

    def record_start(self, trial: str) -> None:
        """A trial was handed to Tune."""
        self._breaker.record_start(trial)

    def record_result(self, trial: str) -> Sequence[tuple[Job, TrialOutcome]]:
        """A trial completed an epoch; return the deferred failures that were the trials' own."""
        return self._breaker.record_progress(trial)

    def record_new_epoch(self, trial: str) -> None:
        """A trial completed an epoch it had not reached before."""
        self._lost_processes.pop(trial, None)

    def record_end(self, trial: str) -> None:
        """A trial ended."""
        self._breaker.record_exit(trial)
        self._lost_nodes_seen.pop(trial, None)

    def release_failures(self) -> Sequence[tuple[Job, TrialOutcome]]:
        """Return the deferred failures when nothing is left to start that could tell more."""
        return self._breaker.release_failures()

    def defer_failure(self, job: Job, outcome: TrialOutcome) -> bool:
        """Defer a failure that may affect every trial; return whether it was deferred."""
        if outcome.epochs or self._scheduler.was_deferred(job.trial):
            return False
        self._breaker.record_failure(job, outcome)
        self._scheduler.defer_trial(job.trial, outcome.error)
        return True

    def expect_refusal(self) -> None:
        """A process can train no further trial: the next one that Tune gives to it is lost."""
        self._n_expected_refusals += 1

    def take_refusal(self) -> bool:
        """Whether a process that was lost without a report may be one that refused a trial."""
        is_expected = self._n_expected_refusals > 0
        self._n_expected_refusals -= is_expected
        return is_expected

    def stop_for_gpus(self, trial: str, error: str) -> None:
        """Stop the run because no GPU is left; the trial with the last fault stays open."""
        self._breaker.record_exit(trial)
        self._gpu_stop_reason = f"no GPU without repeated faults is left ({error})"
        self._scheduler.defer_trial(trial, error)

    def retry_lost_process(self, trial: str, *, counts: bool = True) -> str:
        """Requeue a trial whose process was lost.

        Args:
            trial: Key.
            counts: Whether the trial may be the reason.

        Returns:
            Empty if the trial will be retried, otherwise the error with which it fails.
        """
        self._breaker.record_exit(trial)
        if not self.detect_lost_node(trial) and counts:  # a lost node does not count
            self._lost_processes[trial] = self._lost_processes.get(trial, 0) + 1
        times = self._lost_processes.get(trial, 0)
        if times > MAX_LOST_PROCESSES:
            return f"its process died {times} times in the same epoch"
        self._scheduler.requeue_trial(trial)
        return ""

    def find_crash_error(self, trial: str) -> str:
        """Return the error of a trial with which run after run crashed; empty if it may start."""
        if (crashes := self._scheduler.count_crashes(trial)) < CRASHES_TO_FAIL:
            return ""
        return (
            f"the run crashed {crashes} times before this trial completed another epoch; it may "
            "need more memory than the machine has"
        )

    def detect_lost_node(self, trial: str) -> bool:
        """Whether a node was lost since the last check; then the last lost process does not count.

        Ranks notice a dead node at once and exit, but Ray declares it dead only later, so the
        lost process may have been counted in between.
        """
        lost = self._count_lost_nodes()
        is_more = lost > self._lost_nodes_seen.get(trial, lost)
        self._lost_nodes_seen[trial] = lost
        if is_more and self._lost_processes.get(trial):
            self._lost_processes[trial] -= 1
        return is_more

    def write_traceback(self, trial: str, text: str) -> None:
        """Write a traceback to the study's directory: the node it comes from may be gone later."""
        if text and self._errors_dir is not None:
            with contextlib.suppress(OSError):  # a full disk must not hide the error itself
                self._errors_dir.mkdir(parents=True, exist_ok=True)
                path = self._errors_dir / f"{trial}.txt"
                path.write_text(redact(text), encoding="utf-8")
