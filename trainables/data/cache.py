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
import threading
import zlib
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

FORMAT = 1
ROW_TEXTS = ("bad", "remarks")

Progress = Callable[[str, int, int], None]
"""Called with (what is being done, rows done, rows in all); from one thread at a time."""


@dataclass(frozen=True)
class Rows:
    """Some rows: an array per name, and by row what is bad (left out) or worth a remark."""

    arrays: Mapping[str, NDArray[Any]]
    bad: Mapping[int, str] = field(default_factory=dict)
    remarks: Mapping[int, str] = field(default_factory=dict)


Fill = Callable[[int, int], Rows]
"""Gives rows start..stop; `bad` and `remarks` are numbered like start and stop."""


@dataclass(frozen=True)
class RowSpec:
    """One array of an entry, without its first axis."""

    shape: tuple[int, ...]
    dtype: str

    @property
    def row_bytes(self) -> int:
        """Bytes of one row."""
        return int(np.prod(self.shape, dtype=np.int64)) * np.dtype(self.dtype).itemsize


@dataclass(frozen=True)
class CachedRows:
    """A finished entry.

    Args:
        arrays: Read-only memory maps, bad rows left out.
        bad: Row as asked for -> why it is not in the arrays.
        remarks: Row as asked for -> what is worth knowing about it.
        kept: Rows as asked for that are in the arrays, in order.
        fingerprint: Of contents and settings; equal on every machine that computed equal rows.
        rebuilt: True when a damaged entry was found and computed again.
    """

    arrays: dict[str, NDArray[Any]]
    bad: dict[int, str]
    remarks: dict[int, str]
    kept: NDArray[np.int64]
    fingerprint: str
    rebuilt: bool = False


class _DamagedError(Exception):
    """An entry that does not hold what it says."""


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
    progress: Progress | None = None,
) -> CachedRows:
    """Where are these rows? Computes them when no process of this node has done so yet.

    Args:
        root: Cache directory of this node; made when missing.
        name: Start of the entry's directory name, for people.
        settings: Everything the rows depend on (plain JSON values).
        fill: Called from several threads, in any order, once per chunk of `chunk_rows` rows.
        workers: Threads; default one per usable core.
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
        return _open(final, specs)
    except FileNotFoundError:
        pass
    except _DamagedError:
        pass  # judged again under the lock: another process may be replacing it right now
    build = _Build(final.with_name(final.name + ".partial"), payload, specs, n_rows, chunk_rows)
    waiting = (lambda: progress(f"{name} (another process)", 0, n_rows)) if progress else None
    with locked(final.with_name(final.name + ".lock"), waiting):
        damaged = False
        try:
            return _open(final, specs)
        except FileNotFoundError:
            pass
        except _DamagedError:
            damaged = True
            # Renamed first: processes that still map the old files keep what they have.
            trash = final.with_name(f"{final.name}.damaged-{os.getpid()}")
            final.rename(trash)
            shutil.rmtree(trash, ignore_errors=True)
        build.run(fill, workers=workers or usable_cores(), progress=progress, label=name)
        build.publish(final)
        return replace(_open(final, specs), rebuilt=damaged)


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


class _Build:
    """A directory being filled; every method runs under the entry's lock."""

    def __init__(
        self,
        directory: Path,
        payload: Mapping[str, Any],
        specs: Mapping[str, RowSpec],
        n_rows: int,
        chunk_rows: int,
    ) -> None:
        self.directory, self.payload, self.specs = directory, payload, specs
        self.n_rows, self.chunk_rows = n_rows, chunk_rows
        self.journal = directory / "chunks.jsonl"
        self.done: dict[int, dict[str, Any]] = {}

    def run(self, fill: Fill, *, workers: int, progress: Progress | None, label: str) -> None:
        """Compute the chunks that no earlier process finished."""
        files = self._prepare()
        starts = [s for s in range(0, self.n_rows, self.chunk_rows) if s not in self.done]
        rows_done = sum(min(self.chunk_rows, self.n_rows - s) for s in self.done)
        if progress:
            progress(label, rows_done, self.n_rows)
        stop = threading.Event()

        def one(start: int) -> dict[str, Any] | None:
            return None if stop.is_set() else self._chunk(fill, start, files)

        try:
            with self.journal.open("a") as journal, ThreadPoolExecutor(workers) as pool:
                try:
                    for future in as_completed([pool.submit(one, start) for start in starts]):
                        record = future.result()
                        assert record is not None
                        journal.write(json.dumps(record) + "\n")
                        journal.flush()
                        self.done[record["start"]] = record
                        rows_done += record["stop"] - record["start"]
                        if progress:
                            progress(label, rows_done, self.n_rows)
                except BaseException:
                    stop.set()  # one bad chunk or ctrl-C: queued chunks end at once
                    raise
        finally:
            for descriptor, _ in files.values():
                os.close(descriptor)

    def publish(self, final: Path) -> None:
        """Leave out bad rows, write entry.json and give the directory its final name."""
        records = [self.done[start] for start in sorted(self.done)]
        bad, remarks = ({k: v for r in records for k, v in r[key].items()} for key in ROW_TEXTS)
        checksums = {name: [r["crc"][name] for r in records] for name in self.specs}
        if bad:
            kept = np.setdiff1d(np.arange(self.n_rows), np.array([int(row) for row in bad]))
            checksums = {name: self._compact(name, kept) for name in self.specs}
        entry = dict(self.payload, bad=bad, remarks=remarks, checksums=checksums)
        for name in self.specs:
            _sync(self.directory / f"{name}.npy")
        (self.directory / "entry.json").write_text(json.dumps(entry))
        _sync(self.directory / "entry.json")
        self.directory.rename(final)
        (final / self.journal.name).unlink(missing_ok=True)

    def _prepare(self) -> dict[str, tuple[int, int]]:
        """Open the array files as (descriptor, offset of row 0), trusting only checked chunks."""
        fresh = not (self.journal.exists() and all(map(self._has_all_rows, self.specs)))
        if fresh:
            shutil.rmtree(self.directory, ignore_errors=True)
            self.directory.mkdir(parents=True)
            self._require_space()
            for name, spec in self.specs.items():
                _create(self.directory / f"{name}.npy", spec, self.n_rows)
        files = {}
        for name, spec in self.specs.items():
            path = self.directory / f"{name}.npy"
            descriptor = os.open(path, os.O_RDWR)
            files[name] = (descriptor, path.stat().st_size - spec.row_bytes * self.n_rows)
        if not fresh:
            self._resume(files)
        return files

    def _has_all_rows(self, name: str) -> bool:
        """Whether an earlier process left this array at full length (and not compacted)."""
        try:
            array = np.load(self.directory / f"{name}.npy", mmap_mode="r", allow_pickle=False)
        except (OSError, ValueError, EOFError):
            return False
        return bool(array.shape == (self.n_rows, *self.specs[name].shape))

    def _resume(self, files: Mapping[str, tuple[int, int]]) -> None:
        for line in self.journal.read_text().splitlines():
            try:
                record = json.loads(line)
            except json.JSONDecodeError:
                continue  # the line a dying process was writing
            rows = record["stop"] - record["start"]
            if all(
                record["crc"][name]
                == zlib.crc32(
                    os.pread(
                        files[name][0],
                        rows * spec.row_bytes,
                        files[name][1] + record["start"] * spec.row_bytes,
                    )
                )
                for name, spec in self.specs.items()
            ):
                self.done[record["start"]] = record
        # Rewritten, so that a torn last line cannot run into the next record.
        self.journal.write_text("".join(json.dumps(r) + "\n" for r in self.done.values()))

    def _chunk(
        self, fill: Fill, start: int, files: Mapping[str, tuple[int, int]]
    ) -> dict[str, Any]:
        stop = min(start + self.chunk_rows, self.n_rows)
        filled = fill(start, stop)
        record: dict[str, Any] = {"start": start, "stop": stop, "crc": {}}
        for key in ROW_TEXTS:
            record[key] = {str(row): text for row, text in getattr(filled, key).items()}
        for name, spec in self.specs.items():
            rows = np.ascontiguousarray(filled.arrays[name], dtype=spec.dtype)
            if rows.shape != (stop - start, *spec.shape):
                expected = (stop - start, *spec.shape)
                raise ValueError(f"array {name!r} must have shape {expected}, got {rows.shape}.")
            descriptor, offset = files[name]
            # Written, not mapped: a full disk is then an OSError here and not a SIGBUS later.
            _write(descriptor, _bytes(rows), offset + start * spec.row_bytes)
            record["crc"][name] = zlib.crc32(_bytes(rows))
        return record

    def _compact(self, name: str, kept: NDArray[np.int64]) -> list[int]:
        spec, path = self.specs[name], self.directory / f"{name}.npy"
        source = np.load(path, mmap_mode="r")
        target = path.with_suffix(".kept")
        _create(target, spec, len(kept))
        checksums = []
        with target.open("r+b") as handle:
            handle.seek(0, os.SEEK_END)
            handle.seek(handle.tell() - spec.row_bytes * len(kept))
            for start in range(0, len(kept), self.chunk_rows):
                rows = np.ascontiguousarray(source[kept[start : start + self.chunk_rows]])
                handle.write(_bytes(rows))
                checksums.append(zlib.crc32(_bytes(rows)))
        target.replace(path)
        return checksums

    def _require_space(self) -> None:
        need = sum(spec.row_bytes for spec in self.specs.values()) * self.n_rows
        free = shutil.disk_usage(self.directory).free
        if need > free:
            raise ValueError(
                f"the cache needs {need / 2**30:.1f} GiB in {self.directory.parent}, "
                f"where {free / 2**30:.1f} GiB are free; name another cache directory."
            )


def _create(path: Path, spec: RowSpec, n_rows: int) -> None:
    np.lib.format.open_memmap(path, mode="w+", dtype=spec.dtype, shape=(n_rows, *spec.shape))


def _bytes(rows: NDArray[Any]) -> memoryview:
    """The memory of a contiguous array, without a copy."""
    return rows.reshape(-1).view(np.uint8).data


def _write(descriptor: int, data: memoryview, offset: int) -> None:
    while data:
        written = os.pwrite(descriptor, data, offset)
        data, offset = data[written:], offset + written


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _open(final: Path, specs: Mapping[str, RowSpec]) -> CachedRows:
    """Map an entry after checking sizes, headers and the checksums of three chunks per array."""
    try:
        text = (final / "entry.json").read_text()
    except FileNotFoundError:
        if final.exists():
            raise _DamagedError(f"{final} has no entry.json") from None
        raise
    try:
        entry = json.loads(text)
        bad, remarks = ({int(k): str(v) for k, v in entry[key].items()} for key in ROW_TEXTS)
        kept = np.setdiff1d(np.arange(entry["n_rows"]), np.array(sorted(bad), dtype=np.int64))
        arrays = {}
        for name, spec in specs.items():
            array = np.load(final / f"{name}.npy", mmap_mode="r", allow_pickle=False)
            if array.shape != (len(kept), *spec.shape) or array.dtype != np.dtype(spec.dtype):
                raise _DamagedError(f"{final / name}.npy holds {array.dtype} {array.shape}")
            crcs, rows = entry["checksums"][name], entry["chunk_rows"]
            for i in {0, len(crcs) // 2, len(crcs) - 1} & set(range(len(crcs))):
                block = np.ascontiguousarray(array[i * rows : (i + 1) * rows])
                if zlib.crc32(_bytes(block)) != crcs[i]:
                    raise _DamagedError(f"{final / name}.npy: chunk {i} fails its checksum")
            arrays[name] = array
    except (ValueError, KeyError, TypeError, OSError) as error:
        raise _DamagedError(f"{final}: {error}") from error
    return CachedRows(arrays, bad, remarks, kept.astype(np.int64), _fingerprint(entry))


def _fingerprint(entry: Mapping[str, Any]) -> str:
    content = {key: entry[key] for key in ("checksums", "specs", "n_rows")}
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]
