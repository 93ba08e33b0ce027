"""Where a study lives on disk.

Everything of a study is in its directory, so it can be moved, copied or deleted as one:

    plan.json         what was asked for, complete        study.yaml    the same, for people
    optuna.journal    what was asked and came of it       errors/       tracebacks of failed trials
    mlflow.db         MLflow's store (unless a server)    artifacts/    MLflow's artifacts
    checkpoints/      one per unfinished trial, and the best of each loss
    spool/            records on their way to MLflow      report/       the last report
    data.json         what its data and weights were at the start; how it scored untrained
    warnings.txt      what went wrong though trials went on, if anything did
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import secrets
import shutil
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from study.errors import StudyError, nearest
from study.file import NAME
from study.folders import cache_dir, studies_root
from study.plan import PLAN_FILE, Plan, load_plan, save_plan, write_private
from study.tracking.local import default_artifact_root, default_uri, is_local

__all__ = [
    "StudyHome",
    "cache_dir",
    "create_study",
    "find_study",
    "new_study",
    "studies_root",
    "study_names",
]

LOCK_TRIES, LOCK_PAUSE = 10, 0.05
"""Whoever asks whether a study runs holds its lock for a moment: a start waits that long."""


@dataclass(frozen=True)
class StudyHome:
    """The directory of one study."""

    directory: Path

    @property
    def name(self) -> str:
        """The study's name."""
        return self.directory.name

    @property
    def checkpoints(self) -> Path:
        """The study's own place for checkpoints; see `checkpoint_place`."""
        return self.directory / "checkpoints"

    def checkpoint_place(self, plan: Plan) -> str:
        """Where the study's trials keep checkpoints: a folder, or an S3 prefix.

        In a place that is shared other users may have studies of the same name, and a study keeps
        its own there when its directory is renamed.
        """
        shared = plan.file.storage.checkpoints
        if not shared:
            return str(self.checkpoints)
        own = f"{plan.name}-{plan.study_id[:8]}" if plan.study_id else self.name
        return f"{shared.rstrip('/')}/{own}"

    @property
    def spool(self) -> Path:
        """Records on their way to MLflow."""
        return self.directory / "spool"

    @property
    def report(self) -> Path:
        """The last report."""
        return self.directory / "report"

    @property
    def errors(self) -> Path:
        """Tracebacks of failed trials."""
        return self.directory / "errors"

    def tracking_uri(self, plan: Plan) -> str:
        """The study's MLflow store."""
        return plan.file.tracking.uri or default_uri(self.directory)

    def artifact_root(self, plan: Plan) -> Path | None:
        """Where a store in the study's directory keeps artifacts; None: the server decides."""
        return default_artifact_root(self.directory) if is_local(self.tracking_uri(plan)) else None

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the study for this process.

        The lock belongs to the open file, so it is gone with the process, however that ends.

        Raises:
            StudyError: Another process holds it.
        """
        path = self.directory / "lock"
        with path.open("a+", encoding="utf-8") as file:
            if not _lock(file):
                file.seek(0)
                holder = file.read().strip() or "another process"
                raise StudyError(f"study {self.name} is being run by {holder}")
            file.truncate(0)
            file.write(f"process {os.getpid()} on {socket.gethostname()}")
            file.flush()
            yield

    def holder(self) -> int | None:
        """The process of this machine that holds the study; None when none does."""
        if not self.is_running():
            return None
        words = (self.directory / "lock").read_text(encoding="utf-8").split()
        here = len(words) == 4 and words[3] == socket.gethostname()
        return int(words[1]) if here else None

    def is_running(self) -> bool:
        """Whether some process holds the study right now."""
        try:
            with (self.directory / "lock").open(encoding="utf-8") as file:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
                return False
        except FileNotFoundError:
            return False
        except BlockingIOError:
            return True


def _lock(file: TextIO) -> bool:
    for attempt in range(LOCK_TRIES):
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            if attempt < LOCK_TRIES - 1:
                time.sleep(LOCK_PAUSE)
    return False


def study_names(root: Path | None = None) -> list[str]:
    """The studies below a folder, sorted; one that is just being made is none yet."""
    found = (path.parent.name for path in studies_root(root).glob(f"*/{PLAN_FILE}"))
    return sorted(name for name in found if NAME.fullmatch(name))


def find_study(name: str, root: Path | None = None) -> StudyHome:
    """The home of an existing study, by name or by the path of its directory.

    Raises:
        StudyError: There is none; names the nearest.
    """
    as_path = Path(name)
    if (as_path / PLAN_FILE).exists():
        return StudyHome(as_path.absolute())
    folder = studies_root(root)
    known = sorted({*study_names(root), *(p.parent.name for p in folder.glob("*/mlflow.db"))})
    home = StudyHome(folder / name)
    if NAME.fullmatch(name) and home.directory.is_dir():
        if (home.directory / "mlflow.db").exists() and not (home.directory / PLAN_FILE).exists():
            raise StudyError(
                f"{name} was imported: there is nothing to run; `study report`, `refine`, `claims` "
                "and `ui` read it"
            )
        load_plan(home.directory)
        return home
    if not known:
        raise StudyError(f"no study {name!r}: {folder} holds no studies")
    raise StudyError(f"no study {name!r} in {folder}; {nearest(name, known)}")


def new_study(name: str, root: Path | None = None) -> StudyHome:
    """The home of a study that does not exist yet; nothing is written.

    Raises:
        StudyError: There is one of this name, or it is no name.
    """
    if not NAME.fullmatch(name):
        raise StudyError(
            f"a study name is at most 100 letters, digits, '.', '_' or '-', not {name!r}"
        )
    home = StudyHome(studies_root(root) / name)
    if home.directory.exists() and any(home.directory.iterdir()):
        raise _exists(home)
    return home


def create_study(home: StudyHome, plan: Plan) -> None:
    """Make the study's directory: whole, or not at all, and only if nobody else just did.

    It is filled under another name and then renamed; what a killed process left is removed.

    Raises:
        StudyError: There is a study of this name, or its directory cannot be written.
    """
    import yaml

    parent, unfinished = home.directory.parent, f".{home.name}.{secrets.token_hex(4)}.new"
    temporary = parent / unfinished
    try:
        temporary.mkdir(parents=True)
        text = yaml.safe_dump(plan.file.model_dump(mode="json"), sort_keys=False)
        write_private(temporary / "study.yaml", text, plan.file.tracking.uri)
        save_plan(plan, temporary)
        temporary.rename(home.directory)  # refused where there is a folder that is not empty
    except OSError as error:
        shutil.rmtree(temporary, ignore_errors=True)
        # Whoever was faster may have taken this one's folder for a leftover.
        if error.errno in (errno.ENOTEMPTY, errno.EEXIST) or (home.directory / PLAN_FILE).exists():
            raise _exists(home) from None
        raise StudyError(f"cannot write {home.directory}: {error}") from None
    leftover = re.compile(rf"\.{re.escape(home.name)}\.[0-9a-f]{{8}}\.new")
    for path in parent.iterdir():
        if leftover.fullmatch(path.name):
            shutil.rmtree(path, ignore_errors=True)


def _exists(home: StudyHome) -> StudyError:
    return StudyError(
        f"study {home.name} exists in {home.directory.parent}; "
        f"go on with `study resume {home.name}` or choose another name (--set name=...)"
    )
