"""Shipper: a process that sends spooled records to MLflow while the study runs.

It is a process and not a thread, so that neither importing MLflow nor talking to it delays the
study's driver. It reads its settings from the first line of its standard input (not from the
command line, which every user of the machine can read), ships until that input closes, ships the
rest, and exits. If a server does not answer, it retries at growing intervals.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import sys
import time
import traceback
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from study.tracking.spool import SpoolReader, hold_exclusive_lock
from study.utils.redaction import redact
from study.utils.subprocesses import child_environment, python_command

if TYPE_CHECKING:
    from study.tracking.run_writer import RecordApplier

RECORDS_PER_CHUNK = 500


@dataclass(frozen=True)
class ShipperConfig:
    """Settings of a shipper.

    Args:
        uri: Tracking URI, including its password.
        spool: Folder of the spool.
        experiment: The study's MLflow experiment.
        artifact_root: See `MlflowExperiment`.
        study_id: See `MlflowExperiment`.
        interval: Seconds between two rounds; records that arrive in between share requests.
        patience: Longest wait in seconds between two attempts to reach a server that is down.
    """

    uri: str
    spool: str
    experiment: str
    artifact_root: str | None
    study_id: str = ""
    interval: float = 1.0
    patience: float = 15.0


class _RedactingStream:
    """A text stream that masks passwords."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Write the redacted text."""
        return self._stream.write(redact(text))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


class ControlPipe:
    """Pipe from the driver: a byte requests shipping at once, the end of input requests an exit."""

    def __init__(self, file: int) -> None:
        self._file = file
        self.closed = False

    def read_first_line(self) -> str:
        """Read the first line, which holds the settings.

        Raises:
            EOFError: The driver ended before it wrote them.
        """
        line = b""
        while not line.endswith(b"\n"):
            byte = os.read(self._file, 1)
            if not byte:
                raise EOFError("the driver ended before it wrote the shipper's settings")
            line += byte
        return line.decode()

    def wait_for_message(self, seconds: float) -> bool:
        """Wait for a request for at most `seconds`; return whether one arrived."""
        if self.closed:
            time.sleep(min(seconds, 0.2))
            return True
        ready, _, _ = select.select([self._file], [], [], seconds)
        if not ready:
            return False
        self.closed = not os.read(self._file, 4096)
        return True


def start_shipper(settings: ShipperConfig) -> subprocess.Popen[bytes]:
    """Start a shipper process; it ends when its standard input is closed."""
    with (Path(settings.spool) / "shipper.log").open("ab") as log:
        shipper = subprocess.Popen(
            python_command("study.tracking.shipper"),
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            env=child_environment(),
            start_new_session=True,  # Ctrl-C must reach the study only; closing the pipe ends this
        )
    assert shipper.stdin is not None
    with contextlib.suppress(BrokenPipeError):
        shipper.stdin.write(json.dumps(asdict(settings)).encode() + b"\n")
        shipper.stdin.flush()
    return shipper


def ship_records(settings: ShipperConfig, pipe: ControlPipe) -> None:
    """Send records to the store until the driver ends and the spool is empty."""
    # One shipper at a time: the shipper of a driver that just died may still be running.
    with hold_exclusive_lock(Path(settings.spool) / "shipper.lock", wait=True):
        _ship_until_closed(settings, pipe)


def _ship_until_closed(settings: ShipperConfig, pipe: ControlPipe) -> None:
    spool = SpoolReader(Path(settings.spool))
    applier: RecordApplier | None = None
    pause, retry_at, is_urgent = settings.interval, 0.0, False
    while True:
        records, position = spool.read_records(RECORDS_PER_CHUNK)
        try:
            if applier is None:
                applier = _open_applier(settings, spool)
            refused = applier.apply_records(records) if records else 0
            if applier.n_unstored_files and (is_urgent or time.monotonic() >= retry_at):
                refused += applier.retry_unstored_files()
                retry_at = time.monotonic() + settings.patience
        except Exception as error:
            reason = _format_error(error)
            if reason != spool.status.error:  # once, because a server may be down for days
                traceback.print_exc()
            spool.sync_to_disk()
            spool.report_error(reason)
            if pipe.closed:
                return  # the rest stays in the spool for the next run
            is_urgent = pipe.wait_for_message(pause)
            pause = settings.interval if is_urgent else min(2 * pause, settings.patience)
            continue
        pause = settings.interval
        spool.acknowledge(
            position,
            refused=refused,
            unstored=applier.n_unstored_files,
            error=_shorten_message(applier.storage_problem),
            note=_shorten_message(applier.restored_runs_note),
        )
        if len(records) < RECORDS_PER_CHUNK:
            if pipe.closed and not records:
                return
            is_urgent = pipe.wait_for_message(settings.interval)


def main() -> None:
    """Run a shipper that is controlled by its standard input."""
    sys.stdout = sys.stderr = _RedactingStream(sys.stderr)
    pipe = ControlPipe(sys.stdin.fileno())
    settings = ShipperConfig(**json.loads(pipe.read_first_line()))
    # MLflow repeats a request whose answer was lost, which would create a second run for the same
    # trial. `MlflowExperiment` looks for the run first, so only the shipper repeats requests.
    os.environ["MLFLOW_HTTP_REQUEST_MAX_RETRIES"] = "0"
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "30")
    os.environ["MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR"] = "false"
    ship_records(settings, pipe)


def _open_applier(settings: ShipperConfig, spool: SpoolReader) -> RecordApplier:
    from study.tracking.experiment import MlflowExperiment
    from study.tracking.run_writer import RecordApplier
    from study.tracking.sqlite_store import create_store

    create_store(settings.uri)
    root = Path(settings.artifact_root) if settings.artifact_root else None
    experiment = MlflowExperiment(
        settings.uri,
        experiment=settings.experiment,
        artifact_root=root,
        study_id=settings.study_id,
    )
    return RecordApplier(experiment, refuse=spool.save_refused_record)


def _format_error(error: Exception) -> str:
    return _shorten_message(f"{type(error).__name__}: {str(error).strip()}")


def _shorten_message(text: str) -> str:
    """Return the message as one redacted line, without the SQL statement that databases quote."""
    return redact(" ".join(text.split("[SQL:")[0].split()))[:500]


if __name__ == "__main__":
    main()
