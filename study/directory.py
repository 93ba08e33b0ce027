"""Study directory: the files of one study, its lock, and the lookup of studies by name.

All files of a study are in one directory, which can be moved, copied or deleted:

    plan.json         the complete plan                   study.yaml    the study file, for people
    optuna.journal    jobs and outcomes                   errors/       tracebacks of failed trials
    mlflow.db         MLflow store (without a server)     artifacts/    MLflow artifacts
    checkpoints/      of unfinished trials, and of the best trials of each loss
    spool/            records not yet sent to MLflow      report/       the latest report
    data.json         fingerprints of data and weights; scores of the untrained backbone
    warnings.txt      problems that did not stop the study, if any
    lock              locked by the process that runs the study
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

from study.config.plan import PLAN_FILE, Plan, load_plan, save_plan
from study.config.schema import STUDY_NAME_PATTERN, STUDY_NAME_RULE
from study.errors import StudyError, suggest_nearest_name
from study.utils.files import write_owner_only
from study.utils.paths import studies_root

DATABASE_FILE = "mlflow.db"
ARTIFACTS_FOLDER = "artifacts"
LOCK_TRIES, LOCK_PAUSE_SECONDS = 10, 0.05
"""`is_running` holds the lock for a moment; a starting run retries for longer than that."""


@dataclass(frozen=True)
class StudyDirectory:
    """The directory of one study."""

    path: Path

    @property
    def name(self) -> str:
        """Name of the study."""
        return self.path.name

    @property
    def checkpoints_dir(self) -> Path:
        """Checkpoint folder within the study's directory; see `checkpoint_location`."""
        return self.path / "checkpoints"

    def checkpoint_location(self, plan: Plan) -> str:
        """Return where the study's checkpoints are: a folder or an S3 prefix.

        In shared storage the name includes the study's id: other users may have studies of the
        same name, and the directory of a study may be renamed.
        """
        shared = plan.file.storage.checkpoints
        if not shared:
            return str(self.checkpoints_dir)
        subfolder = f"{plan.name}-{plan.study_id[:8]}" if plan.study_id else self.name
        return f"{shared.rstrip('/')}/{subfolder}"

    @property
    def spool_dir(self) -> Path:
        """Folder of records not yet sent to MLflow."""
        return self.path / "spool"

    @property
    def report_dir(self) -> Path:
        """Folder of the latest report."""
        return self.path / "report"

    @property
    def errors_dir(self) -> Path:
        """Folder of the tracebacks of failed trials."""
        return self.path / "errors"

    def tracking_uri(self, plan: Plan) -> str:
        """Return the tracking URI of the study's MLflow store."""
        return plan.file.tracking.uri or default_tracking_uri(self.path)

    def artifact_root(self, plan: Plan) -> Path | None:
        """Return the artifact folder of a local store; None if the server decides."""
        return default_artifact_root(self.path) if is_sqlite_uri(self.tracking_uri(plan)) else None

    @contextlib.contextmanager
    def hold_lock(self) -> Iterator[None]:
        """Hold the study's lock while the block runs.

        The lock belongs to the open file, so it is released however the process ends.

        Raises:
            StudyError: If another process holds the lock.
        """
        path = self.path / "lock"
        with path.open("a+", encoding="utf-8") as file:
            if not _acquire_lock(file):
                file.seek(0)
                holder = file.read().strip() or "another process"
                raise StudyError(f"study {self.name} is being run by {holder}")
            file.truncate(0)
            file.write(f"process {os.getpid()} on {socket.gethostname()}")
            file.flush()
            yield

    def lock_holder_pid(self) -> int | None:
        """Return the process of this machine that holds the lock; None if there is none."""
        if not self.is_running():
            return None
        words = (self.path / "lock").read_text(encoding="utf-8").split()
        is_local = len(words) == 4 and words[3] == socket.gethostname()
        return int(words[1]) if is_local else None

    def is_running(self) -> bool:
        """Whether a process holds the study's lock now."""
        try:
            with (self.path / "lock").open(encoding="utf-8") as file:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
                return False
        except FileNotFoundError:
            return False
        except BlockingIOError:
            return True


def _acquire_lock(file: TextIO) -> bool:
    for attempt in range(LOCK_TRIES):
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            if attempt < LOCK_TRIES - 1:
                time.sleep(LOCK_PAUSE_SECONDS)
    return False


def list_study_names(root: Path | None = None) -> list[str]:
    """Return the sorted names of the studies in a folder, without unfinished directories."""
    names = (path.parent.name for path in studies_root(root).glob(f"*/{PLAN_FILE}"))
    return sorted(name for name in names if STUDY_NAME_PATTERN.fullmatch(name))


def find_study(name: str, root: Path | None = None) -> StudyDirectory:
    """Return the directory of an existing study, by name or by path.

    Raises:
        StudyError: If there is no such study; the message names the nearest one.
    """
    as_path = Path(name)
    if (as_path / PLAN_FILE).exists():
        return StudyDirectory(as_path.absolute())
    folder = studies_root(root)
    imported = (path.parent.name for path in folder.glob(f"*/{DATABASE_FILE}"))
    known = sorted({*list_study_names(root), *imported})
    study_dir = StudyDirectory(folder / name)
    if STUDY_NAME_PATTERN.fullmatch(name) and study_dir.path.is_dir():
        if (study_dir.path / DATABASE_FILE).exists() and not (study_dir.path / PLAN_FILE).exists():
            raise StudyError(
                f"{name} was imported and cannot be run; use `study report`, `study refine`, "
                "`study claims` or `study ui` to read it"
            )
        load_plan(study_dir.path)
        return study_dir
    if not known:
        raise StudyError(f"no study {name!r}: {folder} contains no studies")
    raise StudyError(f"no study {name!r} in {folder}; {suggest_nearest_name(name, known)}")


def new_study_directory(name: str, root: Path | None = None) -> StudyDirectory:
    """Return the directory of a study that does not exist yet, without creating it.

    Raises:
        StudyError: If the study exists, or the name is invalid.
    """
    if not STUDY_NAME_PATTERN.fullmatch(name):
        raise StudyError(f"{STUDY_NAME_RULE}, but got {name!r}")
    study_dir = StudyDirectory(studies_root(root) / name)
    if study_dir.path.exists() and any(study_dir.path.iterdir()):
        raise _study_exists_error(study_dir)
    return study_dir


def create_study_directory(study_dir: StudyDirectory, plan: Plan) -> None:
    """Create the directory of a study atomically.

    It is filled under a temporary name and then renamed. Temporary directories that killed
    processes left are removed.

    Raises:
        StudyError: If the study exists, or its directory cannot be written.
    """
    import yaml

    parent = study_dir.path.parent
    temporary = parent / f".{study_dir.name}.{secrets.token_hex(4)}.new"
    try:
        temporary.mkdir(parents=True)
        text = yaml.safe_dump(plan.file.model_dump(mode="json"), sort_keys=False)
        write_owner_only(temporary / "study.yaml", text, plan.file.tracking.uri)
        save_plan(plan, temporary)
        temporary.rename(study_dir.path)  # fails if the target is a non-empty folder
    except OSError as error:
        shutil.rmtree(temporary, ignore_errors=True)
        # A concurrent, faster call may have removed this temporary folder as a leftover.
        if error.errno in (errno.ENOTEMPTY, errno.EEXIST) or (study_dir.path / PLAN_FILE).exists():
            raise _study_exists_error(study_dir) from None
        raise StudyError(f"cannot write {study_dir.path}: {error}") from None
    leftover = re.compile(rf"\.{re.escape(study_dir.name)}\.[0-9a-f]{{8}}\.new")
    for path in parent.iterdir():
        if leftover.fullmatch(path.name):
            shutil.rmtree(path, ignore_errors=True)


def _study_exists_error(study_dir: StudyDirectory) -> StudyError:
    return StudyError(
        f"study {study_dir.name} already exists in {study_dir.path.parent}; continue it with "
        f"`study resume {study_dir.name}` or choose another name with --set name=..."
    )


def default_tracking_uri(study_dir: Path) -> str:
    """Return the tracking URI of the SQLite store in a study's directory."""
    return f"sqlite:///{study_dir.absolute() / DATABASE_FILE}"


def default_artifact_root(study_dir: Path) -> Path:
    """Return the artifact folder of the store in a study's directory."""
    return study_dir.absolute() / ARTIFACTS_FOLDER


def is_sqlite_uri(uri: str) -> bool:
    """Whether a tracking URI names an SQLite file."""
    return uri.startswith("sqlite:")
