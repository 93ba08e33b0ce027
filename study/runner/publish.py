"""What a study leaves behind besides its trials: report, galleries, words, all kept in MLflow."""

from __future__ import annotations

import contextlib
import copy
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from study.display import number
from study.home import StudyHome
from study.jobs import Job, Progress
from study.plan import Plan
from study.processes import module, surroundings
from study.report.folder import still, unfinished
from study.requests import confirm_seed, plain_value
from study.table import KNOB, TrialTable
from study.tracking.redaction import redact
from study.tracking.writer import Tracker
from study.tuning.ledger import Ledger
from trainables.backbone import Backbone
from trainables.model import EmbeddingModel
from trainables.restored import network_weights, restored_network, validation_vectors
from trainables.settings import TrialSpec
from trainables.training import split_tasks
from trainables.workbench import Bench

if TYPE_CHECKING:
    from study.tracking.model import Features, Images

FLUSH_SECONDS = 60.0
GONE = (
    "the checkpoint of {} cannot be read here; its node may be gone (storage.checkpoints names a "
    "place that all nodes share)"
)
_PICTURES = (".png", ".svg")
NO_VECTORS: Mapping[str, NDArray[np.float32]] = {}
_STORE = "DML_STUDY_STORE"


def publish(
    home: StudyHome,
    plan: Plan,
    tracker: Tracker,
    bench: Bench,
    ledger: Ledger,
    say: Callable[[str], None],
    warn: Callable[[str], None],
    vectors: Mapping[str, NDArray[np.float32]] = NO_VECTORS,
) -> bool:
    """Draw the galleries, make the report from the store and keep both there.

    What cannot be made, since the checkpoint it needs is gone, is said with `warn`. `vectors` are
    those of each loss's gallery, as far as they are known already.

    Returns:
        Whether the report was made; not when the tracking server is away (then `study report`
        makes it later).
    """
    if bench.dataset.train.kind == "images":
        say("drawing galleries")
        for loss in plan.losses:
            _gallery(home, plan, tracker, bench, ledger, loss, warn, vectors.get(loss))
    if not tracker.flush(FLUSH_SECONDS):
        return False
    from study.analyses.findings import find  # seconds of imports that a study's start can spare
    from study.report.answer import leader
    from study.report.build import write_findings
    from study.tracking.reader import read_table

    say("making the report")
    findings = find(read_table(home.tracking_uri(plan), plan.name))
    write_findings(findings, home.report)
    keep_report(home, plan, tracker)
    try:
        keep_winner(home, plan, bench, findings.table, leader(findings), warn)
    except Exception as error:  # exporting runs whatever a backbone is made of
        reason = (str(error).strip().splitlines() or [""])[0]
        warn(f"the winner's model is not registered: {type(error).__name__}: {reason[:300]}")
    return True


def keep_winner(
    home: StudyHome,
    plan: Plan,
    bench: Bench,
    table: TrialTable,
    winner: str,
    warn: Callable[[str], None],
) -> None:
    """Register the network of the confirmed winner: the loss and point that the report names."""
    from study.tracking.model import log_model

    row = winning_trial(table, winner, seed=confirm_seed(plan, 0))
    if row is None:
        return
    distributions = plan.spaces[winner].distributions
    point = {k: plain_value(d, row[KNOB + k]) for k, d in distributions.items()}
    job = Job(row["trial"], winner, 0, "confirm", point, seed=int(row["seed"]), split="test")
    spec, weights = _trained(home, plan, bench, job)
    if weights is None:
        warn(f"the winner's model is not registered: {GONE.format(job.trial)}")
        return
    network, inputs = whole_network(bench, restored_network(spec, bench, weights))
    log_model(
        home.tracking_uri(plan),
        study=plan.name,
        trial=job.trial,
        network=network,
        inputs=inputs,
        tags={"loss": winner},
    )


def winning_trial(table: TrialTable, loss: str, *, seed: int) -> pd.Series | None:
    """The confirmation of a loss's best point whose network is kept; None before there is one.

    Args:
        table: The study.
        loss: The winner; empty for none.
        seed: Of the confirmations whose networks are kept.
    """
    from study.analyses.comparison import confirmed_trials

    if not loss:
        return None
    trials = confirmed_trials(table, loss)
    mine = (trials["origin"] == "confirm") & (trials["state"] == "finished")
    trials = trials[mine & (trials["seed"] == seed)]
    return None if trials.empty else trials.sort_values("number").iloc[-1]


def whole_network(
    bench: Bench, network: EmbeddingModel
) -> tuple[EmbeddingModel, Images | Features]:
    """A trial's network from pictures on, and what it takes, for its signature.

    A trial of a frozen backbone trains on its features; whoever uses the model has pictures.
    """
    from study.tracking.model import Features, Images

    if network.backbone is None and bench.prototype is not None:
        network = copy.deepcopy(network)
        network.backbone = bench.prototype
    if isinstance(network.backbone, Backbone):
        size = bench.image_size
        return network, Images(size, size, network.backbone.mean, network.backbone.std)
    return network, Features(network.head.in_features)


def keep_report(home: StudyHome, plan: Plan, tracker: Tracker) -> None:
    """Store the written report with the study, and each loss's figures with the loss."""
    from study.report.tables import safe_name

    tracker.artifact(home.report, to="study", folder="report")
    figures = home.report / "figures"
    drawn = [f for f in sorted(figures.glob("*")) if f.suffix in _PICTURES]
    for loss in plan.losses:
        mine = [f.name for f in drawn if f.stem == safe_name(f"{f.stem.split('-')[0]}-{loss}")]
        tracker.artifact(figures, to=loss, folder="figures", only=mine)


def progress_note(plan: Plan, progress: list[Progress], *, reported: bool = True) -> str:
    """What the study is and how it stands, in words (Markdown); `reported`: it has a report."""
    ended, planned = sum(p.ended for p in progress), sum(p.planned for p in progress)
    lines = [
        f"**{plan.name}**: {', '.join(plan.losses)} on {plan.file.data.name}, objective "
        f"{plan.file.protocol.objective} on validation classes. {ended} of {planned} trials ended.",
        "",
        "| loss | trials | best | of | stopped | diverged | failed |",
        "|---|---|---|---|---|---|---|",
    ]
    for p in sorted(progress, key=lambda p: -p.best if p.best == p.best else 1.0):
        counts = f"{p.stopped} | {p.diverged} | {p.failed}"
        lines.append(
            f"| {p.loss} | {p.ended}/{p.planned} | {number(p.best)} | {p.best_trial} | {counts} |"
        )
    if reported:
        lines += ["", "The report is among this run's artifacts: report/index.html."]
    return "\n".join(lines)


def _gallery(
    home: StudyHome,
    plan: Plan,
    tracker: Tracker,
    bench: Bench,
    ledger: Ledger,
    loss: str,
    warn: Callable[[str], None],
    vectors: NDArray[np.float32] | None = None,
) -> None:
    """What the best trial of a loss finds for a few validation queries."""
    best = ledger.incumbent(loss)
    if best is None:
        return
    if vectors is None:
        spec, weights = _trained(home, plan, bench, best)
        if weights is None:
            warn(f"no gallery of {loss}: {GONE.format(best.trial)}")
            return
        vectors = validation_vectors(spec, bench, weights)
    path = home.directory / "galleries" / f"{loss}.png"
    path.parent.mkdir(parents=True, exist_ok=True)
    title = f"{best.trial}: validation queries and what they find"
    from trainables.gallery import write_gallery

    # A frozen backbone's trials see features; the pictures they come from lie in the same order.
    pictures = split_tasks(bench.dataset, "validation", plan.file.protocol.folds)[0].score
    write_gallery(path, pictures, vectors, class_names=bench.dataset.class_names, title=title)
    tracker.gallery(path, loss=loss, trial=best.trial)


def best_networks(
    home: StudyHome, plan: Plan, bench: Bench, ledger: Ledger
) -> Iterator[tuple[str, TrialSpec, Mapping[str, Any]]]:
    """The losses that get a gallery, each with its best trial and that network's weights."""
    for loss in plan.losses if bench.dataset.train.kind == "images" else ():
        best = ledger.incumbent(loss)
        if best is not None:
            spec, weights = _trained(home, plan, bench, best)
            if weights is not None:
                yield loss, spec, weights


def _trained(
    home: StudyHome, plan: Plan, bench: Bench, job: Job
) -> tuple[TrialSpec, Mapping[str, Any] | None]:
    """A trial and its network's weights; None when its checkpoint cannot be read."""
    place = home.checkpoint_place(plan)
    spec = plan.trial_spec(job, cache_dir=bench.cache_dir, checkpoint_dir=place)
    with contextlib.suppress(OSError):  # S3 does not answer
        return spec, network_weights(spec)
    return spec, None


class Refresher:
    """Makes the report anew while the study runs, in a process of low priority.

    Args:
        home: Where the report goes.
        plan: The study.
        tracker: Keeps it.
        seconds: Least time between two reports; a slow report waits longer.
        warn: Told once, in one line, why a report could not be made.
    """

    def __init__(
        self,
        home: StudyHome,
        plan: Plan,
        tracker: Tracker,
        *,
        seconds: float,
        warn: Callable[[str], None],
    ) -> None:
        self._home, self._plan, self._tracker = home, plan, tracker
        self._seconds, self._warn = seconds, warn
        self._errors: IO[bytes] | None = None
        self._warned = False
        self._process: subprocess.Popen[bytes] | None = None
        self._started = time.monotonic()

    @property
    def is_busy(self) -> bool:
        """Whether a report is being made, or waits to be stored."""
        return self._process is not None

    def tick(self, progress: list[Progress]) -> None:
        """Start a report when it is time; store the one that is ready."""
        elapsed = time.monotonic() - self._started
        if self._process is not None:
            code = self._process.poll()
            if code is None:
                return
            if code == 0:
                keep_report(self._home, self._plan, self._tracker)
                self._note(progress)
            elif not self._warned:
                self._warned = True
                self._warn(f"no report while the study runs: {self._last_error() or code}")
            self._close()
            self._seconds = max(self._seconds, 20.0 * elapsed)
        elif elapsed >= self._seconds:
            self._note(progress)
            self._started = time.monotonic()
            self._errors = tempfile.TemporaryFile()  # noqa: SIM115 (closed by _close)
            self._process = subprocess.Popen(
                [*module("study.finishing"), self._plan.name, str(self._home.report)],
                # Not on the command line, which every user of the machine can read.
                env=surroundings(**{_STORE: self._home.tracking_uri(self._plan)}),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=self._errors,
                start_new_session=True,
            )

    def _last_error(self) -> str:
        assert self._errors is not None
        self._errors.seek(0)
        lines = self._errors.read().decode(errors="replace").strip().splitlines()
        return redact(lines[-1])[:300] if lines else ""

    def _close(self) -> None:
        if self._process is not None:  # which may have been killed
            shutil.rmtree(unfinished(self._home.report, self._process.pid), ignore_errors=True)
        self._process = None
        if self._errors is not None:
            self._errors.close()

    def _note(self, progress: list[Progress]) -> None:
        reported = (self._home.report / "index.html").exists()
        self._tracker.note(progress_note(self._plan, progress, reported=reported))

    def __enter__(self) -> Refresher:
        return self

    def __exit__(self, *_: object) -> None:
        """End a report that is under way."""
        if self._process is not None and self._process.poll() is None:
            with still(self._home.report):  # not while it takes the place of the one before
                self._process.kill()
                self._process.wait()
        self._close()


def _report_quietly(name: str, out: str) -> None:
    from study.report.build import write_report
    from study.tracking.reader import read_table

    os.nice(19)
    table: TrialTable = read_table(os.environ[_STORE], name)
    write_report(table, Path(out))


if __name__ == "__main__":
    _report_quietly(*sys.argv[1:3])
