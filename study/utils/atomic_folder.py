"""How is a folder always one report: page, figures and tables of the same moment?

A report is built out of sight and then takes the place of the one before it, all files at once for
whoever asks for a `still` folder. A loss that is no longer there, or a figure that has nothing to
show any more, must not lie beside the new page as if it belonged to it. Only what a report wrote is
removed: it keeps a list, which is also the file that is locked.
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

MANIFEST = "manifest.json"
FOLDERS = ("figures", "tables")


@contextlib.contextmanager
def replaced(out: Path) -> Iterator[Path]:
    """A folder to build a report in; once built, it takes the place of the report in `out`.

    Figures and tables of the report that was there before and that are not part of this one are
    removed. Files that no report wrote stay, whatever their names.
    """
    for left in out.glob(f".new-{socket.gethostname()}-*"):
        if not psutil.pid_exists(int(left.name.rpartition("-")[2])):
            shutil.rmtree(left, ignore_errors=True)
    building = unfinished(out, os.getpid())
    shutil.rmtree(building, ignore_errors=True)
    for folder in FOLDERS:
        (out / folder).mkdir(parents=True, exist_ok=True)
        (building / folder).mkdir(parents=True)
    (out / MANIFEST).touch()  # there is something to lock from the first report on
    try:
        yield building
        _install(building, out)
    finally:
        shutil.rmtree(building, ignore_errors=True)


def unfinished(out: Path, process: int) -> Path:
    """Where a process builds the report: in the folder itself, hidden, so that files can be moved.

    It is left behind by a process that was killed, until the next report on the same host.
    """
    return out / f".new-{socket.gethostname()}-{process}"


@contextlib.contextmanager
def still(out: Path) -> Iterator[None]:
    """Meanwhile no report takes the place of the one that is there, if any."""
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            _lock(stack.enter_context((out / MANIFEST).open("rb")), fcntl.LOCK_SH)
        yield


def _lock(file: IO[Any], kind: int) -> None:
    with contextlib.suppress(OSError):  # some file systems have no locks: a report all the same
        fcntl.flock(file, kind)


def _install(building: Path, out: Path) -> None:
    new = [p.relative_to(building).as_posix() for p in building.rglob("*") if p.is_file()]
    ours = {name for name in new if "/" in name}
    with (out / MANIFEST).open("r+", encoding="utf-8") as manifest:
        _lock(manifest, fcntl.LOCK_EX)
        before = set(_before(out))
        _write_list(
            manifest, before | ours
        )  # so that whatever ends it here, the next report tidies up
        for name in new:
            _move(building / name, out / name)
        for name in before - ours:
            (out / name).unlink(missing_ok=True)
        _write_list(manifest, ours)


def _write_list(manifest: IO[str], names: Collection[str]) -> None:
    manifest.seek(0)
    manifest.write(json.dumps({"files": sorted(names)}, indent=1, ensure_ascii=False) + "\n")
    manifest.truncate()
    manifest.flush()


def _move(source: Path, target: Path) -> None:
    """Replace a file, also in a folder that leads to another file system."""
    try:
        source.replace(target)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        near = target.with_name(f".{target.name}")
        shutil.copyfile(source, near)
        near.replace(target)


def _before(out: Path) -> list[str]:
    """What the list says was written; names that lead elsewhere are not ours."""
    try:
        names = json.loads((out / MANIFEST).read_text("utf-8"))["files"]
        parts = [(str(name), Path(str(name)).parts) for name in names]
    except (OSError, ValueError, KeyError, TypeError):
        return []
    return [n for n, p in parts if len(p) == 2 and p[0] in FOLDERS and p[1] not in ("..", ".")]
