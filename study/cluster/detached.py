"""A study on the head that outlives whoever started it.

`python -m study.cluster.detached`, run over ssh:

    start NAME COMMAND...   start `study COMMAND...` for the study NAME in the background; a study
                            file, if the command is `run`, comes on standard input
    follow NAME OFFSET RUN  the stamp of its last run in a line, then its output until it ends; then
                            its exit code. If the stamp is RUN the output begins at a byte
    tracking NAME           where the study is kept

The output, the study file and the exit code are kept in `.runs/NAME` of the studies' folder. A lock
there is held for as long as the study runs.
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

from study.cluster.places import STAMP
from study.cluster.sent import completed, known_file, refuse_another
from study.errors import StudyError
from study.folders import studies_root

POLL_SECONDS = 0.2
GRACE_SECONDS = 20.0
LOST = 1
NEVER = "-"


class Run:
    """The last run of a study that was started here."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.folder = studies_root() / ".runs" / name
        self.log = self.folder / "log"
        self.exit = self.folder / "exit"
        self._started = self.folder / "started"
        self.file = self.folder / f"{name}.yaml"

    def hold(self) -> IO[str] | None:
        """The run's lock, as an open file; None when a run has it."""
        # The file's tracking URI may hold a password, which an error may repeat in the log.
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = (self.folder / "lock").open("a")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.close()
            return None
        return lock

    def keep_log(self) -> None:
        """Put the output of an earlier run aside; only the last but one is lost."""
        if self.log.exists():
            self.log.replace(self.folder / "log.before")
        self._started.write_text(str(time.time_ns()), encoding="ascii")

    def output(self) -> tuple[str, IO[bytes]]:
        """What tells the last run from earlier ones, and its log, open.

        Raises:
            FileNotFoundError: None was started.
        """
        while True:
            stamp = self._stamp()
            log = self.log.open("rb")
            if stamp == self._stamp():  # it is written after the old log went, before a new came
                return stamp, log
            log.close()

    def _stamp(self) -> str:
        return self._started.read_text(encoding="ascii") if self._started.exists() else NEVER

    def is_running(self) -> bool:
        """Whether it runs right now."""
        lock = self.hold()
        if lock is None:
            return True
        lock.close()
        return False


def start(name: str, command: list[str], content: str) -> str:
    """Start a command in the background, unless the study runs already; says what was done.

    Raises:
        StudyError: The command cannot be run; nothing was started.
    """
    run = Run(name)
    lock = run.hold()
    if lock is None:
        if command[0] not in ("run", "resume"):
            raise StudyError(f"study {name} is running; {command[0]} it when it has ended")
        if command[0] == "run":
            sent = completed(content, run.folder)
            refuse_another(sent, known_file(name, run.file), "is running with another file")
        return f"{name} is running; following it"
    with lock:
        news = ""
        if command[0] == "run":
            command, news = _prepared(run, command[1:], content)
            if not command:
                run.keep_log()
                run.log.write_text(news + "\n", encoding="utf-8")
                run.exit.write_text("0", encoding="utf-8")
                return ""
        run.exit.unlink(missing_ok=True)
        run.keep_log()
        with run.log.open("wb") as log:
            subprocess.Popen(
                [sys.executable, "-m", "study.cluster.detached", "watch", name, *command],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                pass_fds=[lock.fileno()],  # the run holds it from before this process lets go
            )
    return news


def _prepared(run: Run, options: list[str], content: str) -> tuple[list[str], str]:
    """The command for a study file that was sent: run, or resume what is there already."""
    from study.home import StudyHome
    from study.plan import PLAN_FILE, load_plan
    from study.tuning.ledger import Ledger
    from study.tuning.record import Record

    report = next((o for o in options if o in ("--report", "--no-report")), "--report")
    sent = completed(content, run.folder)
    home = StudyHome(studies_root() / run.name)
    exists = (home.directory / PLAN_FILE).exists()
    if exists:
        refuse_another(sent, known_file(run.name, run.file), "exists with another file")
    run.file.write_text(sent.text, encoding="utf-8")
    if not exists:
        return ["run", str(run.file), report], ""
    known = load_plan(home.directory)
    if Ledger(known, Record(home.directory, known.spaces)).is_finished():
        return [], f"{run.name} is finished; make its report with: study report {run.name}"
    return ["resume", run.name, report], f"{run.name} was started before; going on with it"


def watch(name: str, command: list[str]) -> int:
    """Be the parent of the study: keep its exit code, and end it if Ray goes away.

    Meanwhile the keeper of what runs beside Ray is started again, should it be killed.
    """
    from study.cluster.services import PROCESS, own_folder, revive, while_running

    run, keeper = Run(name), None
    study = subprocess.Popen(
        [sys.executable, "-m", "study", *command, "--address", "auto"],
        stdin=subprocess.DEVNULL,
        start_new_session=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )
    signal.signal(signal.SIGTERM, lambda *_: study.terminate())
    for _ in while_running(PROCESS["head"]):
        with contextlib.suppress(subprocess.TimeoutExpired):
            study.wait(timeout=1.0)
            break
        if keeper is None or keeper.poll() is not None:
            keeper = revive(own_folder())
    else:
        print(f"{name}: Ray has ended on this machine; the study stops", flush=True)
        _end(study)
    code = study.returncode
    if code < 0:
        print(f"{name}: ended by {signal.Signals(-code).name}", flush=True)
    if code != 0:
        _let_nodes_go(name)
    temporary = run.exit.with_suffix(".new")
    temporary.write_text(str(code if code >= 0 else LOST), encoding="utf-8")
    temporary.replace(run.exit)
    return code


def _end(study: subprocess.Popen[bytes]) -> None:
    """Politely at first: the record is then in order up to the last epoch."""
    study.terminate()
    with contextlib.suppress(subprocess.TimeoutExpired):
        study.wait(timeout=GRACE_SECONDS)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(study.pid, signal.SIGKILL)
    study.wait()


def _let_nodes_go(name: str) -> None:
    """A study that was killed cannot take back what it asked the autoscaler for."""
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        subprocess.run(
            [sys.executable, "-m", "study.tuning.growth", name], timeout=60, capture_output=True
        )


def follow(name: str, offset: int, known: str | None, out: IO[bytes]) -> int:
    """Tell which run this is, copy its output until it ends, and give its exit code.

    Args:
        offset: Of the output, where to begin if the run is the known one; another is shown whole.
        known: Stamp of the run that was followed before; None for who does not ask which it is.

    Raises:
        StudyError: Nothing was ever started under this name.
    """
    run = Run(name)
    try:
        stamp, log = run.output()
    except FileNotFoundError:
        raise StudyError(f"no study {name!r} was started on this cluster") from None
    with log:
        if known is not None:
            out.write(f"{STAMP}{stamp}\n".encode())
        log.seek(offset if known in (stamp, None) else 0)
        while True:
            ended = not run.is_running()
            shutil.copyfileobj(log, out)
            out.flush()
            if ended:
                break
            time.sleep(POLL_SECONDS)
    if not run.exit.exists():
        raise StudyError(f"{name} ended without a word; go on with: study resume {name}")
    return int(run.exit.read_text(encoding="utf-8"))


def tracking(name: str) -> str:
    """Where a study is kept: as its plan says, as its imported directory does."""
    from study.reporting import find_store

    return find_store(name, None, None).uri


def main(arguments: list[str]) -> int:
    """One of the commands; a user's mistake is one line and exit code 2."""
    from study.file import NAME

    action, name, *rest = arguments
    if not NAME.fullmatch(name):
        raise SystemExit(f"study: {name!r} is no name of a study")
    try:
        if action == "watch":
            return watch(name, rest)
        if action == "follow":
            known = rest[1] if len(rest) > 1 else None
            return follow(name, int(rest[0]), known, sys.stdout.buffer)
        if action == "tracking":
            print(tracking(name))
            return 0
        content = sys.stdin.read() if rest[0] == "run" else ""
        news = start(name, rest, content)
        if news:
            print(news)
        return 0
    except StudyError as error:
        print("study: " + " ".join(str(error).split()), file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
