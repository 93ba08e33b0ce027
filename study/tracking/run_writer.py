"""Record applier: applies spooled records to the study's MLflow runs.

Records of one trial within a chunk are combined, so that many epochs cost one request and not one
request per metric.
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

from study.tracking import artifacts
from study.tracking import records as names
from study.tracking.experiment import (
    MlflowExperiment,
    RecordRefusedError,
    RunState,
    is_permanent_error,
)

SpoolRecord = Mapping[str, Any]
NOTE_TAG = "mlflow.note.content"
PARENT_RUN_TAG = "mlflow.parentRunId"
STUDY_KEY = ("study",)


@dataclass
class _TrialUpdate:
    """Records of one trial within a chunk."""

    start: SpoolRecord | None = None
    epochs: list[tuple[int, float, dict[str, float]]] = field(default_factory=list)
    end: SpoolRecord | None = None
    tags: dict[str, str] = field(default_factory=dict)


class RecordApplier:
    """Applies records to an experiment, in order, any number of times.

    Args:
        experiment: The study's experiment.
        refuse: Called with each record that the store will never accept, and the reason.
    """

    def __init__(
        self, experiment: MlflowExperiment, *, refuse: Callable[[SpoolRecord, str], None]
    ) -> None:
        self._experiment = experiment
        self._on_refused = refuse
        self._trial_updates: dict[str, _TrialUpdate] = {}
        self._objective = ""
        self._study_record: SpoolRecord | None = None
        self._unstored_files: dict[tuple[Any, ...], tuple[Callable[[], None], str]] = {}
        self._restored_names: dict[str, None] = {}
        self._common_tags = {"mlflow.user": _user_name(), "mlflow.source.name": "dml-study"}
        self._common_tags["mlflow.source.type"] = "LOCAL"

    def apply_records(self, records: Sequence[SpoolRecord]) -> int:
        """Apply records to the store.

        Any exception means that the store did not answer; the same records can then be applied
        again.

        Returns:
            Number of records that the store refused.
        """
        self._experiment.connect()
        self._trial_updates = {}
        refused = 0
        newest = {_artifact_identity(record): number for number, record in enumerate(records)}
        for number, record in enumerate(records):
            op = record.get("op")
            if op == "artifact" and newest[_artifact_identity(record)] != number:
                continue  # a later copy of the same file follows
            if op in ("start", "epoch", "end"):
                self._collect_trial_record(record)
                continue
            refused += self._flush_trials()
            action = getattr(self, f"_do_{op}", None)
            refused += self._apply_or_refuse(action, record) if action else 1
        return refused + self._flush_trials()

    @property
    def n_unstored_files(self) -> int:
        """Number of files that could not be stored yet."""
        return len(self._unstored_files)

    @property
    def storage_problem(self) -> str:
        """Why the first of these files could not be stored; empty if there is none."""
        return next((reason for _, reason in self._unstored_files.values()), "")

    @property
    def restored_runs_note(self) -> str:
        """One line that names the deleted runs that were restored; empty if there are none."""
        runs = ", ".join(self._restored_names)
        return (
            f"restored runs that were deleted in MLflow, because other runs belong to them: {runs}"
            if runs
            else ""
        )

    def retry_unstored_files(self) -> int:
        """Try again to store those files; return how many the store refused permanently."""
        waiting = {name: store for name, (store, _) in self._unstored_files.items()}
        return sum(
            self._apply_or_refuse(partial(self._retry_file, name, store), {"file": list(name)})
            for name, store in waiting.items()
        )

    def _retry_file(self, name: tuple[Any, ...], store: Callable[[], None], _: SpoolRecord) -> None:
        self._store_or_defer(name, store)

    def _store_or_defer(self, name: tuple[Any, ...], store: Callable[[], None]) -> None:
        """Store a file, or keep it for `retry_unstored_files` so that it blocks nothing else."""
        self._unstored_files.pop(name, None)
        try:
            store()
        except RecordRefusedError:
            raise
        except Exception as error:  # artifact stores (disk, S3, server) raise errors of any type
            if isinstance(error, MlflowException) and is_permanent_error(error):
                raise
            reason = f"{type(error).__name__}: {str(error).strip()}"
            self._unstored_files[name] = (store, f"a file cannot be stored: {reason}")

    def _collect_trial_record(self, record: SpoolRecord) -> None:
        trial = self._trial_updates.setdefault(record["trial"], _TrialUpdate())
        # A record after an end cancels it: the trial was started again.
        trial.end = record if record["op"] == "end" else None
        if record["op"] == "start":
            trial.start = record
        elif record["op"] == "epoch":
            trial.epochs.append((record["epoch"], record["at"], record["metrics"]))
            if "host" in record:  # a spool of version 0.1
                trial.tags["host"] = record["host"]
            trial.tags |= record.get("tags", {})

    def _flush_trials(self) -> int:
        trials, self._trial_updates = self._trial_updates, {}
        refused = 0
        for name, trial in trials.items():
            record = trial.start or trial.end or {"trial": name, "epochs": trial.epochs}
            refused += self._apply_or_refuse(partial(self._write_trial, name, trial), record)
        return refused

    def _apply_or_refuse(self, action: Callable[[SpoolRecord], None], record: SpoolRecord) -> int:
        """Perform an action, and again if a run had been deleted; return 1 if it is refused."""
        try:
            action(record)
        except RecordRefusedError as reason:
            self._on_refused(record, str(reason))
        except MlflowException as error:
            if not is_permanent_error(error):
                raise
            if self._recover_deleted_runs(record):
                return self._apply_or_refuse(action, record)
            self._on_refused(record, str(error))
        else:
            return 0
        return 1

    def _recover_deleted_runs(self, record: SpoolRecord) -> bool:
        """Restore the experiment and parent runs if a user deleted them; accept deleted trials.

        Returns:
            Whether something had been deleted, so that the action is worth repeating.
        """
        is_experiment_restored = self._experiment.restore_experiment_if_deleted()
        own_keys = ("trial", str(record.get("trial") or record.get("to"))), ("baseline",)
        deleted = [key for key in own_keys if self._experiment.detect_deletion(key)]
        restored = [
            key
            for key in self._experiment.parent_run_keys()
            if self._experiment.restore_run_if_deleted(key)
        ]
        if not self._experiment.has_run(STUDY_KEY) and self._study_record is not None:
            self._do_study(self._study_record)  # its run was deleted permanently
        labels = [" ".join(key[1:]) or "the study" for key in restored]
        if is_experiment_restored:
            labels.insert(0, "the experiment")
        self._restored_names |= dict.fromkeys(labels)
        return bool(is_experiment_restored or deleted or restored)

    def _write_trial(self, name: str, trial: _TrialUpdate, _: SpoolRecord) -> None:
        if self._experiment.is_deleted(("trial", name)):
            return
        params = trial.start["params"] if trial.start is not None else {}
        if trial.start is not None:
            run = self._start_trial_run(trial.start)
        else:
            run = self._experiment.require_run(("trial", name))
        tags = trial.tags | (trial.end["words"] if trial.end else {})
        self._experiment.log_run_data(run, params=params, tags=tags, epochs=trial.epochs)
        if trial.end is not None:
            self._end_trial_run(run, trial.end)

    def _do_settle(self, record: SpoolRecord) -> None:
        """Write what the store lacks of a trial from an earlier run; usually nothing."""
        key, state = ("trial", record["trial"]), record["state"]
        if self._experiment.is_deleted(key):
            return
        epochs = [(int(epoch), values) for epoch, values in record["curve"].items()]
        last = epochs[-1][0] if epochs else -1
        if self._experiment.has_run(key):
            stored = self._experiment.require_run(key)
            has_ended = (stored.state, stored.status) == (state, names.RUN_STATUS_BY_STATE[state])
            if stored.last_epoch >= last and (state == "running" or has_ended):
                return
        run = self._create_trial_run(record)
        # The journal does not record when each epoch ended: spread them evenly.
        started = record["started"]
        pace = max(record["at"] - started, 0.0) / max(len(epochs), 1)
        timed = [(e, started + pace * i, values) for i, (e, values) in enumerate(epochs, start=1)]
        tags = {"restored": "from the journal"} if run.last_epoch < last else {}
        if state != "running":
            tags |= record["words"]
        self._experiment.log_run_data(run, params=record["params"], tags=tags, epochs=timed)
        if state != "running":
            self._end_trial_run(run, record)

    def _start_trial_run(self, record: SpoolRecord) -> RunState:
        is_restart = self._experiment.has_run(("trial", record["trial"]))
        run = self._create_trial_run(record)
        if is_restart:  # perhaps after an end
            self._experiment.log_run_data(run, tags={"state": "running"})
            self._experiment.set_status(run, "RUNNING", moment=record["at"])
        return run

    def _create_trial_run(self, record: SpoolRecord) -> RunState:
        moment = record.get("started", record["at"])
        parent = self._parent_run(record["loss"], record["group"], moment)
        tags = {
            names.KIND_TAG: "trial",
            names.TRIAL_TAG: record["trial"],
            PARENT_RUN_TAG: parent.run_id,
            "state": "running",
            **record.get("more_tags", {}),
            **record["tags"],
            **self._common_tags,
        }
        return self._experiment.get_or_create_run(
            ("trial", record["trial"]), name=record["name"], tags=tags, start=moment
        )

    def _end_trial_run(self, run: RunState, record: SpoolRecord) -> None:
        self._experiment.set_status(
            run, names.RUN_STATUS_BY_STATE[record["state"]], moment=record["at"]
        )
        if record.get("best") is not None:
            self._log_best_scores(record)

    def _log_best_scores(self, record: SpoolRecord) -> None:
        """Log the best score so far to the loss and to the study, for their charts."""
        loss, objective = record["loss"], record["objective"]
        for key, name in (
            (("loss", loss), _best_metric_key(objective)),
            (STUDY_KEY, _best_metric_key(loss)),
        ):
            self._experiment.log_best_score(
                self._experiment.require_run(key),
                key=name,
                value=record["best"],
                number=record["number"],
                moment=record["at"],
            )

    def _parent_run(self, loss: str, group: str, moment: float) -> RunState:
        """Return the parent run of a trial: its loss, or the loss's sweep or confirmation."""
        run = self._loss_run(loss, moment)
        if not group:
            return run
        tags = {
            names.KIND_TAG: "group",
            names.GROUP_TAG: group,
            "loss": loss,
            PARENT_RUN_TAG: run.run_id,
        }
        return self._experiment.get_or_create_run(
            ("group", loss, group),
            name=f"{loss} {group}",
            tags={**tags, **self._common_tags},
            start=moment,
        )

    def _loss_run(self, loss: str, moment: float) -> RunState:
        study = self._experiment.require_run(STUDY_KEY)
        tags = {
            names.KIND_TAG: "loss",
            "loss": loss,
            PARENT_RUN_TAG: study.run_id,
            **self._common_tags,
        }
        if self._objective:
            tags[names.OBJECTIVE_TAG] = self._objective
        return self._experiment.get_or_create_run(
            ("loss", loss), name=loss, tags=tags, start=moment
        )

    def _do_study(self, record: SpoolRecord) -> None:
        self._study_record, plan = record, record["plan"]
        self._experiment.claim_for_study(record["name"])
        self._objective = str(plan.get("protocol", {}).get("objective", ""))
        tags = {names.KIND_TAG: "study", names.STUDY_TAG: record["name"], **self._common_tags}
        study = self._experiment.get_or_create_run(
            STUDY_KEY, name=record["name"], tags=tags, start=record["at"]
        )
        self._experiment.log_run_data(
            study,
            params=record["params"],
            tags={NOTE_TAG: record["note"], **names.plan_to_tags(plan)},
        )
        text = json.dumps(plan, ensure_ascii=False, indent=1)
        plan_file = partial(artifacts.store_text, self._experiment.client, study.run_id, text)
        self._store_or_defer(("plan",), partial(plan_file, names.PLAN_FILE))
        if record["dataset"]:
            self._experiment.log_dataset(study, record["dataset"])
        for loss in record["losses"]:
            run = self._loss_run(loss, record["at"])
            self._experiment.log_run_data(run, tags={NOTE_TAG: record["loss_notes"].get(loss, "")})
            self._experiment.set_status(run, "RUNNING", moment=record["at"])
        self._experiment.set_status(study, "RUNNING", moment=record["at"])

    def _do_baseline(self, record: SpoolRecord) -> None:
        if self._experiment.is_deleted(("baseline",)):
            return
        study = self._experiment.require_run(STUDY_KEY)
        tags = {
            names.KIND_TAG: "baseline",
            "origin": "untrained",
            PARENT_RUN_TAG: study.run_id,
            **self._common_tags,
        }
        moment = record["at"]
        run = self._experiment.get_or_create_run(
            ("baseline",), name="untrained backbone", tags=tags, start=moment
        )
        # Step 0 is validation, step 1 is test: each is logged once, so a repetition is harmless.
        self._experiment.log_run_data(run, epochs=[(record["step"], moment, record["metrics"])])
        if run.status == "RUNNING":  # test scores arrive later and must not extend the run's time
            self._experiment.set_status(run, "FINISHED", moment=moment)

    def _do_artifact(self, record: SpoolRecord) -> None:
        if self._experiment.is_deleted(("trial", record["to"])):
            return
        run = self._experiment.require_run(self._artifact_run_key(record["to"]))
        file = partial(
            artifacts.store_artifact, self._experiment.client, run.run_id, Path(record["path"])
        )
        self._store_or_defer(
            _artifact_identity(record), partial(file, record["folder"], record.get("only"))
        )

    def _do_gallery(self, record: SpoolRecord) -> None:
        """Store an image with a loss and its best trial; remove it from the former best trial."""
        loss, path = self._experiment.require_run(("loss", record["loss"])), Path(record["path"])
        former = ("trial", self._experiment.get_tag(loss, names.GALLERY_TAG))
        if former[1] != record["trial"] and self._experiment.has_run(former):
            artifacts.remove_artifact(
                self._experiment.client, self._experiment.require_run(former).run_id, path.name
            )
        self._experiment.log_run_data(loss, tags={names.GALLERY_TAG: record["trial"]})
        for to in (record["trial"], record["loss"]):
            self._do_artifact({"to": to, "path": record["path"], "folder": ""})

    def _artifact_run_key(self, to: str) -> tuple[str, ...]:
        if to == "study":
            return STUDY_KEY
        trial = ("trial", to)
        return trial if self._experiment.has_run(trial) else ("loss", to)

    def _do_note(self, record: SpoolRecord) -> None:
        self._experiment.log_run_data(
            self._experiment.require_run(STUDY_KEY), tags={NOTE_TAG: record["text"]}
        )

    def _do_finish(self, record: SpoolRecord) -> None:
        state, moment = record["state"], record["at"]
        # Interrupted trials keep their state: they continue when the study does.
        for key in self._experiment.running_trial_keys() if state != "FINISHED" else ():
            if not self._experiment.detect_deletion(key):
                self._experiment.set_status(
                    self._experiment.require_run(key), "KILLED", moment=moment
                )
        for key in self._experiment.parent_run_keys():
            self._experiment.set_status(self._experiment.require_run(key), state, moment=moment)


def _best_metric_key(name: str) -> str:
    """Return the key of the best value so far; the metric itself has epochs as steps.

    MLflow groups the charts of keys with the same prefix before a slash.
    """
    return "best/" + re.sub(r"[^\w.\-: ]", " ", name)  # MLflow refuses `proxy_anchor+synthesis`


def _artifact_identity(record: SpoolRecord) -> tuple[Any, ...]:
    return tuple(record.get(key) for key in ("path", "to", "folder"))


def _user_name() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return ""
