"""How do a run's artifacts become the files of a folder: all of them, and no others?"""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Collection, Iterator
from pathlib import Path

from mlflow import MlflowClient

from study.report import folder as reports
from study.tracking.home import RefusedError


def store_text(client: MlflowClient, run_id: str, text: str, file: str) -> None:
    """Store a text as an artifact."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, file)
        path.write_text(text, encoding="utf-8")
        client.log_artifact(run_id, str(path))


def store(
    client: MlflowClient,
    run_id: str,
    path: Path,
    folder: str = "",
    only: Collection[str] | None = None,
) -> None:
    """Store a file as an artifact, or a directory's files, which are then all that `folder` holds.

    A directory is copied first, as it is between two reports: sending it may take long.

    Args:
        client: Of the store.
        run_id: Whose artifacts.
        path: File or directory.
        folder: Where among the artifacts; of a directory it must not be the top.
        only: Names of the directory's files to store; None for all, those of its folders too, but
            for hidden ones.
    """
    if not path.exists():
        raise RefusedError(f"the artifact {path.name} is gone")
    if not path.is_dir():
        client.log_artifact(run_id, str(path), folder or None)
        return
    with tempfile.TemporaryDirectory() as place:
        copy = Path(place, path.name)
        _copy(path, copy, only)
        files = [p.relative_to(copy).as_posix() for p in copy.rglob("*") if p.is_file()]
        if files:
            client.log_artifacts(run_id, str(copy), folder)
    for old in set(_held(client, run_id, folder)) - {f"{folder}/{name}" for name in files}:
        remove(client, run_id, old)


def _copy(path: Path, copy: Path, only: Collection[str] | None) -> None:
    """Copy a report, or a folder of one, with files of one and the same report."""
    is_report = (path / reports.MANIFEST).exists()
    with reports.still(path if is_report else path.parent):
        if only is None:
            shutil.copytree(path, copy, ignore=shutil.ignore_patterns(".*"))
            return
        copy.mkdir()
        for name in only:
            with contextlib.suppress(FileNotFoundError):
                shutil.copyfile(path / name, copy / name)


def remove(client: MlflowClient, run_id: str, file: str) -> None:
    """Remove an artifact; where the store does not let it go it stays, which holds up nothing."""
    artifacts = client._tracking_client._get_artifact_repo(run_id)
    with contextlib.suppress(Exception):  # of whatever keeps artifacts: disks, S3, servers
        artifacts.delete_artifacts(file)


def _held(client: MlflowClient, run_id: str, folder: str) -> Iterator[str]:
    for item in client.list_artifacts(run_id, folder):
        if item.is_dir:
            yield from _held(client, run_id, item.path)
        else:
            yield item.path
