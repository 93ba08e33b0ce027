"""Lazy array of a .npz file: hashed as a stream, loaded only while a cache is built.

Every trial hashes the data to find their cache entry; most trials need nothing else of them.
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

READ_CHUNK_BYTES = 2**18


class NpzMember:
    """An array of a .npz file, all of whose values are loaded when some are first read.

    Args:
        file: The .npz file.
        name: Name of the array, which must be in C order and contain no objects.

    Attributes:
        shape: Shape of the array.
        dtype: Type of the array.
        content_digest: Hash of type, shape and values.
    """

    def __init__(self, file: Path, name: str) -> None:
        self._file, self._name, self._lock = file, name, threading.Lock()
        with ZipFile(file) as archive, archive.open(f"{name}.npy") as stream:
            self.shape, _, self.dtype = read_npy_header(stream)
            self.content_digest = hashlib.sha256(f"{self.dtype}{self.shape}".encode())
            missing_bytes = math.prod(self.shape) * self.dtype.itemsize
            while part := stream.read(READ_CHUNK_BYTES):  # zipfile checks the CRC at the end
                self.content_digest.update(part)
                missing_bytes -= len(part)
        if missing_bytes > 0:
            raise ValueError(f"`{name}` lacks {missing_bytes:,} bytes of {self.dtype} {self.shape}")

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.shape)

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: Any) -> NDArray[Any]:
        with self._lock:  # several threads build a cache
            values = self._loaded_values
        selected: NDArray[Any] = values[rows]
        return selected

    def iter_byte_runs(self, offsets: Sequence[int]) -> Iterator[bytes]:
        """Yield the bytes between successive offsets; the file is read only as far as needed."""
        with ZipFile(self._file) as archive, archive.open(f"{self._name}.npy") as stream:
            read_npy_header(stream)
            yield from (stream.read(stop - start) for start, stop in pairwise(offsets))

    @cached_property
    def _loaded_values(self) -> NDArray[Any]:
        with np.load(self._file, allow_pickle=False) as content:
            values: NDArray[Any] = content[self._name]
        return values


def is_lazy_loadable(file: Path, name: str) -> bool:
    """Whether an array of a .npz file can be an `NpzMember`."""
    with ZipFile(file) as archive:
        if f"{name}.npy" not in archive.namelist():
            return False
        with archive.open(f"{name}.npy") as stream:
            shape, by_column, dtype = read_npy_header(stream)
    return bool(shape) and not by_column and not dtype.hasobject


def read_npy_header(file: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Return shape, whether the order is Fortran's, and type from the header of a .npy file."""
    version = np.lib.format.read_magic(file)
    read = np.lib.format.read_array_header_1_0
    if version != (1, 0):
        read = np.lib.format.read_array_header_2_0
    shape, by_column, dtype = read(file)
    return tuple(shape), bool(by_column), dtype
