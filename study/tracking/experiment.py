"""How do a study's records become MLflow runs, each exactly once?

The store is asked once which runs of the study it holds; from then on a record whose run or epoch
is already there changes nothing. So records may be replayed after any crash.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mlflow import MlflowClient
from mlflow.entities import Dataset, DatasetInput, InputTag, Metric, Param, RunTag
from mlflow.exceptions import MlflowException
from sqlalchemy.exc import DataError, IntegrityError

from study.errors import StudyError
from study.tracking import records as names
from study.tracking.address import with_driver
from study.tracking.fetch import RunRow, fetch_runs
from study.tracking.probe import refuse_foreign

BATCH_METRICS = 800
BATCH_OTHERS = 100
TAG_LENGTH = 8000
PARAM_LENGTH = 6000
KIND_OF_EXPERIMENT = "mlflow.experimentKind"

PERMANENT = {
    "INVALID_PARAMETER_VALUE",
    "RESOURCE_DOES_NOT_EXIST",
    "RESOURCE_ALREADY_EXISTS",
    "MALFORMED_REQUEST",
}
"""Answers that stay the same however often the question is repeated."""

Key = tuple[str, ...]
Epoch = tuple[int, float, Mapping[str, float]]
"""Number, time in seconds, metrics."""


class RefusedError(Exception):
    """The store will never take this record; the message says why."""


@dataclass
class KnownRun:
    """A run of the store, with what replaying needs to know of it."""

    run_id: str
    epoch: int = -1
    state: str = ""
    status: str = "RUNNING"
    described: bool = False
    best: dict[str, tuple[float, int]] = field(default_factory=dict)


class Home:
    """A study's experiment in an MLflow tracking store.

    A trial's run that somebody deleted in MLflow stays deleted, whatever is told of it later. The
    runs that others hang on (study, losses, groups) come back when more is told of them.

    Args:
        uri: Tracking URI (sqlite, PostgreSQL or a server).
        experiment: Name of the study's experiment; it holds this study alone.
        study_id: The study's own; an experiment with another is not touched.
        artifact_root: Where a new experiment of a database store keeps artifacts; None leaves it
            to the server.
    """

    def __init__(
        self, uri: str, *, experiment: str, artifact_root: Path | None, study_id: str = ""
    ) -> None:
        self._client = MlflowClient(tracking_uri=with_driver(uri))
        self._experiment, self._study_id = experiment, study_id
        self._artifact_root = artifact_root
        self._experiment_id = ""
        self._runs: dict[Key, KnownRun] = {}
        self._deleted: dict[Key, KnownRun] = {}
        self._unsure: set[Key] = set()

    @property
    def client(self) -> MlflowClient:
        """MLflow's client of this store."""
        return self._client

    def connect(self) -> None:
        """Find or make the experiment and learn which runs it holds; does nothing when known."""
        if self._experiment_id:
            return
        found = self._client.get_experiment_by_name(self._experiment)
        if found is None:
            root = self._artifact_root.absolute().as_uri() if self._artifact_root else None
            experiment_id = self._client.create_experiment(
                self._experiment, artifact_location=root, tags=self._mark()
            )
        else:
            refuse_foreign(
                found.lifecycle_stage,
                found.tags,
                experiment=self._experiment,
                study_id=self._study_id,
            )
            experiment_id = found.experiment_id
        self._learn(experiment_id)
        for row in fetch_runs(self._client, experiment_id, {}, deleted=True):
            if (key := key_of(row.tags)) is not None and key not in self._runs:
                self._deleted[key] = _known(row)
        self._experiment_id = experiment_id

    def claim(self, study: str) -> None:
        """Mark the experiment as this study's; refuse one that holds another study."""
        held = self._client.get_experiment(self._experiment_id).tags.get(names.STUDY, study)
        if held != study:
            raise StudyError(
                f"The MLflow experiment {self._experiment!r} holds the study {held!r}, not "
                f"{study!r}: give this study another experiment name."
            )
        # The id before the name: a study with a name and no id is one of an earlier version.
        marks = {**self._mark(), names.STUDY: study, KIND_OF_EXPERIMENT: "custom_model_development"}
        for key, value in marks.items():
            self._client.set_experiment_tag(self._experiment_id, key, value)

    def _mark(self) -> dict[str, str]:
        return {names.STUDY_ID: self._study_id} if self._study_id else {}

    def known(self, key: Key) -> KnownRun:
        """The run of this key; RefusedError when there is none."""
        try:
            return self._runs[key]
        except KeyError:
            raise RefusedError(f"no run of {' '.join(key)} in the store (deleted there?)") from None

    def is_deleted(self, key: Key) -> bool:
        """Whether somebody deleted the run."""
        return key in self._deleted

    def has(self, key: Key) -> bool:
        """Whether the run is there already."""
        return key in self._runs

    def branches(self) -> list[Key]:
        """Keys of the runs that only hold others: groups, losses, then the study."""
        order = ("group", "loss", "study")
        return [key for kind in order for key in self._runs if key[0] == kind]

    def open_trials(self) -> list[Key]:
        """Keys of the trials whose runs have not ended."""
        return [k for k, run in self._runs.items() if k[0] == "trial" and run.status == "RUNNING"]

    def was_deleted(self, key: Key) -> bool:
        """Ask whether somebody deleted a run that is known; if so, it is known as deleted."""
        if key not in self._runs or self._stage(key) == "active":
            return False
        self._deleted[key] = self._runs.pop(key)
        return True

    def bring_experiment_back(self) -> bool:
        """Restore the study's experiment if somebody deleted it; whether somebody did."""
        experiment = self._client.get_experiment(self._experiment_id)
        if experiment.lifecycle_stage != "deleted":
            return False
        self._client.restore_experiment(self._experiment_id)
        return True

    def bring_back(self, key: Key) -> bool:
        """Restore a run that is known if somebody deleted it; whether somebody did.

        One that is gone for good is no longer known, and can be made anew; what hung on it hangs
        on nothing then.
        """
        stage = self._stage(key)
        if stage == "deleted":
            self._client.restore_run(self._runs[key].run_id)
        elif stage == "gone":
            del self._runs[key]
        return stage != "active"

    def _stage(self, key: Key) -> str:
        """Whether a known run is `active`, `deleted` or `gone` from the store."""
        try:
            return str(self._client.get_run(self._runs[key].run_id).info.lifecycle_stage)
        except MlflowException as error:
            if error.error_code != "RESOURCE_DOES_NOT_EXIST":
                raise
        return "gone"

    def create(self, key: Key, *, name: str, tags: Mapping[str, str], start: float) -> KnownRun:
        """The run of this key, made unless it is there, or brought back."""
        if key in self._deleted:
            self._client.restore_run(self._deleted[key].run_id)
            self._runs[key] = self._deleted.pop(key)
        if key in self._unsure:  # the last attempt's answer got lost: the run may well exist
            self._learn(self._experiment_id, only=key)
        if key not in self._runs:
            self._unsure.add(key)
            run = self._client.create_run(
                self._experiment_id, start_time=_millis(start), tags=_tags(tags), run_name=name
            )
            self._runs[key] = KnownRun(run.info.run_id)
        self._unsure.discard(key)
        return self._runs[key]

    def write(
        self,
        run: KnownRun,
        *,
        params: Mapping[str, str] | None = None,
        tags: Mapping[str, str] | None = None,
        epochs: Iterable[Epoch] = (),
    ) -> None:
        """Log settings (once: MLflow never changes them), epochs not logged yet, and tags.

        All in as few requests as MLflow's limits allow: one, for a trial of ordinary size.
        """
        settings = [] if run.described else list((params or {}).items())
        words = list(_tags(tags or {}).items())
        values = _metrics(run.epoch, epochs)
        while settings or words or values:
            count = _whole_epochs(values, BATCH_METRICS)
            self._client.log_batch(
                run.run_id,
                metrics=values[:count],
                params=[Param(key, text[:PARAM_LENGTH]) for key, text in settings[:BATCH_OTHERS]],
                tags=[RunTag(key, text) for key, text in words[:BATCH_OTHERS]],
            )
            if count:
                run.epoch = values[count - 1].step
            settings, words, values = settings[BATCH_OTHERS:], words[BATCH_OTHERS:], values[count:]
        run.described = run.described or bool(params)
        run.state = (tags or {}).get("state", run.state)

    def log_best(
        self, run: KnownRun, *, key: str, value: float, number: int, moment: float
    ) -> None:
        """Log the best score so far, with the trial's number as step; told again, it is not.

        A trial that ends after later ones, and is better, takes the next step: one value each.
        """
        before, step = run.best.get(key, (-float("inf"), -1))
        if value <= before and number <= step:
            return
        value, step = max(value, before), number if number > step else step + 1
        self._client.log_batch(run.run_id, metrics=[Metric(key, value, _millis(moment), step)])
        run.best[key] = (value, step)

    def set_status(self, run: KnownRun, status: str, *, moment: float) -> None:
        """Set a run's status; every status but RUNNING ends it."""
        if status == "RUNNING":
            self._client.update_run(run.run_id, status="RUNNING")
        else:
            self._client.set_terminated(run.run_id, status, end_time=_millis(moment))
        run.status = status

    def tag(self, run: KnownRun, key: str) -> str:
        """A run's tag as the store has it now; empty when it has none."""
        return str(self._client.get_run(run.run_id).data.tags.get(key, ""))

    def log_dataset(self, run: KnownRun, info: Mapping[str, Any]) -> None:
        """Log what the study's data are as an MLflow dataset."""
        name, digest = str(info["name"]), str(info.get("fingerprint", "unknown"))
        counts = {k: v for k, v in info.items() if k not in ("name", "fingerprint")}
        dataset = Dataset(
            name=name[:500],
            digest=digest[:36],
            source_type="local",
            source=json.dumps({"uri": name}),
            profile=json.dumps(counts),
        )
        context = InputTag("mlflow.data.context", "training")
        self._client.log_inputs(run.run_id, [DatasetInput(dataset, [context])])

    def _learn(self, experiment_id: str, *, only: Key | None = None) -> None:
        """Index the study's runs; of two with one key, keep the further one, delete the other."""
        wanted = {} if only is None else _tags_of(only)
        found: dict[Key, list[RunRow]] = {}
        for run in fetch_runs(self._client, experiment_id, wanted):
            key = key_of(run.tags)
            if key is not None:
                found.setdefault(key, []).append(run)
        for key, runs in found.items():
            first, *others = sorted(runs, key=lambda r: (-r.last_step, r.started, r.run_id))
            for other in others:
                self._client.delete_run(other.run_id)
            self._runs[key] = _known(first)


def key_of(tags: Mapping[str, str]) -> Key | None:
    """What a run is within its study, from its tags; None for runs that are not ours."""
    kind = tags.get(names.KIND)
    if kind == "trial":
        return ("trial", tags.get(names.TRIAL, ""))
    if kind == "loss":
        return ("loss", tags.get("loss", ""))
    if kind == "group":
        return ("group", tags.get("loss", ""), tags.get(names.GROUP, ""))
    return (kind,) if kind in ("study", "baseline") else None


def is_permanent(error: MlflowException) -> bool:
    """Whether repeating the request is useless.

    MLflow answers BAD_REQUEST to whatever a database says but that it is not there: of that, only
    what the database has against the values themselves is for good. A database that is read-only
    for a while, or full, will take them later. Both ways to a database quote SQLAlchemy's code.
    """
    if error.error_code == "BAD_REQUEST":
        return any(f"/{code})" in str(error) for code in (DataError.code, IntegrityError.code))
    return error.error_code in PERMANENT


def _tags_of(key: Key) -> dict[str, str]:
    """The inverse of `key_of`."""
    own = {"trial": (names.TRIAL,), "loss": ("loss",), "group": ("loss", names.GROUP)}
    return {names.KIND: key[0], **dict(zip(own.get(key[0], ()), key[1:], strict=True))}


def _known(run: RunRow) -> KnownRun:
    trial = run.tags.get(names.KIND) == "trial"
    return KnownRun(
        run.run_id,
        epoch=run.last_step,
        state=run.tags.get("state", ""),
        status=run.status,
        described=bool(run.params),
        best={} if trial else dict(run.latest),
    )


def _millis(seconds: float) -> int:
    return int(seconds * 1000)


def _tags(tags: Mapping[str, str]) -> dict[str, str]:
    return {key: value[:TAG_LENGTH] for key, value in tags.items() if value != ""}


def _metrics(reached: int, epochs: Iterable[Epoch]) -> list[Metric]:
    """The values of epochs beyond the one reached, each epoch once."""
    found: list[Metric] = []
    for epoch, moment, values in epochs:
        if epoch > reached:
            found += [Metric(key, value, _millis(moment), epoch) for key, value in values.items()]
            reached = epoch
    return found


def _whole_epochs(values: Sequence[Metric], limit: int) -> int:
    """How many of the values fit into a request without cutting an epoch in two."""
    if len(values) <= limit:
        return len(values)
    count = limit
    while count and values[count].step == values[count - 1].step:
        count -= 1
    return count or limit
