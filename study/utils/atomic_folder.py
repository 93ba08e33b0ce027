"""Atomic replacement of a report folder, so that page, figures and tables always belong together.

A report is built in a hidden folder and then replaces the previous one, all files at once for
readers that hold `report_lock`. Figures and tables of the previous report that the new one does not
have are removed, but only files that a report wrote: they are listed in a manifest, which is also
the file that is locked.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import shutil
import socket
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import IO, Any

import psutil

MANIFEST_FILE = "manifest.json"
REPORT_SUBFOLDERS = ("figures", "tables")


@contextlib.contextmanager
def replacing_folder(out: Path) -> Iterator[Path]:
    """Yield a folder to build a report in; after the block it replaces the report in `out`.

    Figures and tables of the previous report that are not part of this one are removed. Files that
    no report wrote are kept, whatever their names.
    """
    for leftover in out.glob(f".new-{socket.gethostname()}-*"):
        if not psutil.pid_exists(int(leftover.name.rpartition("-")[2])):
            shutil.rmtree(leftover, ignore_errors=True)
    building = staging_path(out, os.getpid())
    shutil.rmtree(building, ignore_errors=True)
    for folder in REPORT_SUBFOLDERS:
        (out / folder).mkdir(parents=True, exist_ok=True)
        (building / folder).mkdir(parents=True)
    (out / MANIFEST_FILE).touch()  # the file to lock must exist during the first report
    try:
        yield building
        _install_report(building, out)
    finally:
        shutil.rmtree(building, ignore_errors=True)


def staging_path(out: Path, process: int) -> Path:
    """Return the folder in which a process builds the report: hidden, on the same file system.

    If the process is killed, the folder remains until the next report on the same host.
    """
    return out / f".new-{socket.gethostname()}-{process}"


@contextlib.contextmanager
def report_lock(out: Path) -> Iterator[None]:
    """Hold a shared lock so that the report is not replaced while it is being read."""
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            _lock_file(stack.enter_context((out / MANIFEST_FILE).open("rb")), fcntl.LOCK_SH)
        yield


def _lock_file(file: IO[Any], kind: int) -> None:
    with contextlib.suppress(OSError):  # on file systems without locks, go without
        fcntl.flock(file, kind)


def _install_report(building: Path, out: Path) -> None:
    new = [p.relative_to(building).as_posix() for p in building.rglob("*") if p.is_file()]
    listed = {name for name in new if "/" in name}
    with (out / MANIFEST_FILE).open("r+", encoding="utf-8") as manifest:
        _lock_file(manifest, fcntl.LOCK_EX)
        previous = set(_read_manifest(out))
        # If this process is killed below, the next report still knows all files to remove.
        _write_manifest(manifest, previous | listed)
        for name in new:
            _move_file(building / name, out / name)
        for name in previous - listed:
            (out / name).unlink(missing_ok=True)
        _write_manifest(manifest, listed)


def _write_manifest(manifest: IO[str], names: Collection[str]) -> None:
    manifest.seek(0)
    manifest.write(json.dumps({"files": sorted(names)}, indent=1, ensure_ascii=False) + "\n")
    manifest.truncate()
    manifest.flush()


def _move_file(source: Path, target: Path) -> None:
    """Replace a file, even if the target's folder is on another file system."""
    try:
        source.replace(target)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        copy = target.with_name(f".{target.name}")
        shutil.copyfile(source, copy)
        copy.replace(target)


def _read_manifest(out: Path) -> list[str]:
    """Return the files listed in the manifest, without names that lead out of the folder."""
    try:
        names = json.loads((out / MANIFEST_FILE).read_text("utf-8"))["files"]
        parts = [(str(name), Path(str(name)).parts) for name in names]
    except (OSError, ValueError, KeyError, TypeError):
        return []
    return [
        n for n, p in parts if len(p) == 2 and p[0] in REPORT_SUBFOLDERS and p[1] not in ("..", ".")
    ]
