"""What runs on a node besides Ray, for as long as Ray runs there.

`python -m study.cluster.services head` and `... worker`, start commands of the cluster files, leave
a keeper in the background; `... stop` ends it. On the head it serves MLflow, on loopback, starts it
again when it dies or falls silent, and ends when Ray ends: `ray down` leaves nothing behind there,
and the store (`.mlflow` in the studies' folder) stays. On machines that are not switched off by
`ray down` the worker's keeper ends what Ray leaves behind when the head is gone. It is started
before Ray: whoever starts Ray there may be ended halfway, by `ray down`, say.

Should the keeper itself be killed, a study that runs starts another (`revive`), which takes the
place of the server it finds. The keeper's lock and log are in a folder of the host's own name:
hosts may share a home.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import psutil

from study.cluster.places import MLFLOW_PORT
from study.errors import StudyError
from study.folders import studies_root
from study.tracking.server import end_servers

CHECK_SECONDS = 1.0
PATIENCE_SECONDS = 5.0
FIRST_SECONDS = 30.0
"""How long Ray may take to appear after a worker's keeper was started, `ray start` aside."""

STOP_SECONDS = 30.0
START_SECONDS = 150.0
SILENCE_SECONDS = 120.0
"""How long an MLflow server that is there may answer nothing before it is started again."""

AGAIN_SECONDS = 10.0
"""Between attempts to start one that does not start."""

PROCESS = {"head": "gcs_server", "worker": "raylet"}
FOLDER = Path("~/.dml-study")
LOG = "keeper.log"
READY = "ready"
TAIL_LINES = 3


def main(arguments: list[str]) -> int:
    """Start the keeper of a role in the background, be it (`keep ROLE`), or end it (`stop`)."""
    folder = own_folder()
    folder.mkdir(parents=True, exist_ok=True)
    if arguments == ["stop"]:
        stop(folder)
    elif arguments[0] == "keep":
        return keep(folder, arguments[1])
    else:
        return start(folder, arguments[0])
    return 0


def own_folder() -> Path:
    """Where this host's keeper has its lock and its log."""
    return FOLDER.expanduser() / socket.gethostname()


def start(folder: Path, role: str) -> int:
    """Start a keeper, and wait until it does what its role says.

    Returns:
        0, or 1 when it ended instead; then its last words are shown in one line.
    """
    path = folder / LOG
    written = path.stat().st_size if path.exists() else 0
    keeper = _launch(folder, role)
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline and keeper.poll() is None:
        words = (folder / "keeper").read_text().split() if (folder / "keeper").exists() else []
        if words == [str(keeper.pid), READY]:
            return 0
        time.sleep(0.1)
    if keeper.poll() == 0:  # another one is there
        return 0
    lines = path.read_bytes()[written:].decode(errors="replace").strip().splitlines()
    last = " | ".join(lines[-TAIL_LINES:]) or "it said nothing"
    print(f"study: what runs beside Ray did not start: {last} (its log: {path})", file=sys.stderr)
    return 1


def revive(folder: Path) -> subprocess.Popen[bytes] | None:
    """Start the head's keeper if there was one and it is gone without an end; gives it."""
    path = folder / "keeper"
    if not path.exists():
        return None
    with path.open("a+", encoding="utf-8") as lock:
        lock.seek(0)
        if READY not in lock.read() or not _hold(lock):
            return None
    return _launch(folder, "head")


def _launch(folder: Path, role: str) -> subprocess.Popen[bytes]:
    with (folder / LOG).open("ab") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "study.cluster.services", "keep", role],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )


def keep(folder: Path, role: str) -> int:
    """Do what the role says until Ray ends here; leave at once when another keeper does."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))  # in order: MLflow is ended, too
    with (folder / "keeper").open("a+", encoding="utf-8") as lock:
        if not _hold(lock):
            return 0
        _write(lock, str(os.getpid()))
        if role == "head":
            end_servers(_store())  # one whose keeper was killed
            return _keep_mlflow(lock)
        _write(lock, f"{os.getpid()} {READY}")
        starting = True
        while starting:
            _await_ray()
            for _ in while_running(PROCESS[role]):
                time.sleep(CHECK_SECONDS)
            starting = _starts()  # anew, or what ran until now was the Ray before it
        subprocess.run(["ray", "stop", "--force"], check=False)
    return 0


def _await_ray() -> None:
    """Return when Ray runs here, or has not come although nobody is starting it any more."""
    starting = time.monotonic()
    while not _runs(PROCESS["worker"]) and time.monotonic() - starting < FIRST_SECONDS:
        if _starts():
            starting = time.monotonic()
        time.sleep(CHECK_SECONDS)


def _keep_mlflow(lock: IO[str]) -> int:
    """Serve MLflow until Ray ends here, with one server after another should they die.

    Returns:
        0, or 1 when not even the first one started. What keeps a later one from starting (a full
        disk, say) may pass, so it is tried again and again.
    """
    ray = while_running(PROCESS["head"])
    ready = False
    while True:
        try:
            with _mlflow() as address:
                _write(lock, f"{os.getpid()} {READY}")
                ready = True
                if not _fell_silent(address, ray):
                    return 0
            _say("the MLflow server is gone; starting it again")
        except StudyError as error:
            _say(str(error))
            if not ready:
                return 1
            if not _pause(AGAIN_SECONDS, ray):
                return 0


def _fell_silent(address: str, ray: Iterator[None]) -> bool:
    """Wait until a server answers no more (True) or Ray has ended (False)."""
    from study.tracking.server import says_it_is_well

    heard = time.monotonic()
    for _ in ray:
        try:
            if says_it_is_well(address):
                heard = time.monotonic()
        except ConnectionError:  # nobody is there
            return True
        if time.monotonic() - heard > SILENCE_SECONDS:
            return True
        time.sleep(CHECK_SECONDS)
    return False


def _pause(seconds: float, ray: Iterator[None]) -> bool:
    """Wait; whether Ray runs still."""
    end = time.monotonic() + seconds
    for _ in ray:
        if time.monotonic() >= end:
            return True
        time.sleep(CHECK_SECONDS)
    return False


def _say(words: str) -> None:
    print(time.strftime("%Y-%m-%d %H:%M:%S"), " ".join(words.split()), flush=True)


def stop(folder: Path) -> None:
    """End this node's keeper, if there is one, before Ray is started anew."""
    with (folder / "keeper").open("a+", encoding="utf-8") as lock:
        deadline = time.monotonic() + STOP_SECONDS
        while not (held := _hold(lock)) and time.monotonic() < deadline:
            lock.seek(0)
            with contextlib.suppress(ProcessLookupError, ValueError, IndexError):
                os.kill(int(lock.read().split()[0]), signal.SIGTERM)
            time.sleep(0.3)
        if held:
            end_servers(_store())
            _write(lock, "")  # nobody is to be revived


def _write(lock: IO[str], words: str) -> None:
    lock.truncate(0)
    lock.write(words)
    lock.flush()


@contextlib.contextmanager
def _mlflow() -> Iterator[str]:
    from study.tracking.server import serve

    artifacts = studies_root() / ".mlflow" / "artifacts"
    artifacts.mkdir(parents=True, exist_ok=True)
    with serve(_store(), port=MLFLOW_PORT, artifact_root=artifacts) as address:
        yield address


def _store() -> str:
    return f"sqlite:///{studies_root() / '.mlflow' / 'mlflow.db'}"


def _hold(lock: IO[str]) -> bool:
    """Whether the lock could be had; it goes with its file."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def while_running(process: str) -> Iterator[None]:
    """Ends when no such process of this user has been running for a few seconds."""
    seen = time.monotonic()
    while True:
        if _runs(process):
            seen = time.monotonic()
        elif time.monotonic() - seen > PATIENCE_SECONDS:
            return
        yield


def _runs(name: str) -> bool:
    for process in psutil.process_iter(["name", "uids", "status"]):
        info = process.info
        alive = info["status"] != psutil.STATUS_ZOMBIE
        if info["name"] == name and alive and info["uids"].real == os.getuid():
            return True
    return False


def _starts() -> bool:
    """Whether this user is starting a Ray."""
    for process in psutil.process_iter(["cmdline", "uids"]):
        mine = process.info["uids"] and process.info["uids"].real == os.getuid()
        if mine and is_start(process.info["cmdline"] or []):
            return True
    return False


def is_start(command: list[str]) -> bool:
    """Whether a command line is that of `ray start`, with or without the interpreter before."""
    words = [Path(word).name for word in command[:3]]
    return words[:2] == ["ray", "start"] or words[1:] == ["ray", "start"]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
