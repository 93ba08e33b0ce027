"""Tracker: records a study in MLflow without ever waiting for the tracking server.

Every call appends one line to a spool on disk and returns. The shipper, a separate process, sends
the lines to MLflow. While the server is down, the study continues and the lines stay on disk.
"""

from __future__ import annotations

import contextlib
import logging
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from search_spaces.space import SearchSpace
from study.directory import ARTIFACTS_FOLDER
from study.errors import StudyError
from study.tracking import descriptions
from study.tracking.monitor import SLOW_STORE_REASON
from study.tracking.records import TrialRecord, encode_value, metric_key
from study.tracking.shipper import ShipperConfig, start_shipper
from study.tracking.spool import ShippingStatus, SpoolWriter, hold_exclusive_lock, read_status
from study.trials.job import Job
from study.trials.table import TrialStateName
from study.utils.redaction import environment_secrets, redact_json
from study.utils.tracking_uri import is_database
from trainables.config import Split

_logger = logging.getLogger(__name__)
_SHIPPER_RESTART_SECONDS = 10.0
_REDACTED_FIELDS = frozenset({"note", "text", "plan", "params", "more_tags", "dataset", "words"})
"""Fields of a record that may contain a secret: all but numbers and the study's own names."""


class Tracker:
    """Writes one study to its MLflow store; all calls but `flush` and `close` return at once.

    Use it as a context manager, or call `close`.

    Args:
        uri: Tracking URI: `sqlite:///...`, `postgresql://...` or a server's address. MLflow's own
            environment variables (user, password, token, certificates) apply.
        spool: Folder of the spool; only one tracker may use it at a time.
        artifact_root: Artifact folder of a new experiment in a database store; None for `artifacts`
            beside the spool. A server uses its own.
        experiment: MLflow experiment of the study, normally the study's name.
        study_id: See `MlflowExperiment`.
        interval: Seconds over which records are combined into one request.
        patience: Longest wait in seconds between two attempts to reach a server that is down.

    Raises:
        StudyError: Another process is writing to this spool.
    """

    def __init__(
        self,
        uri: str,
        *,
        spool: Path,
        artifact_root: Path | None,
        experiment: str,
        study_id: str = "",
        interval: float = 1.0,
        patience: float = 15.0,
    ) -> None:
        if artifact_root is None and is_database(uri):
            artifact_root = spool.absolute().parent / ARTIFACTS_FOLDER
        self._settings = ShipperConfig(
            uri=uri,
            spool=str(spool.absolute()),
            experiment=experiment,
            study_id=study_id,
            artifact_root=str(artifact_root.absolute()) if artifact_root else None,
            interval=interval,
            patience=patience,
        )
        spool.mkdir(parents=True, exist_ok=True)
        self._stack = contextlib.ExitStack()
        if not self._stack.enter_context(hold_exclusive_lock(spool / "writer.lock", wait=False)):
            self._stack.close()
            raise StudyError(f"another process is running this study and writes to {spool}")
        self._spool = SpoolWriter(spool)
        self._secrets = environment_secrets()
        self._spaces: dict[str, SearchSpace] = {}
        self._units: dict[str, dict[str, str]] = {}
        self._objective = ""
        self._open_trials: dict[str, tuple[Job, float | None]] = {}
        self._trial_tags: dict[str, dict[str, str]] = {}
        self._last_problem, self._has_warned_of_loss = "", False
        self._shipper: subprocess.Popen[bytes] | None = None
        self._shipper_since = 0.0
        self._start_shipper()

    def open_study(
        self, *, name: str, plan: Mapping[str, Any], losses: Sequence[str], note: str
    ) -> None:
        """Begin or continue the study: its run, one run per loss, and the plan.

        Args:
            name: The study's name.
            plan: JSON types; all that a reader needs besides the trials: `spaces` ({loss:
                SearchSpace.to_dict()}), `protocol` (with `objective`), `baseline`, and optionally
                `dataset` ({name, fingerprint, and counts}).
            losses: Registry names, in the order in which they are shown.
            note: Description and status of the study (Markdown).
        """
        self._spaces = {k: SearchSpace.from_dict(v) for k, v in plan.get("spaces", {}).items()}
        protocol = plan.get("protocol", {})
        self._objective = str(protocol.get("objective", ""))
        self._append_record(
            "study",
            time.time(),
            name=name,
            plan=plan,
            losses=list(losses),
            note=note,
            params={
                k: encode_value(v) for k, v in protocol.items() if descriptions.is_scalar_value(v)
            },
            dataset=descriptions.describe_dataset(plan),
            loss_notes={
                loss: descriptions.format_loss_note(space) for loss, space in self._spaces.items()
            },
        )

    def start_trial(self, record: TrialRecord) -> None:
        """Start a trial, or continue its run after an interruption."""
        self._open_trials[record.job.trial] = (record.job, None)
        self._append_record("start", record.started, **self._describe_trial(record))
        self._restart_dead_shipper()

    def reconcile_trial(
        self,
        record: TrialRecord,
        *,
        curve: Mapping[int, Mapping[str, float]],
        state: TrialStateName,
        error: str = "",
        host: str = "",
        seconds: float | None = None,
        timestamp: float,
    ) -> None:
        """Add to the store what it lacks of a trial from an earlier run.

        It lacks something only if the spool or the store itself was lost. Existing data stay.

        Args:
            record: The trial as it was started.
            curve: Metrics by epoch, as far as they are known.
            state: How the trial ended; `running` if it will continue.
            error: Last line of the exception.
            host: Host on which it ran.
            seconds: Duration of its training.
            timestamp: When it ended.
        """
        job = record.job
        metrics = {
            str(epoch): {metric_key(name, job.split): float(v) for name, v in values.items()}
            for epoch, values in sorted(curve.items())
        }
        score = curve[max(curve)].get(self._objective) if curve else None
        ending = self._describe_trial_end(
            job, score, descriptions.TrialEnd(state, error, host, seconds)
        )
        self._append_record(
            "settle", timestamp, curve=metrics, **(ending | self._describe_trial(record))
        )

    def log_epoch(
        self,
        trial: str,
        epoch: int,
        metrics: Mapping[str, float],
        *,
        timestamp: float,
        tags: Mapping[str, str] | None = None,
    ) -> None:
        """Log a trial's metrics after an epoch; an epoch that was logged before is skipped.

        Args:
            trial: Key of the trial.
            epoch: Number of the epoch, from 1.
            metrics: Its metrics.
            timestamp: When it ended.
            tags: Tags of the run that say where the epoch ran, such as `host`.
        """
        job, score = self._open_trials.get(trial, (None, None))
        if job is not None:
            self._open_trials[trial] = (job, metrics.get(self._objective, score))
        split = job.split if job is not None else "validation"
        values = {metric_key(name, split): float(value) for name, value in metrics.items()}
        known = self._trial_tags.setdefault(trial, {})
        new = {key: value for key, value in (tags or {}).items() if known.get(key) != value}
        known.update(new)
        changed = {"tags": new} if new else {}
        self._append_record(
            "epoch", timestamp, trial=trial, epoch=int(epoch), metrics=values, **changed
        )

    def end_trial(
        self,
        trial: str,
        *,
        state: TrialStateName,
        error: str = "",
        host: str = "",
        seconds: float | None = None,
        timestamp: float,
    ) -> None:
        """End a trial; its run becomes FINISHED, KILLED (stopped early) or FAILED.

        Args:
            trial: Key of the trial.
            state: How it ended.
            error: Last line of the exception.
            host: Host on which it ran.
            seconds: Duration of its training; None for the sum over its epochs.
            timestamp: When it ended.
        """
        job, score = self._open_trials.pop(trial, (None, None))
        self._trial_tags.pop(trial, None)
        ending = self._describe_trial_end(
            job, score, descriptions.TrialEnd(state, error, host, seconds)
        )
        self._append_record("end", timestamp, trial=trial, **ending)

    def log_baseline(self, split: Split, metrics: Mapping[str, float]) -> None:
        """Log the metrics of the untrained backbone on `validation` or `test` classes."""
        values = {metric_key(name, split): float(value) for name, value in metrics.items()}
        self._append_record("baseline", time.time(), step=int(split == "test"), metrics=values)

    def log_artifact(
        self, path: Path, *, to: str, folder: str = "", only: Sequence[str] | None = None
    ) -> None:
        """Store a file or directory with the study, a loss or a trial, replacing an earlier copy.

        Args:
            path: File or directory. It is read when it is shipped, so it must remain in place.
            to: "study", a loss's name or a trial's key.
            folder: Artifact folder of the run; empty for the top. If `path` is a directory, other
                files in this folder are removed.
            only: Names of the directory's files to store; None for all.
        """
        place = {"path": str(path.absolute()), "to": to, "folder": folder}
        self._append_record(
            "artifact", time.time(), **place, only=None if only is None else list(only)
        )

    def log_gallery(self, path: Path, *, loss: str, trial: str) -> None:
        """Store an image with a loss and its best trial, and remove it from the former best trial.

        Args:
            path: Image file with the same name for all trials of the loss; it must remain in place.
            loss: Registry name.
            trial: Key of the best trial.
        """
        self._append_record(
            "gallery", time.time(), path=str(path.absolute()), loss=loss, trial=trial
        )

    def set_note(self, text: str) -> None:
        """Replace the note on the study's run (Markdown)."""
        self._append_record("note", time.time(), text=text)

    def end_study(self, *, state: Literal["FINISHED", "KILLED", "FAILED"]) -> None:
        """End the study's run and those of its losses."""
        self._append_record("finish", time.time(), state=state)

    def flush(self, timeout: float) -> bool:
        """Wait until the store has all records.

        Files that cannot be stored are not waited for; `close` does that.

        Args:
            timeout: Seconds to wait at most.

        Returns:
            Whether the store has them. False, too, if records were lost because neither disk nor
            memory had room for them.
        """
        return self._wait_until_shipped(timeout, files=False)

    def _wait_until_shipped(self, timeout: float, *, files: bool) -> bool:
        end = time.monotonic() + timeout
        self._restart_dead_shipper()
        requested_at = 0.0
        while True:
            target, status = self._spool.end_position(), self.get_status()
            shipped = not self._spool.n_pending and status.acknowledged >= target
            if shipped and not (files and status.unstored):
                return not self._spool.n_dropped
            now = time.monotonic()
            if now >= end:
                return False
            if now - requested_at > 1.0:
                self._restart_dead_shipper()
                self._request_shipping()
                requested_at = now
            time.sleep(min(0.02, max(end - now, 0.0)))

    def get_status(self) -> ShippingStatus:
        """Return how far shipping has progressed, and what blocks it."""
        return read_status(self._spool.folder)

    def close(self, timeout: float = 30.0) -> bool:
        """Ship the remaining records, then stop the shipper.

        Args:
            timeout: Seconds to wait at most; unsent records stay in the spool for the next run.

        Returns:
            Whether the store has all records and files.
        """
        if self._shipper is None:
            return True
        done = self._wait_until_shipped(timeout, files=True)
        shipper, self._shipper = self._shipper, None
        with contextlib.suppress(OSError):
            assert shipper.stdin is not None
            shipper.stdin.close()
        try:
            shipper.wait(timeout=5.0 if done else 1.0)
        except subprocess.TimeoutExpired:
            shipper.kill()
            shipper.wait()
        self._spool.close()
        self._stack.close()
        if not done:
            reason = read_status(self._spool.folder).error or SLOW_STORE_REASON
            if self._spool.n_dropped:
                reason = f"{self._spool.n_dropped:,} records were lost while the disk was full"
            _logger.warning("not all records reached the tracking store: %s", reason)
        return done

    def __enter__(self) -> Tracker:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        # On an exception, close quickly; unsent records stay in the spool.
        self.close(timeout=30.0 if kind is None else 5.0)

    def _describe_trial(self, record: TrialRecord) -> dict[str, Any]:
        loss = record.job.loss
        space = self._spaces.get(loss)
        if loss not in self._units:
            self._units[loss] = descriptions.param_units(loss, space)
        return descriptions.describe_trial(record, space, self._units[loss])

    def _describe_trial_end(
        self, job: Job | None, score: float | None, end: descriptions.TrialEnd
    ) -> dict[str, Any]:
        return descriptions.describe_trial_end(
            job, score, end, objective=self._objective, secrets=self._secrets
        )

    def _append_record(self, op: str, moment: float, **fields: Any) -> None:
        for name in _REDACTED_FIELDS & fields.keys():
            fields[name] = redact_json(fields[name], self._secrets)
        self._spool.append({"op": op, "at": moment, **fields}, sync=op in ("study", "end"))
        if self._spool.write_problem != self._last_problem:
            self._last_problem = self._spool.write_problem
            if self._last_problem:
                _logger.warning("%s; records are kept in memory", self._last_problem)
        if self._spool.n_dropped and not self._has_warned_of_loss:
            self._has_warned_of_loss = True
            _logger.warning("memory is full of tracking records, too; further records are lost")

    def _start_shipper(self) -> None:
        self._shipper = start_shipper(self._settings)
        self._shipper_since = time.monotonic()

    def _restart_dead_shipper(self) -> None:
        """Replace a shipper that died (killed, out of memory), but not too often."""
        dead = self._shipper is not None and self._shipper.poll() is not None
        if dead and time.monotonic() - self._shipper_since > _SHIPPER_RESTART_SECONDS:
            _logger.warning("the tracking shipper ended unexpectedly; starting another")
            self._start_shipper()

    def _request_shipping(self) -> None:
        if self._shipper is not None and self._shipper.stdin is not None:
            with contextlib.suppress(OSError, ValueError):
                self._shipper.stdin.write(b"!")
                self._shipper.stdin.flush()
