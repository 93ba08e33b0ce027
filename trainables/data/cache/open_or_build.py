"""Opening of cache entries, which one process of a node builds if they are missing."""

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

from trainables.data.cache.build import CacheBuilder
from trainables.data.cache.entry import CacheEntry, CorruptCacheError, open_entry
from trainables.data.cache.rows import DataProgressCallback, FillFunction, RowFilter, RowSpec

CACHE_FORMAT_VERSION = 2


def open_or_build_entry(
    root: Path,
    *,
    name: str,
    settings: Mapping[str, Any],
    specs: Mapping[str, RowSpec],
    n_rows: int,
    fill: FillFunction,
    chunk_rows: int = 128,
    workers: int | None = None,
    leave_out: RowFilter | None = None,
    progress: DataProgressCallback | None = None,
) -> CacheEntry:
    """Open an entry, or build it if no process of this node has done so yet.

    Args:
        root: Cache directory of this node; created if missing.
        name: Start of the entry's directory name, for readability.
        settings: Everything that the rows depend on, as plain JSON values.
        specs: Shape and type of a row of each array.
        n_rows: Number of rows.
        fill: Computes a range of rows; called from several threads, in any order, once per chunk.
        chunk_rows: Rows per chunk.
        workers: Number of threads; None for one per usable core.
        leave_out: Selects rows to exclude; called once with all rows. Everything that it depends
            on must be among the settings.
        progress: Called with (label, rows done, total rows) while rows are computed.
    """
    payload = {
        "format": CACHE_FORMAT_VERSION,
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
    except CorruptCacheError:
        pass  # checked again under the lock, because another process may be replacing it
    build = CacheBuilder(
        final.with_name(final.name + ".partial"), payload, specs, n_rows, chunk_rows
    )
    waiting = (lambda: progress(f"{name} (another process)", 0, n_rows)) if progress else None
    with hold_file_lock(final.with_name(final.name + ".lock"), waiting):
        damaged = False
        try:
            return open_entry(final, specs)
        except FileNotFoundError:
            pass
        except CorruptCacheError:
            damaged = True
            # Renamed first: processes that map the old files keep them.
            trash = final.with_name(f"{final.name}.damaged-{os.getpid()}")
            final.rename(trash)
            shutil.rmtree(trash, ignore_errors=True)
        build.compute_missing_chunks(
            fill, workers=workers or count_usable_cores(), progress=progress, label=name
        )
        build.publish_entry(final, leave_out)
        return replace(open_entry(final, specs), rebuilt=damaged)


def count_usable_cores() -> int:
    """Return how many cores this process may use, as limited by containers and taskset."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextmanager
def hold_file_lock(path: Path, waiting: Callable[[], None] | None) -> Iterator[None]:
    """Hold a file lock; `waiting` is called if another process of this node holds it."""
    with path.open("a") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if waiting:
                waiting()
            fcntl.flock(handle, fcntl.LOCK_EX)  # the kernel releases it if the holder dies
        try:
            yield
        finally:
            fcntl.flock(handle, fcntl.LOCK_UN)
