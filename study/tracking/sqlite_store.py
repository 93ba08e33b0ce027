"""SQLite store: the MLflow store in the study's directory, used if no server is configured."""

from __future__ import annotations

import contextlib
import os
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path
from urllib.parse import unquote, urlsplit

from study.directory import ARTIFACTS_FOLDER, DATABASE_FILE, default_artifact_root
from study.errors import StudyError
from study.utils.paths import cache_dir
from study.utils.tracking_uri import sqlite_path

# Every column in which MLflow stores the location of artifacts.
_ARTIFACT_URI_COLUMNS = (
    ("experiments", "artifact_location"),
    ("runs", "artifact_uri"),
    ("logged_models", "artifact_location"),
    ("model_versions", "source"),
    ("model_versions", "storage_location"),
)


def create_store(uri: str) -> None:
    """Create an empty store atomically, if there is none.

    MLflow creates its tables in a hundred steps, and a process killed in between would leave a
    database that MLflow cannot open. The tables are therefore created in a file with another name,
    which is then renamed. An empty store is cached and copied from then on. Only one process may
    call this at a time.

    Args:
        uri: Tracking URI; nothing happens unless it is an SQLite file.
    """
    database = sqlite_path(uri)
    if database is None or database.exists():
        return
    import mlflow

    unfinished = database.with_name(database.name + ".new")
    unfinished.with_name(unfinished.name + "-journal").unlink(missing_ok=True)
    unfinished.unlink(missing_ok=True)
    cached = cache_dir() / f"mlflow-{mlflow.__version__}.db"
    if _is_intact_store(cached):
        shutil.copyfile(cached, unfinished)
    else:
        mlflow.MlflowClient(tracking_uri=f"sqlite:///{unfinished}").search_experiments()
        _cache_empty_store(unfinished, cached)
    with closing(sqlite3.connect(unfinished)) as connection, connection:
        location = str(database.parent / "mlruns" / "0")  # of MLflow's default experiment
        connection.execute("UPDATE experiments SET artifact_location = ?", (location,))
    unfinished.replace(database)


def _is_intact_store(cached: Path) -> bool:
    """Whether the file exists and is a complete store."""
    if not cached.is_file():
        return False
    try:
        with closing(sqlite3.connect(f"{cached.as_uri()}?mode=ro", uri=True)) as connection:
            is_ok = connection.execute("PRAGMA quick_check").fetchone() == ("ok",)
            return is_ok and bool(connection.execute("SELECT 1 FROM alembic_version").fetchone())
    except sqlite3.DatabaseError:
        return False


def _cache_empty_store(store: Path, cached: Path) -> None:
    """Copy an empty store for later studies, because creating its tables takes seconds."""
    temporary = cached.with_name(f"{cached.name}.{os.getpid()}")
    with contextlib.suppress(OSError):  # without a cache, later studies only start more slowly
        cached.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(store, temporary)
        temporary.replace(cached)


def repair_artifact_paths(study_dir: Path) -> int:
    """Repair a store whose study directory was moved.

    MLflow stores absolute artifact locations; those in the old directory are changed to point to
    `study_dir`. A store that was not moved does not change.

    Returns:
        Number of locations changed.

    Raises:
        StudyError: `study_dir` has no store, or it cannot be read.
    """
    database = study_dir.absolute() / DATABASE_FILE
    if not database.is_file():
        raise StudyError(f"no MLflow store in {study_dir}: {DATABASE_FILE} is missing")
    root = default_artifact_root(study_dir)
    new = root.as_uri()
    changed = 0
    try:
        with closing(sqlite3.connect(database, timeout=30.0)) as connection, connection:
            for old in _former_artifact_roots(connection, root):
                for table, column in _ARTIFACT_URI_COLUMNS:
                    changed += _replace_uri_prefix(connection, table, column, old, new)
    except sqlite3.DatabaseError as error:
        raise StudyError(f"cannot read the MLflow store {database}: {error}") from None
    return changed


def _former_artifact_roots(connection: sqlite3.Connection, root: Path) -> set[str]:
    """Return the locations of other artifact folders, recognised by their name."""
    rows = connection.execute("SELECT artifact_location FROM experiments").fetchall()
    locations = {str(row[0]) for row in rows if row[0]}
    return {
        location
        for location in locations
        if location.startswith("file:")
        and (path := Path(unquote(urlsplit(location).path))).name == ARTIFACTS_FOLDER
        and path != root
    }


def _replace_uri_prefix(
    connection: sqlite3.Connection, table: str, column: str, old: str, new: str
) -> int:
    columns = connection.execute(f"PRAGMA table_info({table})").fetchall()
    if column not in {row[1] for row in columns}:
        return 0
    result = connection.execute(
        f"UPDATE {table} SET {column} = ? || substr({column}, ?) "
        f"WHERE {column} = ? OR substr({column}, 1, ?) = ?",
        (new, len(old) + 1, old, len(old) + 1, old + "/"),
    )
    return result.rowcount
