"""Builder of cache entries: threads fill chunks, and a journal lets a later process continue."""

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

from trainables.data.cache.entry import ENTRY_FILE, remaining_row_numbers
from trainables.data.cache.rows import (
    DataProgressCallback,
    FillFunction,
    RowFilter,
    RowSpec,
    as_memoryview,
)

CHUNK_TEXT_KEYS = ("bad", "remarks")


class CacheBuilder:
    """A directory that is being filled; the caller of every method holds the entry's lock.

    Args:
        directory: The partial directory.
        payload: Content of `entry.json` that is known before the rows are.
        specs: Shape and type of a row of each array.
        n_rows: Number of rows.
        chunk_rows: Rows per chunk.
    """

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
        self.journal_path = directory / "chunks.jsonl"
        self.finished_chunks: dict[int, dict[str, Any]] = {}

    def compute_missing_chunks(
        self, fill: FillFunction, *, workers: int, progress: DataProgressCallback | None, label: str
    ) -> None:
        """Compute the chunks that no earlier process finished."""
        with _add_directory_to_errors(self.directory.parent):
            self._compute_in_threads(fill, workers=workers, progress=progress, label=label)

    def _compute_in_threads(
        self, fill: FillFunction, *, workers: int, progress: DataProgressCallback | None, label: str
    ) -> None:
        files = self._open_array_files()
        starts = [
            s for s in range(0, self.n_rows, self.chunk_rows) if s not in self.finished_chunks
        ]
        rows_done = sum(min(self.chunk_rows, self.n_rows - s) for s in self.finished_chunks)
        if progress:
            progress(label, rows_done, self.n_rows)
        stop = threading.Event()

        def compute_unless_stopped(start: int) -> dict[str, Any] | None:
            return None if stop.is_set() else self._compute_chunk(fill, start, files)

        try:
            with self.journal_path.open("a") as journal, ThreadPoolExecutor(workers) as pool:
                try:
                    for future in as_completed(
                        [pool.submit(compute_unless_stopped, start) for start in starts]
                    ):
                        record = future.result()
                        assert record is not None
                        journal.write(json.dumps(record) + "\n")
                        journal.flush()
                        self.finished_chunks[record["start"]] = record
                        rows_done += record["stop"] - record["start"]
                        if progress:
                            progress(label, rows_done, self.n_rows)
                except BaseException:
                    stop.set()  # after an error or ctrl-C queued chunks end at once
                    raise
        finally:
            for descriptor, _ in files.values():
                os.close(descriptor)

    def publish_entry(self, final: Path, leave_out: RowFilter | None) -> None:
        """Exclude rows, write entry.json and give the directory its final name."""
        with _add_directory_to_errors(self.directory.parent):
            self._write_and_rename(final, leave_out)

    def _write_and_rename(self, final: Path, leave_out: RowFilter | None) -> None:
        records = [self.finished_chunks[start] for start in sorted(self.finished_chunks)]
        bad, remarks = (
            {k: v for r in records for k, v in r[key].items()} for key in CHUNK_TEXT_KEYS
        )
        row_numbers = remaining_row_numbers(self.n_rows, [int(row) for row in bad])
        unwanted = leave_out(self._open_memory_maps(), row_numbers) if leave_out else {}
        checksums = {name: [r["crc"][name] for r in records] for name in self.specs}
        if bad or unwanted:
            row_numbers = np.setdiff1d(row_numbers, np.array([*unwanted], dtype=np.int64))
            largest = max(spec.row_bytes for spec in self.specs.values())
            # The arrays are copied one at a time.
            self._require_disk_space(largest * len(row_numbers))
            checksums = {name: self._compact_array(name, row_numbers) for name in self.specs}
        left_out = {str(row): reason for row, reason in unwanted.items()}
        texts = {"bad": bad, "left_out": left_out, "remarks": remarks}
        for name in self.specs:
            _fsync_file(self.directory / f"{name}.npy")
        entry = json.dumps({**self.payload, **texts, "checksums": checksums})
        (self.directory / ENTRY_FILE).write_text(entry)
        _fsync_file(self.directory / ENTRY_FILE)
        self.directory.rename(final)
        (final / self.journal_path.name).unlink(missing_ok=True)

    def _open_memory_maps(self) -> dict[str, NDArray[Any]]:
        files = {name: self.directory / f"{name}.npy" for name in self.specs}
        return {n: np.load(path, mmap_mode="r", allow_pickle=False) for n, path in files.items()}

    def _open_array_files(self) -> dict[str, tuple[int, int]]:
        """Open the array files as (descriptor, offset of row 0) and check the finished chunks."""
        fresh = not (self.journal_path.exists() and all(map(self._has_all_rows, self.specs)))
        if fresh:
            shutil.rmtree(self.directory, ignore_errors=True)
            self.directory.mkdir(parents=True)
            self._require_disk_space(sum(s.row_bytes for s in self.specs.values()) * self.n_rows)
            for name, spec in self.specs.items():
                _create_array_file(self.directory / f"{name}.npy", spec, self.n_rows)
        files = {}
        for name, spec in self.specs.items():
            path = self.directory / f"{name}.npy"
            descriptor = os.open(path, os.O_RDWR)
            files[name] = (descriptor, path.stat().st_size - spec.row_bytes * self.n_rows)
        if not fresh:
            self._restore_finished_chunks(files)
        return files

    def _has_all_rows(self, name: str) -> bool:
        """Whether an earlier process left this array at full length, not yet compacted."""
        try:
            array = np.load(self.directory / f"{name}.npy", mmap_mode="r", allow_pickle=False)
        except (OSError, ValueError, EOFError):
            return False
        return bool(array.shape == (self.n_rows, *self.specs[name].shape))

    def _restore_finished_chunks(self, files: Mapping[str, tuple[int, int]]) -> None:
        for line in self.journal_path.read_text(errors="replace").splitlines():
            try:
                record = json.loads(line)
            except json.JSONDecodeError:
                continue  # the process died while it wrote this line
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
                self.finished_chunks[record["start"]] = record
        # Rewritten, so that an incomplete last line cannot run into the next record.
        self.journal_path.write_text(
            "".join(json.dumps(r) + "\n" for r in self.finished_chunks.values())
        )

    def _compute_chunk(
        self, fill: FillFunction, start: int, files: Mapping[str, tuple[int, int]]
    ) -> dict[str, Any]:
        stop = min(start + self.chunk_rows, self.n_rows)
        filled = fill(start, stop)
        record: dict[str, Any] = {"start": start, "stop": stop, "crc": {}}
        for key in CHUNK_TEXT_KEYS:
            record[key] = {str(row): text for row, text in getattr(filled, key).items()}
        for name, spec in self.specs.items():
            rows = np.ascontiguousarray(filled.arrays[name], dtype=spec.dtype)
            if rows.shape != (stop - start, *spec.shape):
                expected = (stop - start, *spec.shape)
                raise ValueError(f"array {name!r} must have shape {expected}, got {rows.shape}")
            descriptor, offset = files[name]
            # Written and not mapped: on a full disk this raises an OSError, a map a SIGBUS.
            _write_at_offset(descriptor, as_memoryview(rows), offset + start * spec.row_bytes)
            record["crc"][name] = zlib.crc32(as_memoryview(rows))
        return record

    def _compact_array(self, name: str, row_numbers: NDArray[np.int64]) -> list[int]:
        """Rewrite an array with some of its rows and return the checksums of its chunks."""
        spec, path = self.specs[name], self.directory / f"{name}.npy"
        source = np.load(path, mmap_mode="r")
        target = path.with_suffix(".kept")
        _create_array_file(target, spec, len(row_numbers))
        checksums = []
        with target.open("r+b") as handle:
            handle.seek(0, os.SEEK_END)
            handle.seek(handle.tell() - spec.row_bytes * len(row_numbers))
            for start in range(0, len(row_numbers), self.chunk_rows):
                rows = np.ascontiguousarray(source[row_numbers[start : start + self.chunk_rows]])
                handle.write(as_memoryview(rows))
                checksums.append(zlib.crc32(as_memoryview(rows)))
        target.replace(path)
        return checksums

    def _require_disk_space(self, need: int) -> None:
        free = shutil.disk_usage(self.directory).free
        if need > free:
            raise ValueError(
                f"the cache needs {need / 2**30:.1f} GiB in {self.directory.parent}, "
                f"where {free / 2**30:.1f} GiB are free; set another cache directory"
            )


@contextmanager
def _add_directory_to_errors(directory: Path) -> Iterator[None]:
    """Name this directory in errors of a full or failing disk that name no file."""
    try:
        yield
    except OSError as error:
        if error.errno is None or error.filename is not None:
            raise
        raise OSError(error.errno, error.strerror, str(directory)) from error


def _create_array_file(path: Path, spec: RowSpec, n_rows: int) -> None:
    np.lib.format.open_memmap(path, mode="w+", dtype=spec.dtype, shape=(n_rows, *spec.shape))


def _write_at_offset(descriptor: int, data: memoryview, offset: int) -> None:
    while data:
        written = os.pwrite(descriptor, data, offset)
        data, offset = data[written:], offset + written


def _fsync_file(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
