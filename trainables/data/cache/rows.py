"""Rows of a cache entry: their types, chunks and filters."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

DataProgressCallback = Callable[[str, int, int], None]
"""Called with (label, rows done, total rows), from one thread at a time."""


@dataclass(frozen=True)
class RowChunk:
    """A range of rows.

    Args:
        arrays: The rows of each array.
        bad: Row number -> why the row has no valid values; such rows are excluded.
        remarks: Row number -> a remark about the row.
    """

    arrays: Mapping[str, NDArray[Any]]
    bad: Mapping[int, str] = field(default_factory=dict)
    remarks: Mapping[int, str] = field(default_factory=dict)


FillFunction = Callable[[int, int], RowChunk]
"""Returns the rows start..stop; row numbers in `bad` and `remarks` count from the first row."""

RowFilter = Callable[[Mapping[str, NDArray[Any]], NDArray[np.int64]], Mapping[int, str]]
"""Receives the arrays and the numbers of valid rows; returns row number -> reason to exclude."""


@dataclass(frozen=True)
class RowSpec:
    """Shape and type of one row of an array."""

    shape: tuple[int, ...]
    dtype: str

    @property
    def row_bytes(self) -> int:
        """Size of one row in bytes."""
        return int(np.prod(self.shape, dtype=np.int64)) * np.dtype(self.dtype).itemsize


def as_memoryview(rows: NDArray[Any]) -> memoryview:
    """Return the memory of a contiguous array, without a copy."""
    return rows.reshape(-1).view(np.uint8).data
