"""An entry of the cache while it is being filled: by threads, chunk by chunk, with a journal."""

from __future__ import annotations

import json
import os
import shutil
import threading
import zlib
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainables.data.entry import ENTRY_FILE, kept_rows
from trainables.data.rows import Fill, LeaveOut, Progress, RowSpec, memory_of

CHUNK_TEXTS = ("bad", "remarks")


class Build:
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
        with _naming(self.directory.parent):
            self._run(fill, workers=workers, progress=progress, label=label)

    def _run(self, fill: Fill, *, workers: int, progress: Progress | None, label: str) -> None:
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

    def publish(self, final: Path, leave_out: LeaveOut | None) -> None:
        """Leave out rows, write entry.json and give the directory its final name."""
        with _naming(self.directory.parent):
            self._publish(final, leave_out)

    def _publish(self, final: Path, leave_out: LeaveOut | None) -> None:
        records = [self.done[start] for start in sorted(self.done)]
        bad, remarks = ({k: v for r in records for k, v in r[key].items()} for key in CHUNK_TEXTS)
        kept = kept_rows(self.n_rows, [int(row) for row in bad])
        unwanted = leave_out(self._maps(), kept) if leave_out else {}
        checksums = {name: [r["crc"][name] for r in records] for name in self.specs}
        if bad or unwanted:
            kept = np.setdiff1d(kept, np.array([*unwanted], dtype=np.int64))
            largest = max(spec.row_bytes for spec in self.specs.values())
            self._require_space(largest * len(kept))  # one array at a time is there twice
            checksums = {name: self._compact(name, kept) for name in self.specs}
        left_out = {str(row): why for row, why in unwanted.items()}
        texts = {"bad": bad, "left_out": left_out, "remarks": remarks}
        for name in self.specs:
            _sync(self.directory / f"{name}.npy")
        entry = json.dumps({**self.payload, **texts, "checksums": checksums})
        (self.directory / ENTRY_FILE).write_text(entry)
        _sync(self.directory / ENTRY_FILE)
        self.directory.rename(final)
        (final / self.journal.name).unlink(missing_ok=True)

    def _maps(self) -> dict[str, NDArray[Any]]:
        files = {name: self.directory / f"{name}.npy" for name in self.specs}
        return {n: np.load(path, mmap_mode="r", allow_pickle=False) for n, path in files.items()}

    def _prepare(self) -> dict[str, tuple[int, int]]:
        """Open the array files as (descriptor, offset of row 0), trusting only checked chunks."""
        fresh = not (self.journal.exists() and all(map(self._has_all_rows, self.specs)))
        if fresh:
            shutil.rmtree(self.directory, ignore_errors=True)
            self.directory.mkdir(parents=True)
            self._require_space(sum(s.row_bytes for s in self.specs.values()) * self.n_rows)
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
        for line in self.journal.read_text(errors="replace").splitlines():
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
        for key in CHUNK_TEXTS:
            record[key] = {str(row): text for row, text in getattr(filled, key).items()}
        for name, spec in self.specs.items():
            rows = np.ascontiguousarray(filled.arrays[name], dtype=spec.dtype)
            if rows.shape != (stop - start, *spec.shape):
                expected = (stop - start, *spec.shape)
                raise ValueError(f"array {name!r} must have shape {expected}, got {rows.shape}.")
            descriptor, offset = files[name]
            # Written, not mapped: a full disk is then an OSError here and not a SIGBUS later.
            _write(descriptor, memory_of(rows), offset + start * spec.row_bytes)
            record["crc"][name] = zlib.crc32(memory_of(rows))
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
                handle.write(memory_of(rows))
                checksums.append(zlib.crc32(memory_of(rows)))
        target.replace(path)
        return checksums

    def _require_space(self, need: int) -> None:
        free = shutil.disk_usage(self.directory).free
        if need > free:
            raise ValueError(
                f"the cache needs {need / 2**30:.1f} GiB in {self.directory.parent}, "
                f"where {free / 2**30:.1f} GiB are free; name another cache directory."
            )


@contextmanager
def _naming(directory: Path) -> Iterator[None]:
    """A full or failing disk is an error of this directory, unless it names a file itself."""
    try:
        yield
    except OSError as error:
        if error.errno is None or error.filename is not None:
            raise
        raise OSError(error.errno, error.strerror, str(directory)) from error


def _create(path: Path, spec: RowSpec, n_rows: int) -> None:
    np.lib.format.open_memmap(path, mode="w+", dtype=spec.dtype, shape=(n_rows, *spec.shape))


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
