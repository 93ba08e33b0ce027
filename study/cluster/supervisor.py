"""Supervisor: a background process on a node that runs as long as Ray runs there.

The start commands of the cluster files call `python -m study.cluster.supervisor head` or
`... worker`, which starts a supervisor in the background; `... stop` ends it. On the head, it
serves MLflow on loopback, restarts the server when it dies or stops answering, and ends with Ray,
so that `ray down` leaves no process behind; the store (`.mlflow` in the studies' folder) stays. On
workers that `ray down` does not switch off, it stops the processes that Ray leaves behind when the
head is gone. It is started before Ray, because `ray down` may interrupt the start of Ray.

If the supervisor is killed, a running study starts another (`restart_supervisor`), which replaces
the server that it finds. The supervisor's lock (`keeper`) and log (`keeper.log`) are in a folder
with the host's name, because hosts may share a home.
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

from study.cluster.constants import MLFLOW_PORT
from study.errors import StudyError
from study.tracking.ui_server import kill_orphan_servers
from study.utils.paths import studies_root

CHECK_SECONDS = 1.0
RAY_ABSENCE_SECONDS = 5.0
RAY_ARRIVAL_TIMEOUT_SECONDS = 30.0
"""Time from the start of a worker's supervisor to that of Ray, not counting `ray start`."""

SUPERVISOR_STOP_SECONDS = 30.0
SUPERVISOR_START_SECONDS = 150.0
MLFLOW_SILENCE_SECONDS = 120.0
"""Time without an answer after which a running MLflow server is restarted."""

MLFLOW_RETRY_SECONDS = 10.0
"""Pause between attempts to start a server that does not start."""

RAY_PROCESS_BY_ROLE = {"head": "gcs_server", "worker": "raylet"}
STATE_FOLDER = Path("~/.dml-study")
LOCK_FILE_NAME = "keeper"
LOG_FILE_NAME = "keeper.log"
READY_MARK = "ready"
ERROR_TAIL_LINES = 3


def main(arguments: list[str]) -> int:
    """Start a supervisor (`ROLE`), run as one (`keep ROLE`), or end it (`stop`)."""
    folder = host_folder()
    folder.mkdir(parents=True, exist_ok=True)
    if arguments == ["stop"]:
        stop_supervisor(folder)
    elif arguments[0] == "keep":
        return supervise_node(folder, arguments[1])
    else:
        return start_supervisor(folder, arguments[0])
    return 0


def host_folder() -> Path:
    """Return the folder of this host's lock and log."""
    return STATE_FOLDER.expanduser() / socket.gethostname()


def start_supervisor(folder: Path, role: str) -> int:
    """Start a supervisor and wait until it is ready.

    Returns:
        0, or 1 if it ended instead; its last output is then printed in one line.
    """
    log, lock = folder / LOG_FILE_NAME, folder / LOCK_FILE_NAME
    n_bytes_before = log.stat().st_size if log.exists() else 0
    supervisor = _launch_supervisor(folder, role)
    deadline = time.monotonic() + SUPERVISOR_START_SECONDS
    while time.monotonic() < deadline and supervisor.poll() is None:
        content = lock.read_text().split() if lock.exists() else []
        if content == [str(supervisor.pid), READY_MARK]:
            return 0
        time.sleep(0.1)
    if supervisor.poll() == 0:  # another one is running
        return 0
    lines = log.read_bytes()[n_bytes_before:].decode(errors="replace").strip().splitlines()
    last = " | ".join(lines[-ERROR_TAIL_LINES:]) or "no output"
    print(f"study: the {role}'s supervisor did not start: {last} (log: {log})", file=sys.stderr)
    return 1


def restart_supervisor(folder: Path) -> subprocess.Popen[bytes] | None:
    """Start the head's supervisor again if it was killed; return the new process."""
    path = folder / LOCK_FILE_NAME
    if not path.exists():
        return None
    with path.open("a+", encoding="utf-8") as lock:
        lock.seek(0)
        if READY_MARK not in lock.read() or not _try_lock(lock):
            return None
    return _launch_supervisor(folder, "head")


def _launch_supervisor(folder: Path, role: str) -> subprocess.Popen[bytes]:
    with (folder / LOG_FILE_NAME).open("ab") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "study.cluster.supervisor", "keep", role],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )


def supervise_node(folder: Path, role: str) -> int:
    """Run as the supervisor of a role until Ray ends; return at once if another one is running."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))  # a normal exit, which ends MLflow, too
    with (folder / LOCK_FILE_NAME).open("a+", encoding="utf-8") as lock:
        if not _try_lock(lock):
            return 0
        _write_lock_file(lock, str(os.getpid()))
        if role == "head":
            kill_orphan_servers(_store_uri())  # a server whose supervisor was killed
            return _supervise_mlflow(lock)
        _write_lock_file(lock, f"{os.getpid()} {READY_MARK}")
        is_starting = True
        while is_starting:
            _wait_for_ray()
            for _ in poll_while_running(RAY_PROCESS_BY_ROLE[role]):
                time.sleep(CHECK_SECONDS)
            is_starting = _is_ray_starting()  # again, or the Ray that ended was an earlier one
        subprocess.run(["ray", "stop", "--force"], check=False)
    return 0


def _wait_for_ray() -> None:
    """Wait until Ray runs here, or until no process has been starting it for some time."""
    last_start = time.monotonic()
    while (
        not _is_process_running(RAY_PROCESS_BY_ROLE["worker"])
        and time.monotonic() - last_start < RAY_ARRIVAL_TIMEOUT_SECONDS
    ):
        if _is_ray_starting():
            last_start = time.monotonic()
        time.sleep(CHECK_SECONDS)


def _supervise_mlflow(lock: IO[str]) -> int:
    """Serve MLflow until Ray ends here, restarting the server whenever it dies.

    Returns:
        0, or 1 if the first server did not start. Later starts are repeated, because the reason
        for a failure (a full disk, for example) may pass.
    """
    ray = poll_while_running(RAY_PROCESS_BY_ROLE["head"])
    is_ready = False
    while True:
        try:
            with _run_mlflow() as address:
                _write_lock_file(lock, f"{os.getpid()} {READY_MARK}")
                is_ready = True
                if not _wait_until_unhealthy(address, ray):
                    return 0
            _print_timestamped("the MLflow server does not answer; restarting it")
        except StudyError as error:
            _print_timestamped(str(error))
            if not is_ready:
                return 1
            if not _pause_while_ray_runs(MLFLOW_RETRY_SECONDS, ray):
                return 0


def _wait_until_unhealthy(address: str, ray: Iterator[None]) -> bool:
    """Wait until a server stops answering (True) or Ray ends (False)."""
    from study.tracking.ui_server import is_healthy

    last_answer = time.monotonic()
    for _ in ray:
        try:
            if is_healthy(address):
                last_answer = time.monotonic()
        except ConnectionError:  # no server listens
            return True
        if time.monotonic() - last_answer > MLFLOW_SILENCE_SECONDS:
            return True
        time.sleep(CHECK_SECONDS)
    return False


def _pause_while_ray_runs(seconds: float, ray: Iterator[None]) -> bool:
    """Wait for `seconds` or the end of Ray; return whether Ray is running."""
    end = time.monotonic() + seconds
    for _ in ray:
        if time.monotonic() >= end:
            return True
        time.sleep(CHECK_SECONDS)
    return False


def _print_timestamped(message: str) -> None:
    print(time.strftime("%Y-%m-%d %H:%M:%S"), " ".join(message.split()), flush=True)


def stop_supervisor(folder: Path) -> None:
    """End this node's supervisor, if any, before Ray is started again."""
    with (folder / LOCK_FILE_NAME).open("a+", encoding="utf-8") as lock:
        deadline = time.monotonic() + SUPERVISOR_STOP_SECONDS
        while not (is_locked := _try_lock(lock)) and time.monotonic() < deadline:
            lock.seek(0)
            with contextlib.suppress(ProcessLookupError, ValueError, IndexError):
                os.kill(int(lock.read().split()[0]), signal.SIGTERM)
            time.sleep(0.3)
        if is_locked:
            kill_orphan_servers(_store_uri())
            _write_lock_file(lock, "")  # so that a study does not restart it


def _write_lock_file(lock: IO[str], content: str) -> None:
    lock.truncate(0)
    lock.write(content)
    lock.flush()


@contextlib.contextmanager
def _run_mlflow() -> Iterator[str]:
    from study.tracking.ui_server import run_mlflow_server

    artifacts = studies_root() / ".mlflow" / "artifacts"
    artifacts.mkdir(parents=True, exist_ok=True)
    with run_mlflow_server(_store_uri(), port=MLFLOW_PORT, artifact_root=artifacts) as address:
        yield address


def _store_uri() -> str:
    return f"sqlite:///{studies_root() / '.mlflow' / 'mlflow.db'}"


def _try_lock(lock: IO[str]) -> bool:
    """Lock the file until it is closed; return whether that was possible."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def poll_while_running(process: str) -> Iterator[None]:
    """Yield until no process of this user with this name has been running for some seconds."""
    last_seen = time.monotonic()
    while True:
        if _is_process_running(process):
            last_seen = time.monotonic()
        elif time.monotonic() - last_seen > RAY_ABSENCE_SECONDS:
            return
        yield


def _is_process_running(name: str) -> bool:
    for process in psutil.process_iter(["name", "uids", "status"]):
        info = process.info
        is_alive = info["status"] != psutil.STATUS_ZOMBIE
        if info["name"] == name and is_alive and info["uids"].real == os.getuid():
            return True
    return False


def _is_ray_starting() -> bool:
    """Whether a process of this user is starting Ray."""
    for process in psutil.process_iter(["cmdline", "uids"]):
        is_own = process.info["uids"] and process.info["uids"].real == os.getuid()
        if is_own and is_ray_start_command(process.info["cmdline"] or []):
            return True
    return False


def is_ray_start_command(command: list[str]) -> bool:
    """Whether a command line is that of `ray start`, with or without an interpreter before it."""
    words = [Path(word).name for word in command[:3]]
    return words[:2] == ["ray", "start"] or words[1:] == ["ray", "start"]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
