"""Trial controllers without Ray, for tests that call them in place of Tune."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from study.config.plan import Plan
from study.runner.controller import TrialController, TrialListener
from study.runner.display import ProgressDisplay
from study.runner.failure_policy import FailurePolicy
from study.runner.gpu_faults import GpuFaults
from study.runner.host_checks import HostChecks
from study.runner.retention import CheckpointRetention
from study.trials.job import Job, TrialOutcome
from tests.support.scheduler_simulation import open_scheduler


class RecordingListener:
    """Listener that stores the outcome of every ended trial."""

    def __init__(self) -> None:
        self.outcomes: dict[str, TrialOutcome] = {}

    def on_trial_start(self, job: Job) -> None:
        pass

    def on_epoch_end(
        self, job: Job, epoch: int, metrics: Mapping[str, float], environment: Mapping[str, str]
    ) -> None:
        pass

    def on_trial_end(self, job: Job, outcome: TrialOutcome) -> None:
        self.outcomes[job.trial] = outcome


def open_controller(
    plan: Plan,
    directory: Path,
    listener: TrialListener | None = None,
    *,
    display: ProgressDisplay | None = None,
    slots: int = 1,
    count_lost_nodes: Callable[[], int] = lambda: 0,
    fingerprint: str = "",
    weights: str = "",
) -> TrialController:
    """Open a controller on a study directory, with one slot unless more are given."""
    scheduler, gpu_faults = open_scheduler(plan, directory), GpuFaults()
    return TrialController(
        plan,
        scheduler,
        listener or RecordingListener(),
        cache_dir=directory,
        count_slots=lambda: max(0, slots - gpu_faults.count_holders()),
        retention=CheckpointRetention(plan, scheduler, str(directory / "checkpoints")),
        failure_policy=FailurePolicy(
            scheduler,
            errors_dir=directory / "errors",
            count_lost_nodes=count_lost_nodes,
            gpu_faults=gpu_faults,
        ),
        host_checks=HostChecks(
            display,
            expects_gpu=plan.file.resources.gpus_per_trial > 0,
            fingerprint=fingerprint,
            weights=weights,
        ),
        display=display,
    )
