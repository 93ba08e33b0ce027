"""How does the driver record a study without ever waiting for the tracking server?

Every call appends one line to a spool on disk and returns; the shipper, a process of its own,
carries the lines to MLflow. A server that is down delays nothing and loses nothing.
"""

from __future__ import annotations

import contextlib
import logging
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from search_spaces.space import Space
from study.errors import StudyError
from study.table import State
from study.tracking import wording
from study.tracking.address import is_database
from study.tracking.local import ARTIFACTS
from study.tracking.records import Split, TrialRecord, encode, metric_key
from study.tracking.redaction import redact_all, secrets_of_environment
from study.tracking.ship import Settings, start
from study.tracking.spool import Spool, Status, locked, read_status
from study.tracking.watch import SLOW

_log = logging.getLogger(__name__)
_RESTART_SECONDS = 10.0
_FREE_WORDS = frozenset({"note", "text", "plan", "params", "more_tags", "dataset", "words"})
"""What of a record may hold a secret: all that is not a number or a name of the study's own."""


class Tracker:
    """Writes one study to its MLflow store; all calls but `flush` and `close` return at once.

    Use it as a context manager, or call `close`.

    Args:
        uri: Tracking URI: `sqlite:///...`, `postgresql://...` or a server's address. MLflow's own
            environment variables (user, password, token, certificates) hold.
        spool: Folder where records wait; one tracker at a time uses it.
        artifact_root: Where a new experiment of a database store keeps its artifacts; None for
            `artifacts` beside the spool. A server decides itself.
        experiment: MLflow experiment of the study, normally the study's name.
        study_id: See `Home`.
        interval: Seconds over which records are put together into one request.
        patience: Longest wait in seconds between two attempts at a server that is down.

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
            artifact_root = spool.absolute().parent / ARTIFACTS
        self._settings = Settings(
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
        if not self._stack.enter_context(locked(spool / "writer.lock", wait=False)):
            self._stack.close()
            raise StudyError(f"Another process is running this study (it writes to {spool}).")
        self._spool = Spool(spool)
        self._secrets = secrets_of_environment()
        self._spaces: dict[str, Space] = {}
        self._units: dict[str, dict[str, str]] = {}
        self._objective = ""
        self._open: dict[str, tuple[TrialRecord, float | None]] = {}
        self._hosts: dict[str, str] = {}
        self._said, self._said_lost = "", False
        self._shipper: subprocess.Popen[bytes] | None = None
        self._shipper_since = 0.0
        self._start_shipper()

    def open_study(
        self, *, name: str, plan: Mapping[str, Any], losses: Sequence[str], note: str
    ) -> None:
        """Begin the study, or go on with it: the parent run, one run per loss, the plan.

        Args:
            name: The study's name.
            plan: JSON types; all a reader needs besides the trials: `spaces` ({loss:
                Space.to_dict()}), `protocol` (with `objective`), `baseline`, and optionally
                `dataset` ({name, fingerprint, and counts}).
            losses: Registry names, in the order to show them.
            note: What the study is and how it stands, in words (Markdown).
        """
        self._spaces = {k: Space.from_dict(v) for k, v in plan.get("spaces", {}).items()}
        protocol = plan.get("protocol", {})
        self._objective = str(protocol.get("objective", ""))
        self._append(
            "study",
            time.time(),
            name=name,
            plan=plan,
            losses=list(losses),
            note=note,
            params={k: encode(v) for k, v in protocol.items() if wording.is_plain(v)},
            dataset=wording.dataset_of(plan),
            loss_notes={loss: wording.loss_note(space) for loss, space in self._spaces.items()},
        )

    def trial_started(self, record: TrialRecord) -> None:
        """A trial starts, or goes on after an interruption (the same run goes on)."""
        self._open[record.trial] = (record, None)
        self._append("start", record.started, **self._described(record))
        self._revive_shipper()

    def settle(
        self,
        record: TrialRecord,
        *,
        curve: Mapping[int, Mapping[str, float]],
        state: State,
        error: str = "",
        host: str = "",
        seconds: float | None = None,
        timestamp: float,
    ) -> None:
        """What is known of a trial of an earlier run: the store takes of it what it lacks.

        Nothing is lacking unless the spool was lost, or the store itself. What is there stays.

        Args:
            record: As it was started.
            curve: Metrics by epoch, as far as they are known.
            state: How it ended; `running` for a trial that is going on.
            error: Last line of the exception.
            host: Where it ran.
            seconds: How long it trained.
            timestamp: When it ended.
        """
        known = {
            str(epoch): {metric_key(name, record.split): float(v) for name, v in values.items()}
            for epoch, values in sorted(curve.items())
        }
        score = curve[max(curve)].get(self._objective) if curve else None
        ending = self._ending(record, score, wording.Ending(state, error, host, seconds))
        self._append("settle", timestamp, curve=known, **(ending | self._described(record)))

    def epoch(
        self,
        trial: str,
        epoch: int,
        metrics: Mapping[str, float],
        *,
        timestamp: float,
        host: str = "",
    ) -> None:
        """The trial's metrics after an epoch; an epoch that was logged before is not again."""
        record, score = self._open.get(trial, (None, None))
        if record is not None:
            self._open[trial] = (record, metrics.get(self._objective, score))
        split = record.split if record is not None else "validation"
        values = {metric_key(name, split): float(value) for name, value in metrics.items()}
        news = {"host": host} if host != self._hosts.get(trial, "") else {}
        self._hosts |= {trial: host} if news else {}
        self._append("epoch", timestamp, trial=trial, epoch=int(epoch), metrics=values, **news)

    def trial_ended(
        self,
        trial: str,
        *,
        state: State,
        error: str = "",
        host: str = "",
        seconds: float | None = None,
        timestamp: float,
    ) -> None:
        """The trial ended so; its run becomes FINISHED, KILLED (stopped early) or FAILED.

        Args:
            trial: Key.
            state: How it ended.
            error: Last line of the exception.
            host: Where it ran.
            seconds: How long it trained; None for the sum over its epochs.
            timestamp: When it ended.
        """
        record, score = self._open.pop(trial, (None, None))
        self._hosts.pop(trial, None)
        ending = self._ending(record, score, wording.Ending(state, error, host, seconds))
        self._append("end", timestamp, trial=trial, **ending)

    def baseline(self, split: Split, metrics: Mapping[str, float]) -> None:
        """Scores of the untrained backbone on `validation` or `test` classes."""
        values = {metric_key(name, split): float(value) for name, value in metrics.items()}
        self._append("baseline", time.time(), step=int(split == "test"), metrics=values)

    def artifact(
        self, path: Path, *, to: str, folder: str = "", only: Sequence[str] | None = None
    ) -> None:
        """Store a file or directory with the study, a loss or a trial; the newest copy stays.

        Args:
            path: Read when it is shipped, so it must stay there.
            to: "study", a loss's name or a trial's key.
            folder: Where among the run's artifacts; empty for the top. One that a directory is
                stored in loses what the directory does not hold.
            only: Names of the directory's files to store; None for all that is in it.
        """
        place = {"path": str(path.absolute()), "to": to, "folder": folder}
        self._append("artifact", time.time(), **place, only=None if only is None else list(only))

    def gallery(self, path: Path, *, loss: str, trial: str) -> None:
        """Store a picture with a loss and its best trial; one that was best before loses its own.

        Args:
            path: Of one name for all trials of the loss; must stay there.
            loss: Registry name.
            trial: Key.
        """
        self._append("gallery", time.time(), path=str(path.absolute()), loss=loss, trial=trial)

    def note(self, text: str) -> None:
        """Replace the words on the parent run (Markdown)."""
        self._append("note", time.time(), text=text)

    def end_study(self, *, state: Literal["FINISHED", "KILLED", "FAILED"]) -> None:
        """The study's own run and its losses' end."""
        self._append("finish", time.time(), state=state)

    def flush(self, timeout: float) -> bool:
        """Wait until the store has everything; False when it has not after `timeout` seconds.

        False too when records were lost because neither disk nor memory had room for them. Files
        that cannot be stored are not waited for: `close` does that.
        """
        return self._wait(timeout, files=False)

    def _wait(self, timeout: float, *, files: bool) -> bool:
        end = time.monotonic() + timeout
        self._revive_shipper()
        asked = 0.0
        while True:
            target, status = self._spool.end(), self.status()
            shipped = not self._spool.held and status.acknowledged >= target
            if shipped and not (files and status.unstored):
                return not self._spool.dropped
            now = time.monotonic()
            if now >= end:
                return False
            if now - asked > 1.0:
                self._revive_shipper()
                self._hurry()
                asked = now
            time.sleep(min(0.02, max(end - now, 0.0)))

    def status(self) -> Status:
        """How far shipping got, and what holds it up."""
        return read_status(self._spool.folder)

    def close(self, timeout: float = 30.0) -> bool:
        """Ship what is left, at most so long; what remains is shipped next time (then False)."""
        if self._shipper is None:
            return True
        done = self._wait(timeout, files=True)
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
            reason = read_status(self._spool.folder).error or SLOW
            if self._spool.dropped:
                reason = f"{self._spool.dropped:,} records were lost while the disk was full"
            _log.warning("Not everything reached the tracking store: %s", reason)
        return done

    def __enter__(self) -> Tracker:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        # Who leaves in distress is not held up: the spool keeps what is left for the next time.
        self.close(timeout=30.0 if kind is None else 5.0)

    def _described(self, record: TrialRecord) -> dict[str, Any]:
        """A trial as its run will show it."""
        space = self._spaces.get(record.loss)
        if record.loss not in self._units:
            self._units[record.loss] = wording.units_of(record.loss, space)
        return wording.describe_trial(record, space, self._units[record.loss])

    def _ending(self, record: TrialRecord | None, score: float | None, end: wording.Ending) -> Any:
        return wording.describe_end(
            record, score, end, objective=self._objective, secrets=self._secrets
        )

    def _append(self, op: str, moment: float, **fields: Any) -> None:
        for name in _FREE_WORDS & fields.keys():
            fields[name] = redact_all(fields[name], self._secrets)
        self._spool.append({"op": op, "at": moment, **fields}, sync=op in ("study", "end"))
        if self._spool.problem != self._said:
            self._said = self._spool.problem
            if self._said:
                _log.warning("%s; records are kept in memory meanwhile", self._said)
        if self._spool.dropped and not self._said_lost:
            self._said_lost = True
            _log.warning("Memory holds no more tracking records either; from here on some are lost")

    def _start_shipper(self) -> None:
        self._shipper = start(self._settings)
        self._shipper_since = time.monotonic()

    def _revive_shipper(self) -> None:
        """A shipper that died (out of memory, killed) is replaced, not too often."""
        dead = self._shipper is not None and self._shipper.poll() is not None
        if dead and time.monotonic() - self._shipper_since > _RESTART_SECONDS:
            _log.warning("The tracking shipper ended unexpectedly; starting another.")
            self._start_shipper()

    def _hurry(self) -> None:
        if self._shipper is not None and self._shipper.stdin is not None:
            with contextlib.suppress(OSError, ValueError):
                self._shipper.stdin.write(b"!")
                self._shipper.stdin.flush()
