"""A finished entry of the cache: is it whole, and what does it hold?"""

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

from trainables.data.rows import RowSpec, memory_of

ENTRY_FILE = "entry.json"
ROW_TEXTS = ("bad", "left_out", "remarks")


@dataclass(frozen=True)
class CachedRows:
    """A finished entry.

    Args:
        arrays: Read-only memory maps, bad and left out rows not among them.
        bad: Row as asked for -> why it cannot be in the arrays.
        left_out: Row as asked for -> why it was not wanted among the others.
        remarks: Row as asked for -> what is worth knowing about it.
        kept: Rows as asked for that are in the arrays, in order.
        fingerprint: Of contents and settings; equal on every machine that computed equal rows.
        directory: Where the entry is.
        rebuilt: True when a damaged entry was found and computed again.
    """

    arrays: dict[str, NDArray[Any]]
    bad: dict[int, str]
    left_out: dict[int, str]
    remarks: dict[int, str]
    kept: NDArray[np.int64]
    fingerprint: str
    directory: Path
    rebuilt: bool = False


class DamagedError(Exception):
    """An entry that does not hold what it says."""


def open_entry(final: Path, specs: Mapping[str, RowSpec]) -> CachedRows:
    """Map an entry after checking sizes, headers and the checksums of three chunks per array.

    Raises:
        FileNotFoundError: There is none.
        DamagedError: It is not what its `entry.json` says.
    """
    try:
        text = (final / ENTRY_FILE).read_bytes()
    except FileNotFoundError:
        if final.exists():
            raise DamagedError(f"{final} has no {ENTRY_FILE}") from None
        raise
    try:
        entry = json.loads(text)
        texts = [{int(k): str(v) for k, v in entry[key].items()} for key in ROW_TEXTS]
        bad, left_out, remarks = texts
        kept = kept_rows(entry["n_rows"], [*bad, *left_out])
        arrays = {
            name: _checked(final / f"{name}.npy", spec, len(kept), entry)
            for name, spec in specs.items()
        }
    except (ValueError, KeyError, TypeError, AttributeError, OSError) as error:
        raise DamagedError(f"{final}: {error}") from error
    return CachedRows(arrays, bad, left_out, remarks, kept, _fingerprint(entry), final)


def kept_rows(n_rows: int, gone: list[int]) -> NDArray[np.int64]:
    """The numbers of the rows that stay, in order."""
    return np.setdiff1d(np.arange(n_rows, dtype=np.int64), np.array(gone, dtype=np.int64))


def _checked(path: Path, spec: RowSpec, n_rows: int, entry: Mapping[str, Any]) -> NDArray[Any]:
    array: NDArray[Any] = np.load(path, mmap_mode="r", allow_pickle=False)
    if array.shape != (n_rows, *spec.shape) or array.dtype != np.dtype(spec.dtype):
        raise DamagedError(f"{path} holds {array.dtype} {array.shape}")
    checksums, rows = entry["checksums"][path.stem], entry["chunk_rows"]
    for i in {0, len(checksums) // 2, len(checksums) - 1} & set(range(len(checksums))):
        block = np.ascontiguousarray(array[i * rows : (i + 1) * rows])
        if zlib.crc32(memory_of(block)) != checksums[i]:
            raise DamagedError(f"{path}: chunk {i} fails its checksum")
    return array


def _fingerprint(entry: Mapping[str, Any]) -> str:
    content = {key: entry[key] for key in ("checksums", "specs", "n_rows")}
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]
