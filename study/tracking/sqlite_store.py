"""Where does a study keep its MLflow store when nobody names a server?"""

from __future__ import annotations

import contextlib
import os
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path
from urllib.parse import unquote, urlsplit

from study.errors import StudyError
from study.folders import cache_dir
from study.tracking.address import sqlite_file

DATABASE = "mlflow.db"
ARTIFACTS = "artifacts"

# Every column in which MLflow writes where artifacts are.
_COLUMNS = (
    ("experiments", "artifact_location"),
    ("runs", "artifact_uri"),
    ("logged_models", "artifact_location"),
    ("model_versions", "source"),
    ("model_versions", "storage_location"),
)


def default_uri(study_dir: Path) -> str:
    """The tracking URI of the study's own sqlite store."""
    return f"sqlite:///{study_dir.absolute() / DATABASE}"


def default_artifact_root(study_dir: Path) -> Path:
    """Where the study's own store keeps artifacts."""
    return study_dir.absolute() / ARTIFACTS


def is_local(uri: str) -> bool:
    """Whether the store is a file of this machine."""
    return uri.startswith("sqlite:")


def prepare(uri: str) -> None:
    """Make an empty store where there is none: whole, or not at all.

    MLflow makes its tables in a hundred steps; a process killed in between would leave a database
    that no MLflow can open again. So they are made under another name, which is then changed. An
    empty store is kept in the cache and copied from then on. For one process at a time.
    """
    database = sqlite_file(uri)
    if database is None or database.exists():
        return
    import mlflow

    unfinished = database.with_name(database.name + ".new")
    unfinished.with_name(unfinished.name + "-journal").unlink(missing_ok=True)
    unfinished.unlink(missing_ok=True)
    kept = cache_dir() / f"mlflow-{mlflow.__version__}.db"
    if _is_store(kept):
        shutil.copyfile(kept, unfinished)
    else:
        mlflow.MlflowClient(tracking_uri=f"sqlite:///{unfinished}").search_experiments()
        _keep(unfinished, kept)
    with closing(sqlite3.connect(unfinished)) as connection, connection:
        place = str(database.parent / "mlruns" / "0")  # the experiment that MLflow always makes
        connection.execute("UPDATE experiments SET artifact_location = ?", (place,))
    unfinished.replace(database)


def _is_store(kept: Path) -> bool:
    """Whether an empty store of this MLflow is kept there, and whole."""
    if not kept.is_file():
        return False
    try:
        with closing(sqlite3.connect(f"{kept.as_uri()}?mode=ro", uri=True)) as connection:
            whole = connection.execute("PRAGMA quick_check").fetchone() == ("ok",)
            return whole and bool(connection.execute("SELECT 1 FROM alembic_version").fetchone())
    except sqlite3.DatabaseError:
        return False


def _keep(store: Path, kept: Path) -> None:
    """Copy an empty store for the next study: its tables take MLflow seconds to make."""
    mine = kept.with_name(f"{kept.name}.{os.getpid()}")
    with contextlib.suppress(OSError):  # a cache that cannot be written costs time, nothing else
        kept.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(store, mine)
        mine.replace(kept)


def relocate(study_dir: Path) -> int:
    """Repair a store whose study directory was moved; gives the number of addresses changed.

    MLflow writes absolute addresses of artifacts; those of the old place are made to point to
    `study_dir`. Does nothing when all is in its place.

    Raises:
        StudyError: There is no store in `study_dir`, or it cannot be read.
    """
    database = study_dir.absolute() / DATABASE
    if not database.is_file():
        raise StudyError(f"No MLflow store in {study_dir}: {DATABASE} is missing.")
    root = default_artifact_root(study_dir)
    new = root.as_uri()
    changed = 0
    try:
        with closing(sqlite3.connect(database, timeout=30.0)) as connection, connection:
            for old in _old_roots(connection, root):
                for table, column in _COLUMNS:
                    changed += _replace(connection, table, column, old, new)
    except sqlite3.DatabaseError as error:
        raise StudyError(f"The MLflow store {database} cannot be read: {error}.") from None
    return changed


def _old_roots(connection: sqlite3.Connection, root: Path) -> set[str]:
    """Addresses of former artifact folders: those of our name that are not the present one."""
    rows = connection.execute("SELECT artifact_location FROM experiments").fetchall()
    places = {str(row[0]) for row in rows if row[0]}
    return {
        place
        for place in places
        if place.startswith("file:")
        and (path := Path(unquote(urlsplit(place).path))).name == ARTIFACTS
        and path != root
    }


def _replace(connection: sqlite3.Connection, table: str, column: str, old: str, new: str) -> int:
    known = connection.execute(f"PRAGMA table_info({table})").fetchall()
    if column not in {row[1] for row in known}:
        return 0
    done = connection.execute(
        f"UPDATE {table} SET {column} = ? || substr({column}, ?) "
        f"WHERE {column} = ? OR substr({column}, 1, ?) = ?",
        (new, len(old) + 1, old, len(old) + 1, old + "/"),
    )
    return done.rowcount
