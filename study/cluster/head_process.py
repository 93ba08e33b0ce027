"""Head process: a study on the head that outlives the process that started it.

`python -m study.cluster.head_process`, run over ssh:

    start NAME COMMAND...   start `study COMMAND...` for the study NAME in the background; if the
                            command is `run`, read the study file from standard input
    follow NAME OFFSET RUN  print a line with the stamp of its last run, then its output until it
                            ends, and return its exit code. If the stamp is RUN, the output starts
                            at byte OFFSET
    tracking NAME           print the tracking URI of the study

The output, the study file and the exit code are in `.runs/NAME` of the studies' folder, with a lock
that is held while the study runs.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import signal
import subprocess
import sys
import time
from typing import IO

from study.cluster.constants import RUN_STAMP_PREFIX
from study.cluster.submitted_file import (
    apply_cluster_defaults,
    load_current_file,
    require_same_file,
)
from study.errors import StudyError
from study.utils.paths import studies_root

LOG_POLL_SECONDS = 0.2
STUDY_STOP_GRACE_SECONDS = 20.0
KILLED_EXIT_CODE = 1
NO_RUN_STAMP = "-"


class DetachedRun:
    """The last run of a study on this head."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.folder = studies_root() / ".runs" / name
        self.log_file = self.folder / "log"
        self.exit_code_file = self.folder / "exit"
        self._stamp_file = self.folder / "started"
        self.study_file = self.folder / f"{name}.yaml"

    def acquire_lock(self) -> IO[str] | None:
        """Acquire the run's lock and return its open file; None if a run holds it."""
        # Private, because the tracking URI in the study file or in the log may contain a password.
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = (self.folder / "lock").open("a")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.close()
            return None
        return lock

    def rotate_log(self) -> None:
        """Rename the log of the previous run, replacing the one before it; write a new stamp."""
        if self.log_file.exists():
            self.log_file.replace(self.folder / "log.before")
        self._stamp_file.write_text(str(time.time_ns()), encoding="ascii")

    def open_log(self) -> tuple[str, IO[bytes]]:
        """Return the stamp of the last run, and its open log.

        Raises:
            FileNotFoundError: No run was started.
        """
        while True:
            stamp = self._read_stamp()
            log = self.log_file.open("rb")
            # The stamp is written after the old log is renamed and before the new one is created.
            if stamp == self._read_stamp():
                return stamp, log
            log.close()

    def _read_stamp(self) -> str:
        return (
            self._stamp_file.read_text(encoding="ascii")
            if self._stamp_file.exists()
            else NO_RUN_STAMP
        )

    def is_running(self) -> bool:
        """Whether the study is running."""
        lock = self.acquire_lock()
        if lock is None:
            return True
        lock.close()
        return False


def start_detached_run(name: str, command: list[str], content: str) -> str:
    """Start a `study` command in the background, unless the study is running.

    Args:
        name: Name of the study.
        command: Arguments of `study`.
        content: Text of the study file, if the command is `run`.

    Returns:
        Message for the user; may be empty.

    Raises:
        StudyError: The command cannot be run; nothing was started.
    """
    run = DetachedRun(name)
    lock = run.acquire_lock()
    if lock is None:
        if command[0] not in ("run", "resume"):
            raise StudyError(f"study {name} is running; run `study {command[0]}` when it has ended")
        if command[0] == "run":
            submitted = apply_cluster_defaults(content, run.folder)
            require_same_file(
                submitted, load_current_file(name, run.study_file), "is running with another file"
            )
        return f"{name} is running; following it"
    with lock:
        message = ""
        if command[0] == "run":
            command, message = _prepare_command(run, command[1:], content)
            if not command:
                run.rotate_log()
                run.log_file.write_text(message + "\n", encoding="utf-8")
                run.exit_code_file.write_text("0", encoding="utf-8")
                return ""
        run.exit_code_file.unlink(missing_ok=True)
        run.rotate_log()
        with run.log_file.open("wb") as log:
            subprocess.Popen(
                [sys.executable, "-m", "study.cluster.head_process", "watch", name, *command],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                pass_fds=[lock.fileno()],  # so that the lock is never free in between
            )
    return message


def _prepare_command(run: DetachedRun, options: list[str], content: str) -> tuple[list[str], str]:
    """Return the command for a submitted study file (`run` or `resume`), and a message.

    The command is empty if the study is finished.
    """
    from study.config.plan import PLAN_FILE, load_plan
    from study.directory import StudyDirectory
    from study.search.job_scheduler import JobScheduler
    from study.search.journal import StudyJournal

    report = next((o for o in options if o in ("--report", "--no-report")), "--report")
    submitted = apply_cluster_defaults(content, run.folder)
    study_dir = StudyDirectory(studies_root() / run.name)
    exists = (study_dir.path / PLAN_FILE).exists()
    if exists:
        require_same_file(
            submitted, load_current_file(run.name, run.study_file), "exists with another file"
        )
    run.study_file.write_text(submitted.text, encoding="utf-8")
    if not exists:
        return ["run", str(run.study_file), report], ""
    plan = load_plan(study_dir.path)
    if JobScheduler(plan, StudyJournal(study_dir.path, plan.spaces)).is_finished():
        return [], f"{run.name} is finished; write its report with: study report {run.name}"
    return ["resume", run.name, report], f"{run.name} was started before; resuming it"


def supervise_study(name: str, command: list[str]) -> int:
    """Run the study as a child process; store its exit code, and stop it when Ray ends.

    Meanwhile, restart the head's supervisor if it is killed.

    Args:
        name: Name of the study.
        command: Arguments of `study`.

    Returns:
        The study's exit code; negative if a signal ended it.
    """
    from study.cluster.supervisor import (
        RAY_PROCESS_BY_ROLE,
        host_folder,
        poll_while_running,
        restart_supervisor,
    )

    run, node_supervisor = DetachedRun(name), None
    study = subprocess.Popen(
        [sys.executable, "-m", "study", *command, "--address", "auto"],
        stdin=subprocess.DEVNULL,
        start_new_session=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )
    signal.signal(signal.SIGTERM, lambda *_: study.terminate())
    for _ in poll_while_running(RAY_PROCESS_BY_ROLE["head"]):
        with contextlib.suppress(subprocess.TimeoutExpired):
            study.wait(timeout=1.0)
            break
        if node_supervisor is None or node_supervisor.poll() is not None:
            node_supervisor = restart_supervisor(host_folder())
    else:
        print(f"{name}: Ray has ended on this machine; stopping the study", flush=True)
        _terminate_study(study)
    code = study.returncode
    if code < 0:
        print(f"{name}: ended by {signal.Signals(-code).name}", flush=True)
    if code != 0:
        _release_nodes(name)
    temporary = run.exit_code_file.with_suffix(".new")
    temporary.write_text(str(code if code >= 0 else KILLED_EXIT_CODE), encoding="utf-8")
    temporary.replace(run.exit_code_file)
    return code


def _terminate_study(study: subprocess.Popen[bytes]) -> None:
    """Terminate the study, which then saves its last epoch; kill it if it takes too long."""
    study.terminate()
    with contextlib.suppress(subprocess.TimeoutExpired):
        study.wait(timeout=STUDY_STOP_GRACE_SECONDS)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(study.pid, signal.SIGKILL)
    study.wait()


def _release_nodes(name: str) -> None:
    """Withdraw the study's request to the autoscaler, which a killed study cannot do itself."""
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        subprocess.run(
            [sys.executable, "-m", "study.runner.autoscaling", name],
            timeout=60,
            capture_output=True,
        )


def follow_log(name: str, offset: int, stamp: str | None, out: IO[bytes]) -> int:
    """Write the stamp of the last run and its output until it ends.

    Args:
        name: Name of the study.
        offset: Byte at which to begin if `stamp` is that of the last run; otherwise 0 is used.
        stamp: Stamp of the run that was followed before; None for clients without stamps.
        out: Binary stream to write to.

    Returns:
        The study's exit code.

    Raises:
        StudyError: No study was started under this name, or it left no exit code.
    """
    run = DetachedRun(name)
    try:
        last_stamp, log = run.open_log()
    except FileNotFoundError:
        raise StudyError(f"no study {name!r} was started on this cluster") from None
    with log:
        if stamp is not None:
            out.write(f"{RUN_STAMP_PREFIX}{last_stamp}\n".encode())
        log.seek(offset if stamp in (last_stamp, None) else 0)
        while True:
            has_ended = not run.is_running()
            shutil.copyfileobj(log, out)
            out.flush()
            if has_ended:
                break
            time.sleep(LOG_POLL_SECONDS)
    if not run.exit_code_file.exists():
        raise StudyError(
            f"{name} exited without reporting a status; continue with: study resume {name}"
        )
    return int(run.exit_code_file.read_text(encoding="utf-8"))


def find_tracking_uri(name: str) -> str:
    """Return the tracking URI of a study, which may have been run or imported."""
    from study.results import find_store

    return find_store(name, None, None).uri


def main(arguments: list[str]) -> int:
    """Run one of the actions; an error of the user is one line and exit code 2."""
    from study.config.schema import STUDY_NAME_PATTERN

    action, name, *rest = arguments
    if not STUDY_NAME_PATTERN.fullmatch(name):
        raise SystemExit(f"study: {name!r} is not a valid name of a study")
    try:
        if action == "watch":
            return supervise_study(name, rest)
        if action == "follow":
            stamp = rest[1] if len(rest) > 1 else None
            return follow_log(name, int(rest[0]), stamp, sys.stdout.buffer)
        if action == "tracking":
            print(find_tracking_uri(name))
            return 0
        content = sys.stdin.read() if rest[0] == "run" else ""
        message = start_detached_run(name, rest, content)
        if message:
            print(message)
        return 0
    except StudyError as error:
        print("study: " + " ".join(str(error).split()), file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
