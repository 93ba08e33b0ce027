"""The shipper: a process that carries spooled records to MLflow while the study runs.

A process and not a thread, so that neither importing MLflow nor talking to it ever holds up the
study's driver. It reads its settings from the first line of its standard input (never from the
command line, which every user of the machine can read), ships until that input closes, then what is
left, and ends. A server that does not answer is asked again, ever more seldom.
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

from study.processes import module, surroundings
from study.tracking.redaction import redact
from study.tracking.spool import Consumer, locked

if TYPE_CHECKING:
    from study.tracking.replay import Replay

CHUNK = 500


@dataclass(frozen=True)
class Settings:
    """What a shipper needs to know.

    Args:
        uri: Tracking URI, password and all.
        spool: Folder of the spool.
        experiment: The study's MLflow experiment.
        artifact_root: See `Home`.
        study_id: See `Home`.
        interval: Seconds between two rounds; what arrives in between goes in one request.
        patience: Longest wait in seconds between two attempts at a server that is down.
    """

    uri: str
    spool: str
    experiment: str
    artifact_root: str | None
    study_id: str = ""
    interval: float = 1.0
    patience: float = 15.0


class _Redacted:
    """A text stream without passwords."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Write the text, addresses redacted."""
        return self._stream.write(redact(text))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


class Orders:
    """The driver's side of the pipe: a byte asks for haste, its end asks to finish."""

    def __init__(self, file: int) -> None:
        self._file = file
        self.closed = False

    def first_line(self) -> str:
        """The settings."""
        line = b""
        while not line.endswith(b"\n"):
            byte = os.read(self._file, 1)
            if not byte:
                raise EOFError("the driver ended before it gave its settings")
            line += byte
        return line.decode()

    def wait(self, seconds: float) -> bool:
        """Wait for an order, at most so long; True when one came."""
        if self.closed:
            time.sleep(min(seconds, 0.2))
            return True
        ready, _, _ = select.select([self._file], [], [], seconds)
        if not ready:
            return False
        self.closed = not os.read(self._file, 4096)
        return True


def start(settings: Settings) -> subprocess.Popen[bytes]:
    """A shipper in a process of its own; it ends when its standard input is closed."""
    with (Path(settings.spool) / "shipper.log").open("ab") as log:
        shipper = subprocess.Popen(
            module("study.tracking.ship"),
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            env=surroundings(),
            start_new_session=True,  # Ctrl-C is for the study; the shipper ends with its pipe
        )
    assert shipper.stdin is not None
    with contextlib.suppress(BrokenPipeError):
        shipper.stdin.write(json.dumps(asdict(settings)).encode() + b"\n")
        shipper.stdin.flush()
    return shipper


def ship(settings: Settings, orders: Orders) -> None:
    """Carry records to the store until the driver ends and nothing is left."""
    # One shipper at a time: that of a driver that just died may still be at work.
    with locked(Path(settings.spool) / "shipper.lock", wait=True):
        _ship(settings, orders)


def _ship(settings: Settings, orders: Orders) -> None:
    consumer = Consumer(Path(settings.spool))
    replay: Replay | None = None
    pause, retry_at, hurried = settings.interval, 0.0, False
    while True:
        records, place = consumer.read(CHUNK)
        try:
            if replay is None:
                replay = _replay(settings, consumer)
            refused = replay.apply(records) if records else 0
            if replay.unstored and (hurried or time.monotonic() >= retry_at):
                refused += replay.retry()
                retry_at = time.monotonic() + settings.patience
        except Exception as error:
            reason = _reason(error)
            if reason != consumer.status.error:  # a server may be away for days
                traceback.print_exc()
            consumer.sync()
            consumer.report(reason)
            if orders.closed:
                return  # the spool keeps the rest for the next time
            hurried = orders.wait(pause)
            pause = settings.interval if hurried else min(2 * pause, settings.patience)
            continue
        pause = settings.interval
        consumer.acknowledge(
            place,
            refused=refused,
            unstored=replay.unstored,
            error=_short(replay.problem),
            note=_short(replay.note),
        )
        if len(records) < CHUNK:
            if orders.closed and not records:
                return
            hurried = orders.wait(settings.interval)


def main() -> None:
    """Run a shipper on standard input's orders."""
    sys.stdout = sys.stderr = _Redacted(sys.stderr)
    orders = Orders(sys.stdin.fileno())
    settings = Settings(**json.loads(orders.first_line()))
    # MLflow repeats a request by itself when the answer gets lost, which would make a second run
    # for the same trial: `Home` looks first, so repeating is its business alone.
    os.environ["MLFLOW_HTTP_REQUEST_MAX_RETRIES"] = "0"
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "30")
    os.environ["MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR"] = "false"
    ship(settings, orders)


def _replay(settings: Settings, consumer: Consumer) -> Replay:
    from study.tracking.home import Home
    from study.tracking.local import prepare
    from study.tracking.replay import Replay

    prepare(settings.uri)
    root = Path(settings.artifact_root) if settings.artifact_root else None
    home = Home(
        settings.uri,
        experiment=settings.experiment,
        artifact_root=root,
        study_id=settings.study_id,
    )
    return Replay(home, refuse=consumer.refuse)


def _reason(error: Exception) -> str:
    return _short(f"{type(error).__name__}: {str(error).strip()}")


def _short(text: str) -> str:
    """One line for people, without the statement that a database quotes."""
    return redact(" ".join(text.split("[SQL:")[0].split()))[:500]


if __name__ == "__main__":
    main()
