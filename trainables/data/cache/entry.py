"""Finished cache entries: opened and checked."""

from __future__ import annotations

import hashlib
import json
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainables.data.cache.rows import RowSpec, as_memoryview

ENTRY_FILE = "entry.json"
ROW_TEXT_KEYS = ("bad", "left_out", "remarks")


@dataclass(frozen=True)
class CacheEntry:
    """A finished entry; row numbers are those of the request.

    Args:
        arrays: Read-only memory maps, without bad and excluded rows.
        bad: Row number -> why the row could not be computed.
        left_out: Row number -> why the filter excluded it.
        remarks: Row number -> a remark about the row.
        row_numbers: Row number of each row of the arrays.
        fingerprint: Hash of contents, shapes and types; equal on every machine that computed equal
            rows.
        directory: Directory of the entry.
        rebuilt: Whether a damaged entry was found and built again.
    """

    arrays: dict[str, NDArray[Any]]
    bad: dict[int, str]
    left_out: dict[int, str]
    remarks: dict[int, str]
    row_numbers: NDArray[np.int64]
    fingerprint: str
    directory: Path
    rebuilt: bool = False


class CorruptCacheError(Exception):
    """An entry whose files do not match its `entry.json`."""


def open_entry(final: Path, specs: Mapping[str, RowSpec]) -> CacheEntry:
    """Map an entry after checking sizes, headers and the checksums of three chunks per array.

    Args:
        final: Directory of the entry.
        specs: Shape and type of a row of each array.

    Raises:
        FileNotFoundError: If there is no entry.
        CorruptCacheError: If the files do not match `entry.json`.
    """
    try:
        text = (final / ENTRY_FILE).read_bytes()
    except FileNotFoundError:
        if final.exists():
            raise CorruptCacheError(f"{final} has no {ENTRY_FILE}") from None
        raise
    try:
        entry = json.loads(text)
        texts = [{int(k): str(v) for k, v in entry[key].items()} for key in ROW_TEXT_KEYS]
        bad, left_out, remarks = texts
        row_numbers = remaining_row_numbers(entry["n_rows"], [*bad, *left_out])
        arrays = {
            name: _open_checked_array(final / f"{name}.npy", spec, len(row_numbers), entry)
            for name, spec in specs.items()
        }
    except (ValueError, KeyError, TypeError, AttributeError, OSError) as error:
        raise CorruptCacheError(f"{final}: {error}") from error
    return CacheEntry(
        arrays, bad, left_out, remarks, row_numbers, _compute_entry_fingerprint(entry), final
    )


def remaining_row_numbers(n_rows: int, removed: list[int]) -> NDArray[np.int64]:
    """Return the row numbers 0..n_rows-1 without the removed ones, ascending."""
    return np.setdiff1d(np.arange(n_rows, dtype=np.int64), np.array(removed, dtype=np.int64))


def _open_checked_array(
    path: Path, spec: RowSpec, n_rows: int, entry: Mapping[str, Any]
) -> NDArray[Any]:
    array: NDArray[Any] = np.load(path, mmap_mode="r", allow_pickle=False)
    if array.shape != (n_rows, *spec.shape) or array.dtype != np.dtype(spec.dtype):
        raise CorruptCacheError(f"{path} contains {array.dtype} {array.shape}")
    checksums, rows = entry["checksums"][path.stem], entry["chunk_rows"]
    for i in {0, len(checksums) // 2, len(checksums) - 1} & set(range(len(checksums))):
        block = np.ascontiguousarray(array[i * rows : (i + 1) * rows])
        if zlib.crc32(as_memoryview(block)) != checksums[i]:
            raise CorruptCacheError(f"{path}: chunk {i} fails its checksum")
    return array


def _compute_entry_fingerprint(entry: Mapping[str, Any]) -> str:
    content = {key: entry[key] for key in ("checksums", "specs", "n_rows")}
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]
