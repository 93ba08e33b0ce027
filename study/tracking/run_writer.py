"""What does each spooled record do to the study's MLflow runs?

Records of one trial within a chunk are put together, so that an epoch report costs a share of one
request and not one request per metric.
"""

from __future__ import annotations

import getpass
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from mlflow.exceptions import MlflowException

from study.tracking import files
from study.tracking import records as names
from study.tracking.home import Home, KnownRun, RefusedError, is_permanent

Record = Mapping[str, Any]
NOTE = "mlflow.note.content"
PARENT = "mlflow.parentRunId"
STUDY_KEY = ("study",)


@dataclass
class _Trial:
    """What a chunk says about one trial."""

    start: Record | None = None
    epochs: list[tuple[int, float, dict[str, float]]] = field(default_factory=list)
    end: Record | None = None
    host: str = ""


class Replay:
    """Applies records to a `Home`, in order, any number of times.

    Args:
        home: The study's experiment.
        refuse: Told of every record the store will never take.
    """

    def __init__(self, home: Home, *, refuse: Callable[[Record, str], None]) -> None:
        self._home = home
        self._refuse = refuse
        self._trials: dict[str, _Trial] = {}
        self._objective = ""
        self._study: Record | None = None
        self._unstored: dict[tuple[Any, ...], tuple[Callable[[], None], str]] = {}
        self._back: dict[str, None] = {}
        self._common = {"mlflow.user": _user(), "mlflow.source.name": "dml-study"}
        self._common["mlflow.source.type"] = "LOCAL"

    def apply(self, records: Sequence[Record]) -> int:
        """Bring the store up to these records; gives how many it refused.

        Raises whatever keeps the store from answering; the same records can then be applied again.
        """
        self._home.connect()
        self._trials = {}
        refused = 0
        newest = {_file(record): number for number, record in enumerate(records)}
        for number, record in enumerate(records):
            op = record.get("op")
            if op == "artifact" and newest[_file(record)] != number:
                continue  # a later copy of the same file follows
            if op in ("start", "epoch", "end"):
                self._collect(record)
                continue
            refused += self._flush()
            action = getattr(self, f"_do_{op}", None)
            refused += self._guarded(action, record) if action else 1
        return refused + self._flush()

    @property
    def unstored(self) -> int:
        """Files that could not be stored yet."""
        return len(self._unstored)

    @property
    def problem(self) -> str:
        """Why the first of them could not be."""
        return next((reason for _, reason in self._unstored.values()), "")

    @property
    def note(self) -> str:
        """What a person should know though it holds up nothing, in one line; else empty."""
        runs = ", ".join(self._back)
        return f"runs deleted in MLflow are back, since others hang on them: {runs}" if runs else ""

    def retry(self) -> int:
        """Try once more to store those files; gives how many the store refused for good."""
        waiting = {name: store for name, (store, _) in self._unstored.items()}
        return sum(
            self._guarded(partial(self._again, name, store), {"file": list(name)})
            for name, store in waiting.items()
        )

    def _again(self, name: tuple[Any, ...], store: Callable[[], None], _: Record) -> None:
        self._store(name, store)

    def _store(self, name: tuple[Any, ...], store: Callable[[], None]) -> None:
        """Store a file; one that cannot be now waits for `retry` and holds up nothing else."""
        self._unstored.pop(name, None)
        try:
            store()
        except RefusedError:
            raise
        except Exception as error:  # of whatever keeps artifacts: disks, S3, servers
            if isinstance(error, MlflowException) and is_permanent(error):
                raise
            reason = f"{type(error).__name__}: {str(error).strip()}"
            self._unstored[name] = (store, f"a file cannot be stored: {reason}")

    def _collect(self, record: Record) -> None:
        trial = self._trials.setdefault(record["trial"], _Trial())
        # What follows an end undoes it: the trial was started again.
        trial.end = record if record["op"] == "end" else None
        if record["op"] == "start":
            trial.start = record
        elif record["op"] == "epoch":
            trial.epochs.append((record["epoch"], record["at"], record["metrics"]))
            trial.host = record.get("host", trial.host)

    def _flush(self) -> int:
        trials, self._trials = self._trials, {}
        refused = 0
        for name, trial in trials.items():
            witness = trial.start or trial.end or {"trial": name, "epochs": trial.epochs}
            refused += self._guarded(partial(self._trial, name, trial), witness)
        return refused

    def _guarded(self, action: Callable[[Record], None], record: Record) -> int:
        """Do it; gives 1 when the store refuses, unless since a run was deleted meanwhile."""
        try:
            action(record)
        except RefusedError as reason:
            self._refuse(record, str(reason))
        except MlflowException as error:
            if not is_permanent(error):
                raise
            if self._settled(record):
                return self._guarded(action, record)
            self._refuse(record, str(error))
        else:
            return 0
        return 1

    def _settled(self, record: Record) -> bool:
        """Whether somebody deleted runs meanwhile: trials are let go, what they hang on is back."""
        whole = self._home.bring_experiment_back()
        own = ("trial", str(record.get("trial") or record.get("to"))), ("baseline",)
        gone = [key for key in own if self._home.was_deleted(key)]
        back = [key for key in self._home.branches() if self._home.bring_back(key)]
        if not self._home.has(STUDY_KEY) and self._study is not None:
            self._do_study(self._study)  # it is gone for good
        words = [" ".join(key[1:]) or "the study" for key in back]
        self._back |= dict.fromkeys(["the experiment", *words] if whole else words)
        return bool(whole or gone or back)

    def _trial(self, name: str, trial: _Trial, _: Record) -> None:
        if self._home.is_deleted(("trial", name)):
            return
        params = trial.start["params"] if trial.start is not None else {}
        if trial.start is not None:
            run = self._start(trial.start)
        else:
            run = self._home.known(("trial", name))
        tags = {"host": trial.host} | (trial.end["words"] if trial.end else {})
        self._home.write(run, params=params, tags=tags, epochs=trial.epochs)
        if trial.end is not None:
            self._end(run, trial.end)

    def _do_settle(self, record: Record) -> None:
        """Bring a trial of an earlier run to where it was; mostly it is there."""
        key, state = ("trial", record["trial"]), record["state"]
        if self._home.is_deleted(key):
            return
        epochs = [(int(epoch), values) for epoch, values in record["curve"].items()]
        last = epochs[-1][0] if epochs else -1
        if self._home.has(key):
            there = self._home.known(key)
            ended = (there.state, there.status) == (state, names.STATUS[state])
            if there.epoch >= last and (state == "running" or ended):
                return
        run = self._create(record)
        # Nobody wrote down when each epoch ended: they are spread evenly.
        began = record["started"]
        pace = max(record["at"] - began, 0.0) / max(len(epochs), 1)
        timed = [(e, began + pace * i, values) for i, (e, values) in enumerate(epochs, start=1)]
        words = {"restored": "from the journal"} if run.epoch < last else {}
        if state != "running":
            words |= record["words"]
        self._home.write(run, params=record["params"], tags=words, epochs=timed)
        if state != "running":
            self._end(run, record)

    def _start(self, record: Record) -> KnownRun:
        again = self._home.has(("trial", record["trial"]))
        run = self._create(record)
        if again:  # it goes on, perhaps after an end
            self._home.write(run, tags={"state": "running"})
            self._home.set_status(run, "RUNNING", moment=record["at"])
        return run

    def _create(self, record: Record) -> KnownRun:
        moment = record.get("started", record["at"])
        parent = self._branch(record["loss"], record["group"], moment)
        tags = {
            names.KIND: "trial",
            names.TRIAL: record["trial"],
            PARENT: parent.run_id,
            "state": "running",
            **record.get("more_tags", {}),
            **record["tags"],
            **self._common,
        }
        return self._home.create(
            ("trial", record["trial"]), name=record["name"], tags=tags, start=moment
        )

    def _end(self, run: KnownRun, record: Record) -> None:
        self._home.set_status(run, names.STATUS[record["state"]], moment=record["at"])
        if record.get("best") is not None:
            self._best(record)

    def _best(self, record: Record) -> None:
        """Best scores so far, on the loss and on the study: what their charts show."""
        loss, objective = record["loss"], record["objective"]
        for key, name in ((("loss", loss), _best_key(objective)), (STUDY_KEY, _best_key(loss))):
            self._home.log_best(
                self._home.known(key),
                key=name,
                value=record["best"],
                number=record["number"],
                moment=record["at"],
            )

    def _branch(self, loss: str, group: str, moment: float) -> KnownRun:
        """The run a trial hangs on: its loss, or the loss's sweep or confirmation."""
        run = self._loss(loss, moment)
        if not group:
            return run
        tags = {names.KIND: "group", names.GROUP: group, "loss": loss, PARENT: run.run_id}
        return self._home.create(
            ("group", loss, group),
            name=f"{loss} {group}",
            tags={**tags, **self._common},
            start=moment,
        )

    def _loss(self, loss: str, moment: float) -> KnownRun:
        study = self._home.known(STUDY_KEY)
        tags = {names.KIND: "loss", "loss": loss, PARENT: study.run_id, **self._common}
        if self._objective:
            tags[names.OBJECTIVE] = self._objective
        return self._home.create(("loss", loss), name=loss, tags=tags, start=moment)

    def _do_study(self, record: Record) -> None:
        self._study, plan = record, record["plan"]
        self._home.claim(record["name"])
        self._objective = str(plan.get("protocol", {}).get("objective", ""))
        tags = {names.KIND: "study", names.STUDY: record["name"], **self._common}
        study = self._home.create(STUDY_KEY, name=record["name"], tags=tags, start=record["at"])
        self._home.write(
            study, params=record["params"], tags={NOTE: record["note"], **names.plan_tags(plan)}
        )
        text = json.dumps(plan, ensure_ascii=False, indent=1)
        plan_file = partial(files.store_text, self._home.client, study.run_id, text)
        self._store(("plan",), partial(plan_file, names.PLAN_FILE))
        if record["dataset"]:
            self._home.log_dataset(study, record["dataset"])
        for loss in record["losses"]:
            run = self._loss(loss, record["at"])
            self._home.write(run, tags={NOTE: record["loss_notes"].get(loss, "")})
            self._home.set_status(run, "RUNNING", moment=record["at"])
        self._home.set_status(study, "RUNNING", moment=record["at"])

    def _do_baseline(self, record: Record) -> None:
        if self._home.is_deleted(("baseline",)):
            return
        study = self._home.known(STUDY_KEY)
        tags = {names.KIND: "baseline", "origin": "untrained", PARENT: study.run_id, **self._common}
        moment = record["at"]
        run = self._home.create(("baseline",), name="untrained backbone", tags=tags, start=moment)
        # Step 0 for validation, 1 for test: each is logged once, a repeated call changes nothing.
        self._home.write(run, epochs=[(record["step"], moment, record["metrics"])])
        if run.status == "RUNNING":  # the test scores come days later, and take no days
            self._home.set_status(run, "FINISHED", moment=moment)

    def _do_artifact(self, record: Record) -> None:
        if self._home.is_deleted(("trial", record["to"])):
            return
        run = self._home.known(self._target(record["to"]))
        file = partial(files.store, self._home.client, run.run_id, Path(record["path"]))
        self._store(_file(record), partial(file, record["folder"], record.get("only")))

    def _do_gallery(self, record: Record) -> None:
        """Hang a picture on a loss and its best trial, and take it from the one best before."""
        loss, path = self._home.known(("loss", record["loss"])), Path(record["path"])
        former = ("trial", self._home.tag(loss, names.GALLERY))
        if former[1] != record["trial"] and self._home.has(former):
            files.remove(self._home.client, self._home.known(former).run_id, path.name)
        self._home.write(loss, tags={names.GALLERY: record["trial"]})
        for to in (record["trial"], record["loss"]):
            self._do_artifact({"to": to, "path": record["path"], "folder": ""})

    def _target(self, to: str) -> tuple[str, ...]:
        if to == "study":
            return STUDY_KEY
        trial = ("trial", to)
        return trial if self._home.has(trial) else ("loss", to)

    def _do_note(self, record: Record) -> None:
        self._home.write(self._home.known(STUDY_KEY), tags={NOTE: record["text"]})

    def _do_finish(self, record: Record) -> None:
        state, moment = record["state"], record["at"]
        # Trials that were interrupted keep their state: they go on when the study does.
        for key in self._home.open_trials() if state != "FINISHED" else ():
            if not self._home.was_deleted(key):
                self._home.set_status(self._home.known(key), "KILLED", moment=moment)
        for key in self._home.branches():
            self._home.set_status(self._home.known(key), state, moment=moment)


def _best_key(name: str) -> str:
    """The best so far of a metric or loss: not the metric itself, whose steps are epochs.

    The slash makes one section of charts of them.
    """
    return "best/" + re.sub(r"[^\w.\-: ]", " ", name)  # MLflow refuses `proxy_anchor+synthesis`


def _file(record: Record) -> tuple[Any, ...]:
    return tuple(record.get(key) for key in ("path", "to", "folder"))


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return ""
