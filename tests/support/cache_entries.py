"""Small cache entries whose values are their row numbers."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from trainables.data.cache import CacheEntry, RowChunk, RowSpec, open_or_build_entry

SPECS = {"x": RowSpec((3, 2), "float32"), "y": RowSpec((), "int64")}
N_ROWS = 103
CHUNK_ROWS = 10


def make_rows(start: int, stop: int) -> RowChunk:
    """Return rows whose values in `x` are their numbers and in `y` ten times their numbers."""
    index = np.arange(start, stop)
    x = np.broadcast_to(index[:, None, None], (len(index), 3, 2)).astype(np.float32)
    return RowChunk({"x": x, "y": index * 10})


def build_entry(
    root: Path, fill: object = make_rows, n_rows: int = N_ROWS, **more: object
) -> CacheEntry:
    """Open or build the entry in chunks of ten rows with two threads."""
    arguments = {
        "name": "entry", "settings": {"a": 1}, "specs": SPECS, "n_rows": n_rows,
        "fill": fill, "chunk_rows": CHUNK_ROWS, "workers": 2, **more,
    }  # fmt: skip
    return open_or_build_entry(root, **arguments)  # type: ignore[arg-type]


def check_entry(entry: CacheEntry, n_rows: int = N_ROWS) -> None:
    """Check that the entry has the values of `make_rows`."""
    assert np.array_equal(entry.arrays["y"], np.arange(n_rows) * 10)
    assert np.array_equal(entry.arrays["x"][:, 2, 1], np.arange(n_rows))
