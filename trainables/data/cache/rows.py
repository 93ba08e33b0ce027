"""Some rows of equally long arrays, and what is known about each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

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

LeaveOut = Callable[[Mapping[str, NDArray[Any]], NDArray[np.int64]], Mapping[int, str]]
"""Of all rows together, and the numbers of those that are not bad: row -> why it is left out."""


@dataclass(frozen=True)
class RowSpec:
    """One array of an entry, without its first axis."""

    shape: tuple[int, ...]
    dtype: str

    @property
    def row_bytes(self) -> int:
        """Bytes of one row."""
        return int(np.prod(self.shape, dtype=np.int64)) * np.dtype(self.dtype).itemsize


def memory_of(rows: NDArray[Any]) -> memoryview:
    """The memory of a contiguous array, without a copy."""
    return rows.reshape(-1).view(np.uint8).data
