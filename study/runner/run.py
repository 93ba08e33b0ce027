"""One Tune run over all losses of a study."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from study.checks import check_tracking, describe_data, open_data
from study.data_record import DataRecord
from study.errors import RayError
from study.finishing import Refresher, best_networks, progress_note, publish
from study.folders import cache_of_each_host
from study.home import StudyHome, cache_dir
from study.jobs import Job, Progress, Split
from study.plan import Plan
from study.tracking.local import relocate
from study.tracking.watch import Watch
from study.tracking.writer import Tracker
from study.tuning.describing import open_tracking, trial_tags
from study.tuning.desk import Desk, Listener
from study.tuning.elsewhere import Untrained, embedded, is_elsewhere
from study.tuning.growth import Growth, growth
from study.tuning.ledger import Ledger
from study.tuning.node_files import NodeFiles
from study.tuning.placement import nodes_lost, slots
from study.tuning.record import Record
from study.tuning.session import Patience, ray_session
from study.tuning.telling import TrackingListener, tell_again
from study.tuning.tune import run_tune
from study.tuning.warned import Warned
from trainables.checkpoints import file_name
from trainables.workbench import Bench

REPORT_SECONDS = 180.0
"""Least time between two reports while a study runs."""

UNSHARED = (
    "no shared storage is set (storage.checkpoints): should a node be lost, its trials start from "
    "their first epoch, unless another node of theirs has a checkpoint"
)

Tick = Callable[[Sequence[Progress], Mapping[str, Job]], None]
Building = Callable[[str, int, int], None]


@dataclass(frozen=True)
class RunSummary:
    """How a run ended.

    Args:
        finished: Whether everything planned was run.
        progress: How far each loss is.
        seconds: Wall-clock time of this run.
        tracked: Whether everything reached MLflow (else it waits in the spool), and
        tracking_error: why not.
        warnings: How many lines were added to the study's warnings.txt.
        refused: How many records MLflow refused for good, in this run.
        trouble: Why no more trials were started, if it was not the user who wanted that.
    """

    finished: bool
    progress: Sequence[Progress]
    seconds: float
    tracked: bool
    warnings: int = 0
    refused: int = 0
    tracking_error: str = ""
    trouble: str = ""


def run(
    home: StudyHome,
    plan: Plan,
    *,
    requests: Sequence[Job] = (),
    search: bool = True,
    address: str | None = None,
    tick: Tick | None = None,
    say: Callable[[str], None] = lambda text: None,
    building: Building | None = None,
    on_death: Callable[[str], None] = lambda reason: None,
    warn: Callable[[str], None] = lambda text: None,
    report: bool = True,
    trainable: type | None = None,
) -> RunSummary:
    """Run, or go on with, a study until its plan is done or it is interrupted.

    Args:
        home: The study's directory; its plan is already there.
        plan: What to run.
        requests: Trainings asked for by name, run once each however often they are asked.
        search: False leaves the search alone.
        address: A Ray cluster; None uses a running one of this process, else starts one.
        tick: Called a few times a second with the progress and the running jobs.
        say: Told in one line what is going on before trials run.
        building: Told how far data or features are that are built before trials run.
        on_death: Told, in a thread, why the Ray started here answers no more; see `ray_session`.
        warn: Told in one line what a person should know; also kept in the study's directory.
        report: False leaves the report to `study report`.
        trainable: Runs the trials instead of `StudyTrial`: for simulations and benchmarks.
    """
    started = time.monotonic()
    warned = Warned(home.directory / "warnings.txt", warn)
    with home.locked():
        _open_store(home, plan, warned)
        say("opening data")
        bench = open_data(plan, cache_dir=cache_dir(), progress=building)
        data = describe_data(plan, bench)
        known = DataRecord(home.directory, bench.dataset.fingerprint, bench.weights)
        record = Record(home.directory, plan.spaces, writable=True)
        ledger = Ledger(plan, record, requests=requests, search=search)
        with _tracker(home, plan) as tracker:
            refused_before = tracker.status().refused
            watch = Watch(tracker.status, warned)
            tags = _tell_what_is_known(home, plan, tracker, ledger, data, bench.dataset.lists)
            with _ending(home, plan, tracker, ledger):
                untrained = Untrained(plan, bench, known, tracker.baseline, warned)
                untrained.want(_splits(ledger.waiting, search), say)
                files = _node_files(home, plan)
                listener = TrackingListener(tracker, plan, tags)
                desk = _open_desk(home, plan, ledger, listener, warned, files, bench)
                parts = _Parts(
                    home, plan, bench, tracker, watch, desk, files, untrained, say, warned
                )
                vectors: Mapping[str, Any] = {}
                if not ledger.is_finished():
                    with _blame(ledger):
                        vectors = _run_trials(parts, address, tick, on_death, report, trainable)
                finished = ledger.is_finished()
                if finished:
                    untrained.score_here(say)
                if finished and report:
                    publish(home, plan, tracker, bench, ledger, say, warned, vectors)
            tracked = tracker.close()
            watch.tell_note()
            told = tracker.status()
        return RunSummary(
            finished=finished,
            progress=ledger.progress(),
            seconds=time.monotonic() - started,
            tracked=tracked,
            warnings=warned.count,
            refused=told.refused - refused_before,
            tracking_error=told.error,
            trouble=desk.trouble,
        )


@dataclass(frozen=True)
class _Parts:
    """What a run that is open works with."""

    home: StudyHome
    plan: Plan
    bench: Bench
    tracker: Tracker
    watch: Watch
    desk: Desk
    files: NodeFiles
    untrained: Untrained
    say: Callable[[str], None]
    warned: Warned


def _run_trials(
    parts: _Parts,
    address: str | None,
    tick: Tick | None,
    on_death: Callable[[str], None],
    report: bool,
    trainable: type | None,
) -> Mapping[str, Any]:
    """All that needs a Ray; gives what `publish` needs of it, once nothing is left to run."""
    home, plan, tracker, desk = parts.home, parts.plan, parts.tracker, parts.desk
    resources, say, warned = plan.file.resources, parts.say, parts.warned
    if address is not None and plan.file.storage.checkpoints is None:
        say(UNSHARED)
    lasting = Patience(resources, warned), parts.watch, parts.files, parts.untrained
    with (
        ray_session(resources, address, say, on_death, warned),
        Refresher(home, plan, tracker, seconds=_pause(report), warn=warned) as refresher,
        growth(plan.name, resources) as grown,
    ):
        show = _shower(desk, tick, refresher, grown, lasting)
        parts.untrained.send()
        show()  # nodes are asked for before Tune asks for those of its first trials
        run_tune(home, plan, desk, show, trainable)
        if not desk.ledger.is_finished():
            return {}
        parts.files.bring_home(desk.kept())
        parts.untrained.wait()
        return _embedded(home, plan, parts.bench, desk.ledger, say) if report else {}


@contextlib.contextmanager
def _blame(ledger: Ledger) -> Iterator[None]:
    """Whoever was running when Ray died may have killed it; whatever else ends a run, none did.

    A driver that dies comes to no such end, and blames them so.
    """
    try:
        yield
    except RayError:
        raise
    except BaseException:
        with contextlib.suppress(OSError):  # what ended the run may be a full disk
            ledger.pause()
        raise
    ledger.pause()


def _open_store(home: StudyHome, plan: Plan, warned: Warned) -> None:
    """A store in the study's directory moves with it; one that does not answer is only said."""
    if (home.directory / "mlflow.db").exists():
        relocate(home.directory)
    if problem := check_tracking(plan):
        warned(f"{problem}; records wait in the study's spool")


def _tracker(home: StudyHome, plan: Plan) -> Tracker:
    return Tracker(
        home.tracking_uri(plan),
        spool=home.spool,
        artifact_root=home.artifact_root(plan),
        experiment=plan.name,
        study_id=plan.study_id,
    )


def _tell_what_is_known(
    home: StudyHome,
    plan: Plan,
    tracker: Tracker,
    ledger: Ledger,
    data: Mapping[str, Any],
    lists: Sequence[Path],
) -> dict[str, str]:
    """Tell MLflow of the study and of all trials so far; gives the tags of its trials to come."""
    open_tracking(tracker, plan, data, ledger.samplers(), lists)
    tags = trial_tags(data)
    tell_again(tracker, plan, home.directory, tags)
    if any(p.ended for p in ledger.progress()):
        _note(home, plan, tracker, ledger)
    return tags


def _pause(report: bool) -> float:
    return REPORT_SECONDS if report else math.inf


@contextlib.contextmanager
def _ending(home: StudyHome, plan: Plan, tracker: Tracker, ledger: Ledger) -> Iterator[None]:
    """However this ends, so does the study's run in MLflow: done, interrupted, or by an error.

    It is done only when its search is, too: a sweep may come before that.
    """
    state: Literal["FINISHED", "KILLED", "FAILED"] = "KILLED"
    try:
        yield
        state = "FINISHED" if ledger.study_is_finished() else "KILLED"
    except Exception:
        state = "FAILED"
        raise
    finally:
        _note(home, plan, tracker, ledger)
        tracker.end_study(state=state)


def _note(home: StudyHome, plan: Plan, tracker: Tracker, ledger: Ledger) -> None:
    """Say on the parent run how the study stands."""
    reported = (home.report / "index.html").exists()
    tracker.note(progress_note(plan, ledger.progress(whole=True), reported=reported))


def _node_files(home: StudyHome, plan: Plan) -> NodeFiles:
    return NodeFiles(None if plan.file.storage.checkpoints else home.checkpoints, file_name)


def _open_desk(
    home: StudyHome,
    plan: Plan,
    ledger: Ledger,
    listener: Listener,
    warned: Warned,
    files: NodeFiles,
    bench: Bench,
) -> Desk:
    return Desk(
        plan,
        ledger,
        listener,
        cache_dir=cache_of_each_host(),
        checkpoint_dir=home.checkpoint_place(plan),
        errors_dir=home.errors,
        nodes_lost=nodes_lost,
        warn=warned,
        forget=files.forget,
        slots=slots(plan.file.resources),
        fingerprint=bench.dataset.fingerprint,
        weights=bench.weights,
    )


def _shower(
    desk: Desk,
    tick: Tick | None,
    refresher: Refresher,
    grown: Growth,
    lasting: tuple[Patience, Watch, NodeFiles, Untrained],
) -> Callable[[], None]:
    """What is done a few times a second while trials run."""

    def show() -> None:
        progress = desk.progress()
        refresher.tick(desk.ledger.progress(whole=True))
        grown.update(sum(p.planned - p.ended for p in progress))
        for trouble in lasting:
            trouble.update()
        if tick is not None:
            tick(progress, desk.running())

    return show


def _embedded(
    home: StudyHome, plan: Plan, bench: Bench, ledger: Ledger, say: Callable[[str], None]
) -> Mapping[str, Any]:
    """What the galleries need, from the trials' GPUs if this machine has none."""
    if not is_elsewhere(plan.file.resources):
        return {}
    say("embedding pictures for galleries")
    return embedded(plan.file.resources, best_networks(home, plan, bench, ledger))


def _splits(requests: Sequence[Job], search: bool) -> list[Split]:
    wanted = {job.split for job in requests}
    return [s for s in get_args(Split) if s in wanted or (search and s == "validation")]
