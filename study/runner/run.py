"""Run of a study: one Tune run over all losses, from opening the data to the report."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, get_args

from study.config.plan import Plan
from study.directory import StudyDirectory
from study.errors import RayUnavailableError
from study.runner.autoscaling import open_autoscaler_client
from study.runner.context import PeriodicTask, RunContext
from study.runner.controller import TrialController
from study.runner.data_fingerprint import DataFingerprint
from study.runner.display import NullDisplay, ProgressDisplay
from study.runner.failure_policy import FailurePolicy
from study.runner.gpu_faults import GpuFaults
from study.runner.host_checks import HostChecks
from study.runner.live_report import LiveReport
from study.runner.node_checkpoints import NodeCheckpoints
from study.runner.placement import count_lost_nodes, make_slot_counter
from study.runner.preflight import check_tracking, describe_data, open_data
from study.runner.publish import log_progress_note, publish_results
from study.runner.ray_session import CapacityMonitor, ray_session
from study.runner.remote_scoring import BaselineScorer, embed_remotely, gpus_are_remote
from study.runner.retention import CheckpointRetention
from study.runner.study_record import make_trial_tags, start_tracking
from study.runner.tracking_listener import TrackingListener, resend_history
from study.runner.trained_networks import iter_gallery_networks
from study.runner.warning_log import WARNINGS_FILE_NAME, WarningLogDisplay
from study.search.job_scheduler import JobScheduler
from study.search.journal import StudyJournal
from study.tracking.monitor import TrackingMonitor
from study.tracking.sqlite_store import repair_artifact_paths
from study.tracking.tracker import Tracker
from study.trials.job import Job, LossProgress
from study.utils.paths import cache_dir, cache_dir_template
from trainables.config import Split
from trainables.training.checkpoints import checkpoint_filename
from trainables.training.context import TrainingContext

if TYPE_CHECKING:
    from study.analyses.findings import StudyFindings

REPORT_INTERVAL_SECONDS = 180.0
"""Least time between two reports while a study runs."""

NO_SHARED_STORAGE_MESSAGE = (
    "no shared storage is set (storage.checkpoints): if a node is lost, its trials restart from "
    "their first epoch, unless another of their nodes has a checkpoint"
)


@dataclass(frozen=True)
class RunSummary:
    """How a run ended.

    Args:
        is_finished: Whether everything planned was run.
        progress: Progress of each loss.
        seconds: Wall-clock time of this run.
        is_tracked: Whether MLflow has every record; otherwise they wait in the spool.
        n_warnings: Warnings added to the study's warnings.txt.
        n_refused_records: Records that MLflow refused permanently during this run.
        tracking_error: Why MLflow lacks records; empty if unknown.
        stop_reason: Why no more trials were started, unless the user interrupted the run.
        findings: The findings in the report; None if no report was made.
    """

    is_finished: bool
    progress: Sequence[LossProgress]
    seconds: float
    is_tracked: bool
    n_warnings: int = 0
    n_refused_records: int = 0
    tracking_error: str = ""
    stop_reason: str = ""
    findings: StudyFindings | None = None


@dataclass(frozen=True)
class RunOptions:
    """How a run is done.

    Args:
        address: Address of a Ray cluster; None uses an initialised Ray or starts a local one.
        report: Whether to make the report; False leaves it to `study report`.
        on_ray_failure: Called from a thread with the reason when a local Ray died; see
            `ray_session`.
        trainable: Trains the trials instead of `StudyTrial`, for simulations and benchmarks.
    """

    address: str | None = None
    report: bool = True
    on_ray_failure: Callable[[str], None] = lambda reason: None
    trainable: type | None = None


def run(
    study_dir: StudyDirectory,
    plan: Plan,
    *,
    requests: Sequence[Job] = (),
    search: bool = True,
    training: TrainingContext | None = None,
    display: ProgressDisplay | None = None,
    options: RunOptions | None = None,
) -> RunSummary:
    """Run or resume a study until its plan is done or it is interrupted.

    Args:
        study_dir: The study's directory, with its plan.
        plan: What to run.
        requests: Requested trainings; each runs once, however often it is requested.
        search: Whether to continue the search; False runs only the requests.
        training: Data and backbone, if they are open already.
        display: Shows messages, warnings and progress.
        options: How to run; see `RunOptions`.
    """
    started = time.monotonic()
    options = options or RunOptions()
    logged_display = WarningLogDisplay(
        display or NullDisplay(), study_dir.path / WARNINGS_FILE_NAME
    )
    with study_dir.hold_lock():
        _open_store(study_dir, plan, logged_display)
        if training is None:
            logged_display.show_message("opening data")
            training = open_data(
                plan, cache_dir=cache_dir(), progress=logged_display.show_build_progress
            )
        data_fingerprint = DataFingerprint(
            study_dir.path, training.dataset.fingerprint, training.initial_weights_fingerprint
        )
        journal = StudyJournal(study_dir.path, plan.spaces, writable=True)
        scheduler = JobScheduler(plan, journal, requests=requests, search=search)
        with _open_tracker(study_dir, plan) as tracker:
            refused_before = tracker.get_status().refused
            run_context = RunContext(study_dir, plan, training, scheduler, tracker, logged_display)
            monitor = TrackingMonitor(tracker.get_status, logged_display.show_warning)
            tags = _track_known_trials(run_context)
            with _end_study_on_exit(run_context):
                open_run = _OpenRun(run_context, data_fingerprint, monitor, tags, options)
                findings = open_run.execute(_splits_to_score(scheduler.waiting_jobs, search))
            is_tracked = tracker.close()
            monitor.warn_of_note()
            status = tracker.get_status()
        return RunSummary(
            is_finished=scheduler.is_finished(),
            progress=scheduler.get_progress(),
            seconds=time.monotonic() - started,
            is_tracked=is_tracked,
            n_warnings=logged_display.n_warnings,
            n_refused_records=status.refused - refused_before,
            tracking_error=status.error,
            stop_reason=open_run.controller.stop_reason,
            findings=findings,
        )


class _OpenRun:
    """The parts of a run that work on its context, and their order.

    Args:
        run_context: The run.
        data_fingerprint: Data, weights and baseline scores that the study started with.
        tracking_monitor: Warns when MLflow lags behind.
        tags: Tags of every trial.
        options: How to run.
    """

    def __init__(
        self,
        run_context: RunContext,
        data_fingerprint: DataFingerprint,
        tracking_monitor: TrackingMonitor,
        tags: Mapping[str, str],
        options: RunOptions,
    ) -> None:
        self._context, self._options = run_context, options
        self._tracking_monitor = tracking_monitor
        study_dir, plan, display = run_context.study_dir, run_context.plan, run_context.display
        self._baseline = BaselineScorer(run_context, data_fingerprint)
        shared = plan.file.storage.checkpoints
        self._node_checkpoints = NodeCheckpoints(
            None if shared else study_dir.checkpoints_dir, checkpoint_filename
        )
        self._retention = CheckpointRetention(
            plan,
            run_context.scheduler,
            study_dir.checkpoint_location(plan),
            forget=self._node_checkpoints.forget_checkpoint,
        )
        training, gpu_faults = run_context.training, GpuFaults()
        self.controller = TrialController(
            plan,
            run_context.scheduler,
            TrackingListener(run_context.tracker, plan, tags),
            cache_dir=cache_dir_template(),
            count_slots=make_slot_counter(plan.file.resources, gpu_faults.count_holders),
            retention=self._retention,
            failure_policy=FailurePolicy(
                run_context.scheduler,
                errors_dir=study_dir.errors_dir,
                count_lost_nodes=count_lost_nodes,
                gpu_faults=gpu_faults,
            ),
            host_checks=HostChecks(
                display,
                expects_gpu=plan.file.resources.gpus_per_trial > 0,
                fingerprint=training.dataset.fingerprint,
                weights=training.initial_weights_fingerprint,
            ),
            display=display,
        )

    def execute(self, splits: Sequence[Split]) -> StudyFindings | None:
        """Score the baseline, run the trials and publish the results."""
        scheduler = self._context.scheduler
        self._baseline.request_scores(splits)
        gallery_vectors: Mapping[str, Any] = {}
        if not scheduler.is_finished():
            with _crash_accounting(scheduler):
                gallery_vectors = self._run_trials()
        if not scheduler.is_finished():
            return None
        self._baseline.score_locally()
        if not self._options.report:
            return None
        return publish_results(self._context, gallery_vectors)

    def _run_trials(self) -> Mapping[str, Any]:
        """Do everything that needs Ray; return gallery embeddings that were computed remotely."""
        from study.runner.tune_adapters import run_tune  # imports Tune, which takes a second

        context, options = self._context, self._options
        plan, scheduler, display = context.plan, context.scheduler, context.display
        resources = plan.file.resources
        if options.address is not None and plan.file.storage.checkpoints is None:
            display.show_message(NO_SHARED_STORAGE_MESSAGE)
        interval = REPORT_INTERVAL_SECONDS if options.report else math.inf
        with (
            ray_session(resources, options.address, display, options.on_ray_failure),
            LiveReport(
                context.study_dir,
                plan,
                context.tracker,
                scheduler,
                display,
                interval_seconds=interval,
            ) as live_report,
            open_autoscaler_client(plan.name, resources, self._count_trials_left) as autoscaler,
        ):
            tasks: tuple[PeriodicTask, ...] = (
                live_report,
                autoscaler,
                CapacityMonitor(resources, display),
                self._tracking_monitor,
                self._node_checkpoints,
                self._baseline,
            )
            self._baseline.submit_tasks()
            self._update(tasks)  # nodes are requested before Tune requests those of its trials
            run_tune(
                context.study_dir,
                plan,
                self.controller,
                update=lambda: self._update(tasks),
                trainable=options.trainable,
            )
            if not scheduler.is_finished():
                return {}
            with contextlib.suppress(OSError):  # then the next resume removes them
                self._retention.remove_stale_checkpoints()
            self._node_checkpoints.fetch_checkpoints(self._retention.list_retained_trials())
            self._baseline.wait_for_scores()
            if not options.report or not gpus_are_remote(resources):
                return {}
            display.show_message("embedding images for galleries")
            return embed_remotely(resources, iter_gallery_networks(context))

    def _update(self, tasks: Sequence[PeriodicTask]) -> None:
        for task in tasks:
            task.update()
        self._context.display.show_progress(
            self.controller.get_progress(), self.controller.get_running_jobs()
        )

    def _count_trials_left(self) -> int:
        return sum(p.planned - p.ended for p in self.controller.get_progress())


@contextlib.contextmanager
def _crash_accounting(scheduler: JobScheduler) -> Iterator[None]:
    """Clear the crash counts of running trials, unless Ray itself died.

    The trials that ran when Ray died may have killed it. A driver that is killed never gets here,
    so its trials stay counted, too.
    """
    try:
        yield
    except RayUnavailableError:
        raise
    except BaseException:
        with contextlib.suppress(OSError):  # a full disk may be what ended the run
            scheduler.clear_crash_counts()
        raise
    scheduler.clear_crash_counts()


def _open_store(study_dir: StudyDirectory, plan: Plan, display: ProgressDisplay) -> None:
    """Repair the paths of a local store that was moved; warn if a remote one does not answer."""
    if (study_dir.path / "mlflow.db").exists():
        repair_artifact_paths(study_dir.path)
    if problem := check_tracking(plan):
        display.show_warning(f"{problem}; records wait in the study's spool")


def _open_tracker(study_dir: StudyDirectory, plan: Plan) -> Tracker:
    return Tracker(
        study_dir.tracking_uri(plan),
        spool=study_dir.spool_dir,
        artifact_root=study_dir.artifact_root(plan),
        experiment=plan.name,
        study_id=plan.study_id,
    )


def _track_known_trials(context: RunContext) -> dict[str, str]:
    """Send the study and its earlier trials to MLflow; return the tags of trials to come."""
    plan, tracker, scheduler = context.plan, context.tracker, context.scheduler
    data = describe_data(plan, context.training)
    note_files = context.training.dataset.note_files
    start_tracking(tracker, plan, data, scheduler.describe_samplers(), note_files)
    tags = make_trial_tags(data)
    resend_history(tracker, plan, context.study_dir.path, tags)
    if any(p.ended for p in scheduler.get_progress()):
        log_progress_note(context.study_dir, plan, tracker, scheduler)
    return tags


@contextlib.contextmanager
def _end_study_on_exit(context: RunContext) -> Iterator[None]:
    """End the study's MLflow run as finished, killed or failed.

    It is finished only when the search is finished, too: a sweep may run before that.
    """
    state: Literal["FINISHED", "KILLED", "FAILED"] = "KILLED"
    try:
        yield
        state = "FINISHED" if context.scheduler.is_study_finished() else "KILLED"
    except Exception:
        state = "FAILED"
        raise
    finally:
        log_progress_note(context.study_dir, context.plan, context.tracker, context.scheduler)
        context.tracker.end_study(state=state)


def _splits_to_score(requests: Sequence[Job], search: bool) -> list[Split]:
    requested = {job.split for job in requests}
    return [s for s in get_args(Split) if s in requested or (search and s == "validation")]
