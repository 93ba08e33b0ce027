"""MLflow experiment of a study: creates each run and logs each epoch exactly once.

The runs that the store already holds are queried once. A record whose run or epoch exists changes
nothing, so records may be applied again after any crash.
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
from study.tracking.health import require_own_experiment
from study.tracking.queries import RunRow, fetch_runs
from study.utils.tracking_uri import with_driver

MAX_METRICS_PER_BATCH = 800
MAX_PARAMS_OR_TAGS_PER_BATCH = 100
MAX_TAG_LENGTH = 8000
MAX_PARAM_LENGTH = 6000
EXPERIMENT_KIND_TAG = "mlflow.experimentKind"

PERMANENT_ERROR_CODES = {
    "INVALID_PARAMETER_VALUE",
    "RESOURCE_DOES_NOT_EXIST",
    "RESOURCE_ALREADY_EXISTS",
    "MALFORMED_REQUEST",
}
"""Error codes for which repeating the request is useless."""

RunKey = tuple[str, ...]
EpochMetrics = tuple[int, float, Mapping[str, float]]
"""Number of the epoch, time in seconds, metrics."""


class RecordRefusedError(Exception):
    """The store will never accept this record; the message is the reason."""


@dataclass
class RunState:
    """A run of the store, with the state that is needed to apply records to it."""

    run_id: str
    last_epoch: int = -1
    state: str = ""
    status: str = "RUNNING"
    has_params: bool = False
    best_scores: dict[str, tuple[float, int]] = field(default_factory=dict)


class MlflowExperiment:
    """A study's experiment in an MLflow tracking store.

    A trial's run that a user deleted in MLflow stays deleted, even if further records arrive.
    Parent runs (study, losses, groups) are restored when further records arrive.

    Args:
        uri: Tracking URI (SQLite, PostgreSQL or a server).
        experiment: Name of the study's experiment, which holds only this study.
        artifact_root: Artifact folder of a new experiment in a database store; None lets the server
            choose.
        study_id: Random id of the study; an experiment with another id is left alone.
    """

    def __init__(
        self, uri: str, *, experiment: str, artifact_root: Path | None, study_id: str = ""
    ) -> None:
        self._client = MlflowClient(tracking_uri=with_driver(uri))
        self._experiment_name, self._study_id = experiment, study_id
        self._artifact_root = artifact_root
        self._experiment_id = ""
        self._runs: dict[RunKey, RunState] = {}
        self._deleted_runs: dict[RunKey, RunState] = {}
        self._uncertain_keys: set[RunKey] = set()

    @property
    def client(self) -> MlflowClient:
        """MLflow's client of this store."""
        return self._client

    def connect(self) -> None:
        """Find or create the experiment and index its runs; later calls do nothing."""
        if self._experiment_id:
            return
        found = self._client.get_experiment_by_name(self._experiment_name)
        if found is None:
            root = self._artifact_root.absolute().as_uri() if self._artifact_root else None
            experiment_id = self._client.create_experiment(
                self._experiment_name, artifact_location=root, tags=self._study_id_tags()
            )
        else:
            require_own_experiment(
                found.lifecycle_stage,
                found.tags,
                experiment=self._experiment_name,
                study_id=self._study_id,
            )
            experiment_id = found.experiment_id
        self._index_runs(experiment_id)
        for row in fetch_runs(self._client, experiment_id, {}, deleted=True):
            if (key := run_key(row.tags)) is not None and key not in self._runs:
                self._deleted_runs[key] = _run_state_from_row(row)
        self._experiment_id = experiment_id

    def claim_for_study(self, study: str) -> None:
        """Tag the experiment with this study's name and id.

        Raises:
            StudyError: The experiment holds another study.
        """
        owner = self._client.get_experiment(self._experiment_id).tags.get(names.STUDY_TAG, study)
        if owner != study:
            raise StudyError(
                f"the MLflow experiment {self._experiment_name!r} holds the study {owner!r}, not "
                f"{study!r}; choose another experiment name"
            )
        # The id before the name: a study with a name and no id is one of an earlier version.
        tags = {
            **self._study_id_tags(),
            names.STUDY_TAG: study,
            EXPERIMENT_KIND_TAG: "custom_model_development",
        }
        for key, value in tags.items():
            self._client.set_experiment_tag(self._experiment_id, key, value)

    def _study_id_tags(self) -> dict[str, str]:
        return {names.STUDY_ID_TAG: self._study_id} if self._study_id else {}

    def require_run(self, key: RunKey) -> RunState:
        """Return the run with this key.

        Raises:
            RecordRefusedError: There is none.
        """
        try:
            return self._runs[key]
        except KeyError:
            raise RecordRefusedError(
                f"the store has no run of {' '.join(key)}; it may have been deleted"
            ) from None

    def is_deleted(self, key: RunKey) -> bool:
        """Whether a user deleted the run."""
        return key in self._deleted_runs

    def has_run(self, key: RunKey) -> bool:
        """Whether the run exists."""
        return key in self._runs

    def parent_run_keys(self) -> list[RunKey]:
        """Return the keys of the parent runs: groups, losses, then the study."""
        order = ("group", "loss", "study")
        return [key for kind in order for key in self._runs if key[0] == kind]

    def running_trial_keys(self) -> list[RunKey]:
        """Return the keys of the trials whose runs have not ended."""
        return [k for k, run in self._runs.items() if k[0] == "trial" and run.status == "RUNNING"]

    def detect_deletion(self, key: RunKey) -> bool:
        """Query whether a user deleted an indexed run, and record it if so."""
        if key not in self._runs or self._lifecycle_stage(key) == "active":
            return False
        self._deleted_runs[key] = self._runs.pop(key)
        return True

    def restore_experiment_if_deleted(self) -> bool:
        """Restore the study's experiment if a user deleted it; return whether that happened."""
        experiment = self._client.get_experiment(self._experiment_id)
        if experiment.lifecycle_stage != "deleted":
            return False
        self._client.restore_experiment(self._experiment_id)
        return True

    def restore_run_if_deleted(self, key: RunKey) -> bool:
        """Restore an indexed run if a user deleted it; return whether a user did.

        A run that was deleted permanently is removed from the index, so that it can be created
        again; its former children then have no parent.
        """
        stage = self._lifecycle_stage(key)
        if stage == "deleted":
            self._client.restore_run(self._runs[key].run_id)
        elif stage == "gone":
            del self._runs[key]
        return stage != "active"

    def _lifecycle_stage(self, key: RunKey) -> str:
        """Return whether an indexed run is `active`, `deleted` or `gone` from the store."""
        try:
            return str(self._client.get_run(self._runs[key].run_id).info.lifecycle_stage)
        except MlflowException as error:
            if error.error_code != "RESOURCE_DOES_NOT_EXIST":
                raise
        return "gone"

    def get_or_create_run(
        self, key: RunKey, *, name: str, tags: Mapping[str, str], start: float
    ) -> RunState:
        """Return the run with this key; create it if missing, restore it if deleted."""
        if key in self._deleted_runs:
            self._client.restore_run(self._deleted_runs[key].run_id)
            self._runs[key] = self._deleted_runs.pop(key)
        if key in self._uncertain_keys:  # the answer to the last attempt was lost
            self._index_runs(self._experiment_id, only=key)
        if key not in self._runs:
            self._uncertain_keys.add(key)
            run = self._client.create_run(
                self._experiment_id,
                start_time=_to_milliseconds(start),
                tags=_truncate_tags(tags),
                run_name=name,
            )
            self._runs[key] = RunState(run.info.run_id)
        self._uncertain_keys.discard(key)
        return self._runs[key]

    def log_run_data(
        self,
        run: RunState,
        *,
        params: Mapping[str, str] | None = None,
        tags: Mapping[str, str] | None = None,
        epochs: Iterable[EpochMetrics] = (),
    ) -> None:
        """Log parameters (once, since MLflow never changes them), tags and new epochs.

        This takes as few requests as MLflow's limits allow: one for a trial of ordinary size.
        """
        new_params = [] if run.has_params else list((params or {}).items())
        new_tags = list(_truncate_tags(tags or {}).items())
        values = _new_epoch_metrics(run.last_epoch, epochs)
        while new_params or new_tags or values:
            count = _whole_epoch_batch_size(values, MAX_METRICS_PER_BATCH)
            self._client.log_batch(
                run.run_id,
                metrics=values[:count],
                params=[
                    Param(key, text[:MAX_PARAM_LENGTH])
                    for key, text in new_params[:MAX_PARAMS_OR_TAGS_PER_BATCH]
                ],
                tags=[RunTag(key, text) for key, text in new_tags[:MAX_PARAMS_OR_TAGS_PER_BATCH]],
            )
            if count:
                run.last_epoch = values[count - 1].step
            new_params = new_params[MAX_PARAMS_OR_TAGS_PER_BATCH:]
            new_tags = new_tags[MAX_PARAMS_OR_TAGS_PER_BATCH:]
            values = values[count:]
        run.has_params = run.has_params or bool(params)
        run.state = (tags or {}).get("state", run.state)

    def log_best_score(
        self, run: RunState, *, key: str, value: float, number: int, moment: float
    ) -> None:
        """Log the best score so far, with the trial's number as step; repetitions are skipped.

        If a trial with a lower number ends later with a better score, its step is the next free
        one, because MLflow draws one value per step.
        """
        before, step = run.best_scores.get(key, (-float("inf"), -1))
        if value <= before and number <= step:
            return
        value, step = max(value, before), number if number > step else step + 1
        self._client.log_batch(
            run.run_id, metrics=[Metric(key, value, _to_milliseconds(moment), step)]
        )
        run.best_scores[key] = (value, step)

    def set_status(self, run: RunState, status: str, *, moment: float) -> None:
        """Set a run's status; every status except RUNNING ends the run."""
        if status == "RUNNING":
            self._client.update_run(run.run_id, status="RUNNING")
        else:
            self._client.set_terminated(run.run_id, status, end_time=_to_milliseconds(moment))
        run.status = status

    def get_tag(self, run: RunState, key: str) -> str:
        """Return the present value of a run's tag; empty if the run has no such tag."""
        return str(self._client.get_run(run.run_id).data.tags.get(key, ""))

    def log_dataset(self, run: RunState, info: Mapping[str, Any]) -> None:
        """Log the study's data set as an MLflow dataset."""
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

    def _index_runs(self, experiment_id: str, *, only: RunKey | None = None) -> None:
        """Index the study's runs; of several with the same key, keep the most advanced one."""
        required_tags = {} if only is None else _run_key_tags(only)
        runs_by_key: dict[RunKey, list[RunRow]] = {}
        for run in fetch_runs(self._client, experiment_id, required_tags):
            key = run_key(run.tags)
            if key is not None:
                runs_by_key.setdefault(key, []).append(run)
        for key, runs in runs_by_key.items():
            first, *others = sorted(runs, key=lambda r: (-r.last_step, r.started, r.run_id))
            for other in others:
                self._client.delete_run(other.run_id)
            self._runs[key] = _run_state_from_row(first)


def run_key(tags: Mapping[str, str]) -> RunKey | None:
    """Return the key of a run within its study, from its tags; None for runs of other origin."""
    kind = tags.get(names.KIND_TAG)
    if kind == "trial":
        return ("trial", tags.get(names.TRIAL_TAG, ""))
    if kind == "loss":
        return ("loss", tags.get("loss", ""))
    if kind == "group":
        return ("group", tags.get("loss", ""), tags.get(names.GROUP_TAG, ""))
    return (kind,) if kind in ("study", "baseline") else None


def is_permanent_error(error: MlflowException) -> bool:
    """Whether repeating the request is useless.

    MLflow answers BAD_REQUEST to every database error except a lost connection. Only errors about
    the values themselves are permanent: a database that is read-only or full may accept them later.
    Direct access and servers both quote SQLAlchemy's error code.
    """
    if error.error_code == "BAD_REQUEST":
        return any(f"/{code})" in str(error) for code in (DataError.code, IntegrityError.code))
    return error.error_code in PERMANENT_ERROR_CODES


def _run_key_tags(key: RunKey) -> dict[str, str]:
    """Return the tags from which `run_key` makes this key."""
    own = {"trial": (names.TRIAL_TAG,), "loss": ("loss",), "group": ("loss", names.GROUP_TAG)}
    return {names.KIND_TAG: key[0], **dict(zip(own.get(key[0], ()), key[1:], strict=True))}


def _run_state_from_row(run: RunRow) -> RunState:
    trial = run.tags.get(names.KIND_TAG) == "trial"
    return RunState(
        run.run_id,
        last_epoch=run.last_step,
        state=run.tags.get("state", ""),
        status=run.status,
        has_params=bool(run.params),
        best_scores={} if trial else dict(run.latest),
    )


def _to_milliseconds(seconds: float) -> int:
    return int(seconds * 1000)


def _truncate_tags(tags: Mapping[str, str]) -> dict[str, str]:
    return {key: value[:MAX_TAG_LENGTH] for key, value in tags.items() if value != ""}


def _new_epoch_metrics(reached: int, epochs: Iterable[EpochMetrics]) -> list[Metric]:
    """Return the values of epochs after `reached`, each epoch once."""
    metrics: list[Metric] = []
    for epoch, moment, values in epochs:
        if epoch > reached:
            metrics += [
                Metric(key, value, _to_milliseconds(moment), epoch) for key, value in values.items()
            ]
            reached = epoch
    return metrics


def _whole_epoch_batch_size(values: Sequence[Metric], limit: int) -> int:
    """Return how many of the values fit into a request without splitting an epoch."""
    if len(values) <= limit:
        return len(values)
    count = limit
    while count and values[count].step == values[count - 1].step:
        count -= 1
    return count or limit
