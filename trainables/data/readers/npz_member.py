"""An array inside a .npz: hashed as a stream, and held in memory only while a cache is built.

Every trial opens the data to find its cache, by their contents; most need nothing else of them.
"""

from __future__ import annotations

import hashlib
import math
import threading
from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import IO, Any
from zipfile import ZipFile

import numpy as np
from numpy.typing import NDArray

PART = 2**18  # bytes read at a time


class Stored:
    """What an array is; its values are read when some are asked for, all at once.

    Args:
        file: The .npz.
        name: Of the array, which must be in C order and hold no objects.

    Attributes:
        shape, dtype: As of the array.
        contents: A hash of type, shape and values.
    """

    def __init__(self, file: Path, name: str) -> None:
        self._file, self._name, self._lock = file, name, threading.Lock()
        with ZipFile(file) as archive, archive.open(f"{name}.npy") as stream:
            self.shape, _, self.dtype = header_of(stream)
            self.contents = hashlib.sha256(f"{self.dtype}{self.shape}".encode())
            lacking = math.prod(self.shape) * self.dtype.itemsize
            while part := stream.read(PART):  # a damaged file is an error at its end
                self.contents.update(part)
                lacking -= len(part)
        if lacking > 0:
            raise ValueError(f"`{name}` lacks {lacking:,} bytes of {self.dtype} {self.shape}")

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.shape)

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: Any) -> NDArray[Any]:
        with self._lock:  # caches are built by several threads
            values = self._values
        found: NDArray[Any] = values[rows]
        return found

    def runs(self, offsets: Sequence[int]) -> Iterator[bytes]:
        """The bytes between each two offsets, in order; no more is read than is asked for."""
        with ZipFile(self._file) as archive, archive.open(f"{self._name}.npy") as stream:
            header_of(stream)
            yield from (stream.read(stop - start) for start, stop in pairwise(offsets))

    @cached_property
    def _values(self) -> NDArray[Any]:
        with np.load(self._file, allow_pickle=False) as content:
            values: NDArray[Any] = content[self._name]
        return values


def can_wait(file: Path, name: str) -> bool:
    """Whether an array of a .npz can be `Stored`."""
    with ZipFile(file) as archive:
        if f"{name}.npy" not in archive.namelist():
            return False
        with archive.open(f"{name}.npy") as stream:
            shape, by_column, dtype = header_of(stream)
    return bool(shape) and not by_column and not dtype.hasobject


def header_of(file: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Shape, whether it is in Fortran's order, and type: what the head of a .npy names."""
    version = np.lib.format.read_magic(file)
    read = np.lib.format.read_array_header_1_0
    if version != (1, 0):
        read = np.lib.format.read_array_header_2_0
    shape, by_column, dtype = read(file)
    return tuple(shape), bool(by_column), dtype
