"""One Tune run over all losses of a study."""

from __future__ import annotations

import logging
import math
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from study.checks import describe_data, open_data
from study.environment import environment
from study.finishing import Refresher, publish
from study.folders import cache_of_each_host
from study.home import StudyHome, cache_dir
from study.jobs import Job, Progress
from study.plan import Plan
from study.tracking.local import relocate
from study.tracking.writer import Tracker
from study.tuning.desk import Desk
from study.tuning.growth import Growth, growth
from study.tuning.ledger import Ledger
from study.tuning.placement import nodes_lost, placement, slots
from study.tuning.record import Record
from study.tuning.session import Patience, polite_stop, ray_session
from study.tuning.telling import TrackingListener
from study.tuning.warned import Warned

REPORT_SECONDS = 180.0
"""Least time between two reports while a study runs."""

UNSHARED = (
    "no shared storage is set (storage.checkpoints): should a node be lost, its trials start from "
    "their first epoch, unless another node of theirs has a checkpoint"
)

_TUNE_SETTINGS = {
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",
    "TUNE_GLOBAL_CHECKPOINT_S": "1000000",  # the study's record replaces Tune's snapshots
    "TUNE_WARN_THRESHOLD_S": "5",
    "TUNE_RESULT_BUFFER_LENGTH": "1",
    "RAY_AIR_NEW_OUTPUT": "0",
}

Tick = Callable[[Sequence[Progress], Mapping[str, Job]], None]


@dataclass(frozen=True)
class RunSummary:
    """How a run ended.

    Args:
        finished: Whether everything planned was run.
        progress: How far each loss is.
        seconds: Wall-clock time of this run.
        tracked: Whether everything reached MLflow (else it waits in the spool).
        warnings: How many lines were added to the study's warnings.txt.
    """

    finished: bool
    progress: Sequence[Progress]
    seconds: float
    tracked: bool
    warnings: int = 0


def run(
    home: StudyHome,
    plan: Plan,
    *,
    requests: Sequence[Job] = (),
    search: bool = True,
    address: str | None = None,
    tick: Tick | None = None,
    say: Callable[[str], None] = lambda text: None,
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
        warn: Told in one line what a person should know; also kept in the study's directory.
        report: False leaves the report to `study report`.
        trainable: Runs the trials instead of `StudyTrial`: for simulations and benchmarks.
    """
    started = time.monotonic()
    resources = plan.file.resources
    warned = Warned(home.directory / "warnings.txt", warn)
    with home.locked():
        if (home.directory / "mlflow.db").exists():
            relocate(home.directory)
        say("opening data")
        bench = open_data(plan, cache_dir=cache_dir())
        data = describe_data(plan, bench)
        record = Record(home.directory, plan.spaces, writable=True)
        ledger = Ledger(plan, record, requests=requests, search=search)
        with Tracker(
            home.tracking_uri(plan),
            spool=home.spool,
            artifact_root=home.artifact_root(plan),
            experiment=plan.name,
        ) as tracker:
            _open_tracking(tracker, plan, data)
            say("scoring the untrained backbone")
            for split in _splits(ledger.waiting, search):
                tracker.baseline(split, _baseline(plan, bench, split))
            with ray_session(resources, address, say):
                if address is not None and plan.file.storage.checkpoints is None:
                    say(UNSHARED)
                desk = Desk(
                    plan,
                    ledger,
                    TrackingListener(tracker, plan, _tags(data)),
                    cache_dir=cache_of_each_host(),
                    checkpoint_dir=home.checkpoint_place(plan),
                    errors_dir=home.errors,
                    nodes_lost=nodes_lost,
                    warn=warned,
                    slots=slots(resources),
                )
                if not ledger.is_finished():
                    pause = REPORT_SECONDS if report else math.inf
                    with (
                        Refresher(home, plan, tracker, seconds=pause) as refresher,
                        growth(plan.name, resources) as grown,
                    ):
                        patience = Patience(resources, warned)
                        show = _shower(desk, tick, refresher, grown, patience)
                        _tune(home, plan, desk, show, trainable)
            finished = ledger.is_finished()
            if finished and report:
                publish(home, plan, tracker, bench, ledger, say)
            tracker.end_study(state="FINISHED" if finished else "KILLED")
            tracked = tracker.close()
        seconds = time.monotonic() - started
        return RunSummary(finished, ledger.progress(), seconds, tracked, warned.count)


def _tune(
    home: StudyHome, plan: Plan, desk: Desk, show: Callable[[], None], trainable: type | None
) -> None:
    from ray import tune

    from study.tuning.adapters import DeskScheduler, DeskSearcher, Ticker
    from trainables.trial import StudyTrial

    with environment(_TUNE_SETTINGS | {"TUNE_MAX_PENDING_TRIALS_PG": "64"}), polite_stop():
        tuner = tune.Tuner(
            tune.with_resources(trainable or StudyTrial, placement(plan.file.resources)),
            tune_config=tune.TuneConfig(
                search_alg=DeskSearcher(desk),
                scheduler=DeskScheduler(desk),
                num_samples=-1,
                reuse_actors=True,
                trial_name_creator=_trial_name,
                trial_dirname_creator=_trial_name,
            ),
            run_config=tune.RunConfig(
                name="tune",
                storage_path=str(home.directory / ".tune"),
                # The desk hands a trial whose process died to another one; Tune's own retries
                # miss those that die between two trials.
                failure_config=tune.FailureConfig(max_failures=0),
                callbacks=[Ticker(show)],
                verbose=0,
            ),
        )
        # Lost processes are the desk's business, not a page of traceback for the user.
        logging.getLogger("ray.tune").setLevel(logging.CRITICAL)
        try:
            tuner.fit()
        except Exception as error:
            raise _cause(error) from None
        finally:
            shutil.rmtree(home.directory / ".tune", ignore_errors=True)


def _cause(error: BaseException) -> BaseException:
    """What went wrong at the desk: Tune hides it in an error of its own, a page of traceback."""
    inner: BaseException | None = error
    while inner is not None and not isinstance(inner, OSError):
        inner = inner.__cause__ or inner.__context__
    return inner or error


def _shower(
    desk: Desk, tick: Tick | None, refresher: Refresher, grown: Growth, patience: Patience
) -> Callable[[], None]:
    """What is done a few times a second while trials run."""

    def show() -> None:
        progress = desk.progress()
        refresher.tick(progress)
        grown.update(sum(p.planned - p.ended for p in progress))
        patience.update()
        if tick is not None:
            tick(progress, desk.running())

    return show


def _open_tracking(tracker: Tracker, plan: Plan, data: Mapping[str, Any]) -> None:
    tracker.open_study(
        name=plan.name,
        plan={
            "spaces": {loss: space.to_dict() for loss, space in plan.spaces.items()},
            "protocol": protocol_record(plan, data),
            "baseline": {},
            "dataset": dict(data),
            "file": plan.file.model_dump(mode="json", exclude={"tracking"}),
        },
        losses=plan.losses,
        note=study_note(plan, data),
    )


def protocol_record(plan: Plan, data: Mapping[str, Any]) -> dict[str, Any]:
    """What a report's header needs to know of the protocol."""
    file = plan.file
    return {
        "objective": file.protocol.objective,
        "folds": file.protocol.folds,
        "epochs": max(plan.epochs(loss) for loss in plan.losses),
        "tolerance": file.protocol.tolerance,
        "dataset": data["name"],
        "backbone": "features" if data["kind"] == "features" else file.backbone.name,
        "pretrained": bool(file.backbone.pretrained),
        "frozen": file.backbone.frozen,
        "sampler": file.search.sampler,
        "trials_per_loss": file.search.trials,
        "seed": file.search.seed,
        "recall_at": ", ".join(map(str, file.protocol.recall_at)),
    }


def study_note(plan: Plan, data: Mapping[str, Any]) -> str:
    """What the study is, in words."""
    losses = ", ".join(plan.losses)
    return (
        f"Study **{plan.name}**: {losses} on {data['name']} "
        f"({data['train_classes']} training, {data['validation_classes']} validation and "
        f"{data['test_classes']} test classes), {plan.file.search.trials} points per loss, "
        f"objective {plan.file.protocol.objective} on validation classes."
    )


def _tags(data: Mapping[str, Any]) -> dict[str, str]:
    from importlib.metadata import PackageNotFoundError, version

    try:
        code = version("dml-study")
    except PackageNotFoundError:
        code = "unknown"
    return {"data_fingerprint": str(data["fingerprint"]), "code_version": code}


def _splits(requests: Sequence[Job], search: bool) -> list[str]:
    splits = {job.split for job in requests} | ({"validation"} if search else set())
    return sorted(splits, reverse=True)


def _baseline(plan: Plan, bench: Any, split: str) -> dict[str, float]:
    from dataclasses import replace

    from trainables.training import untrained_metrics

    loss = plan.losses[0]
    values = plan.example(loss)
    job = Job("untrained", loss, 0, "published", values, seed=0)
    spec = plan.trial_spec(job, cache_dir=cache_dir(), checkpoint_dir="")
    return untrained_metrics(replace(spec, split=split), bench)  # type: ignore[arg-type]


def _trial_name(trial: Any) -> str:
    return str(trial.config["spec"]["trial"])
