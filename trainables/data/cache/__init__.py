"""Arrays that are computed once per node, and survive crashes and crowds.

An entry is a directory `NAME-KEY` with one `.npy` file per array and `entry.json`; KEY is a hash of
the settings, so other settings are another entry. It is filled under `NAME-KEY.partial` by one
process that holds a file lock (the kernel drops the lock when that process dies), chunk by chunk
with a journal of checksums; a later process goes on where it ended. The directory gets its final
name in one rename, so a finished entry is whole. Readers map the files read-only: all processes of
a node share one copy in the page cache.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from trainables.data.building import Build
from trainables.data.entry import CachedRows, DamagedError, open_entry
from trainables.data.rows import Fill, LeaveOut, Progress, Rows, RowSpec

__all__ = ["CachedRows", "Progress", "RowSpec", "Rows", "cached_rows", "locked", "usable_cores"]

FORMAT = 2


def cached_rows(
    root: Path,
    *,
    name: str,
    settings: Mapping[str, Any],
    specs: Mapping[str, RowSpec],
    n_rows: int,
    fill: Fill,
    chunk_rows: int = 128,
    workers: int | None = None,
    leave_out: LeaveOut | None = None,
    progress: Progress | None = None,
) -> CachedRows:
    """Where are these rows? Computes them when no process of this node has done so yet.

    Args:
        root: Cache directory of this node; made when missing.
        name: Start of the entry's directory name, for people.
        settings: Everything the rows depend on (plain JSON values).
        fill: Called from several threads, in any order, once per chunk of `chunk_rows` rows.
        workers: Threads; default one per usable core.
        leave_out: Which rows are unwanted, now that all are known; once, at the end. What it
            depends on must be among the settings.
    """
    payload = {
        "format": FORMAT,
        "settings": dict(settings),
        "specs": {key: [list(spec.shape), spec.dtype] for key, spec in specs.items()},
        "n_rows": n_rows,
        "chunk_rows": chunk_rows,
    }
    key = hashlib.sha256(json.dumps(payload, sort_keys=True).encode()).hexdigest()[:20]
    root.mkdir(parents=True, exist_ok=True)
    final = root / f"{name}-{key}"
    try:
        return open_entry(final, specs)
    except FileNotFoundError:
        pass
    except DamagedError:
        pass  # judged again under the lock: another process may be replacing it right now
    build = Build(final.with_name(final.name + ".partial"), payload, specs, n_rows, chunk_rows)
    waiting = (lambda: progress(f"{name} (another process)", 0, n_rows)) if progress else None
    with locked(final.with_name(final.name + ".lock"), waiting):
        damaged = False
        try:
            return open_entry(final, specs)
        except FileNotFoundError:
            pass
        except DamagedError:
            damaged = True
            # Renamed first: processes that still map the old files keep what they have.
            trash = final.with_name(f"{final.name}.damaged-{os.getpid()}")
            final.rename(trash)
            shutil.rmtree(trash, ignore_errors=True)
        build.run(fill, workers=workers or usable_cores(), progress=progress, label=name)
        build.publish(final, leave_out)
        return replace(open_entry(final, specs), rebuilt=damaged)


def usable_cores() -> int:
    """How many cores this process may use (containers and taskset respected)."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextmanager
def locked(path: Path, waiting: Callable[[], None] | None) -> Iterator[None]:
    """Hold a file lock; `waiting` is called when another process of this node has it."""
    with path.open("a") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if waiting:
                waiting()
            fcntl.flock(handle, fcntl.LOCK_EX)  # the kernel drops it if the holder dies
        try:
            yield
        finally:
            fcntl.flock(handle, fcntl.LOCK_UN)
