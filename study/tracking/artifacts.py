"""Artifacts of a run: storing files, and folders so that the run holds exactly their files."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Collection, Iterator
from pathlib import Path

from mlflow import MlflowClient

from study.tracking.experiment import RecordRefusedError
from study.utils import atomic_folder as reports


def store_text(client: MlflowClient, run_id: str, text: str, file: str) -> None:
    """Store a text as an artifact."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, file)
        path.write_text(text, encoding="utf-8")
        client.log_artifact(run_id, str(path))


def store_artifact(
    client: MlflowClient,
    run_id: str,
    path: Path,
    folder: str = "",
    only: Collection[str] | None = None,
) -> None:
    """Store a file as an artifact, or a directory's files, which replace the content of `folder`.

    A directory is copied first, under the report's lock, because uploading may take long.

    Args:
        client: MLflow client of the store.
        run_id: Run that the artifacts belong to.
        path: File or directory.
        folder: Artifact folder; must not be empty for a directory.
        only: Names of the directory's files to store; None for all files in it and its folders
            except hidden ones.

    Raises:
        RecordRefusedError: The path does not exist any more.
    """
    if not path.exists():
        raise RecordRefusedError(f"the artifact {path.name} no longer exists")
    if not path.is_dir():
        client.log_artifact(run_id, str(path), folder or None)
        return
    with tempfile.TemporaryDirectory() as place:
        copy = Path(place, path.name)
        _copy_report_folder(path, copy, only)
        files = [p.relative_to(copy).as_posix() for p in copy.rglob("*") if p.is_file()]
        if files:
            client.log_artifacts(run_id, str(copy), folder)
    for old in set(_list_artifact_files(client, run_id, folder)) - {
        f"{folder}/{name}" for name in files
    }:
        remove_artifact(client, run_id, old)


def _copy_report_folder(path: Path, copy: Path, only: Collection[str] | None) -> None:
    """Copy a report or a folder of one, so that all files come from the same report."""
    is_report = (path / reports.MANIFEST_FILE).exists()
    with reports.report_lock(path if is_report else path.parent):
        if only is None:
            shutil.copytree(path, copy, ignore=shutil.ignore_patterns(".*"))
            return
        copy.mkdir()
        for name in only:
            with contextlib.suppress(FileNotFoundError):
                shutil.copyfile(path / name, copy / name)


def remove_artifact(client: MlflowClient, run_id: str, file: str) -> None:
    """Remove an artifact; if the store cannot, the artifact stays."""
    artifacts = client._tracking_client._get_artifact_repo(run_id)
    with contextlib.suppress(Exception):  # artifact stores (disk, S3, server) raise any type
        artifacts.delete_artifacts(file)


def _list_artifact_files(client: MlflowClient, run_id: str, folder: str) -> Iterator[str]:
    for item in client.list_artifacts(run_id, folder):
        if item.is_dir:
            yield from _list_artifact_files(client, run_id, item.path)
        else:
            yield item.path
