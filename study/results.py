"""Result stores: where the trials of a study are recorded, and which records are missing."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from study.trials.table import TrialTable


@dataclass(frozen=True)
class ResultStore:
    """Location of a study's results.

    Args:
        name: Name of the study.
        uri: Tracking URI of the store that contains its trials.
        report: Default folder of its report.
        spool: Folder of records on this machine that are not yet sent to the store, if any.
    """

    name: str
    uri: str
    report: Path
    spool: Path | None = None


def find_store(name: str, tracking_uri: str | None, root: Path | None) -> ResultStore:
    """Return the store of a study: the given one, or the one its plan or directory names.

    A directory with a store but without a plan is an imported study.

    Args:
        name: Name of the study.
        tracking_uri: Store to use instead of the study's own.
        root: Folder of all studies; None for the default.

    Raises:
        StudyError: If there is no such study.
    """
    from study.config.plan import PLAN_FILE, load_plan
    from study.directory import DATABASE_FILE, StudyDirectory, default_tracking_uri, find_study
    from study.utils.paths import studies_root

    if tracking_uri:
        return ResultStore(name, tracking_uri, Path(f"{name}-report"))
    imported = StudyDirectory(studies_root(root) / name)
    if (imported.path / DATABASE_FILE).exists() and not (imported.path / PLAN_FILE).exists():
        return ResultStore(name, default_tracking_uri(imported.path), imported.report_dir)
    study_dir = find_study(name, root)
    plan = load_plan(study_dir.path)
    return ResultStore(
        plan.name, study_dir.tracking_uri(plan), study_dir.report_dir, study_dir.spool_dir
    )


def load_table(
    name: str, *, root: Path | str | None = None, tracking_uri: str | None = None
) -> TrialTable:
    """Return the trials of a study, with learning curves, search spaces and protocol.

    Args:
        name: Name of the study.
        root: Folder of all studies; None for the default.
        tracking_uri: Store to read instead of the study's own.

    Raises:
        StudyError: If there is no such study.
    """
    from study.tracking.reader import read_table

    store = find_store(name, tracking_uri, None if root is None else Path(root))
    return read_table(store.uri, store.name)


def missing_records_warning(store: ResultStore) -> str:
    """Return a warning if records of this machine are missing in the store, else ''."""
    from study.tracking.spool import has_unshipped_records, read_status

    if store.spool is None or not has_unshipped_records(store.spool):
        return ""
    error = read_status(store.spool).error
    return (
        f"the store of {store.name} lacks records that are still in {store.spool}"
        + (f" ({error})" if error else "")
        + f": results are incomplete; run `study resume {store.name}` to send them"
    )
