"""Checked embedding vectors with their float64 lengths and a centred float32 copy."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

COSINE_TIE_STEP = 2.0**-44
"""Cosines are rounded to multiples of this step: far above float64 errors, far below float32's."""

ROWS_PER_FLOAT64_CHUNK = 1024
"""Rows converted to float64 at a time; a float64 copy of all vectors would be large."""


@dataclass(frozen=True)
class VectorSet:
    """Vectors as given (N, D), and the inverse of their float64 lengths (N,)."""

    raw: Tensor
    inverse_norms: Tensor

    def __len__(self) -> int:
        return len(self.raw)

    def normalise_rows(self, rows: Tensor | slice) -> Tensor:
        """Return some rows scaled to length one, float64."""
        return self.raw[rows] * self.inverse_norms[rows, None]

    @cached_property
    def mean_unit_vector(self) -> Tensor:
        """Mean of the unit vectors (D,), float64."""
        total = torch.zeros(self.raw.shape[1], dtype=torch.float64, device=self.raw.device)
        for start in range(0, len(self), ROWS_PER_FLOAT64_CHUNK):
            total += self.normalise_rows(slice(start, start + ROWS_PER_FLOAT64_CHUNK)).sum(dim=0)
        return total / len(self)

    @cached_property
    def centred_vectors(self) -> Tensor:
        """Unit vectors minus their mean, float32.

        A query's products with them differ from its cosines by one number that is the same for all
        items. Without the common part, float32 can tell vectors apart that are close together.
        """
        out = torch.empty(self.raw.shape, dtype=torch.float32, device=self.raw.device)
        for start in range(0, len(self), ROWS_PER_FLOAT64_CHUNK):
            part = slice(start, start + ROWS_PER_FLOAT64_CHUNK)
            out[part] = self.normalise_rows(part).sub_(self.mean_unit_vector)
        return out

    @cached_property
    def float32_margin(self) -> float:
        """Difference above which two float32 products with centred vectors are ordered correctly.

        Rounding errors add up like a random walk: the error of one product is less than
        sqrt(D) / 2 units in the last place of the longest vector. The margin allows 4 sqrt(D).
        """
        reach = float(torch.linalg.vector_norm(self.centred_vectors, dim=1).max())
        return max(float(8 * self.raw.shape[1] ** 0.5 * 2.0**-24) * reach, 4 * COSINE_TIE_STEP)

    @property
    def float64_margin(self) -> float:
        """Difference above which two float64 cosines, which are at most one, are ordered."""
        return max(float(8 * self.raw.shape[1] ** 0.5 * 2.0**-53), 4 * COSINE_TIE_STEP)

    @cached_property
    def first_equal_index(self) -> Tensor:
        """Index of the first vector that equals each vector, (N,)."""
        seen: dict[bytes, int] = {}
        starts = range(0, len(self), ROWS_PER_FLOAT64_CHUNK)
        rows = (
            row for at in starts for row in self.raw[at : at + ROWS_PER_FLOAT64_CHUNK].cpu().numpy()
        )
        firsts = [
            seen.setdefault(blake2b(row.tobytes(), digest_size=16).digest(), i)
            for i, row in enumerate(rows)
        ]
        return torch.tensor(firsts, device=self.raw.device)


def make_vector_set(given: ArrayLike | Tensor, name: str) -> VectorSet:
    """Check vectors and compute their lengths.

    float64 stays float64; every other type becomes float32.

    Args:
        given: Vectors (N, D).
        name: Name of the argument, for messages.

    Raises:
        ValueError: If the vectors are not finite real numbers (N, D), or if there are none.
    """
    raw = (
        detach_dense(given, name) if isinstance(given, Tensor) else _convert_to_tensor(given, name)
    )
    if raw.is_complex() or raw.dtype == torch.bool:
        raise ValueError(f"`{name}` must be real numbers, got {raw.dtype}")
    if raw.ndim != 2 or 0 in raw.shape:
        raise ValueError(f"`{name}` must be (N, D) and not empty, got {tuple(raw.shape)}")
    if raw.dtype != torch.float64:
        raw = raw.to(torch.float32)
    inverse = torch.empty(len(raw), dtype=torch.float64, device=raw.device)
    for start in range(0, len(raw), ROWS_PER_FLOAT64_CHUNK):
        part = raw[start : start + ROWS_PER_FLOAT64_CHUNK].to(torch.float64)
        lengths = part.square().sum(dim=1).sqrt()
        if not bool(torch.isfinite(lengths).all()):
            if not bool(torch.isfinite(part).all()):
                raise ValueError(f"`{name}` must be finite, got NaN or infinity")
            raise ValueError(f"`{name}` must be shorter than 1e154, so that squares are finite")
        inverse[start : start + ROWS_PER_FLOAT64_CHUNK] = 1 / lengths.clamp_min(1e-30)
    return VectorSet(raw, inverse)


def detach_dense(given: Tensor, name: str) -> Tensor:
    """Return a tensor's values without its autograd history; sparse tensors are an error."""
    if given.layout != torch.strided:
        raise ValueError(f"`{name}` must be dense, got {given.layout}; call to_dense() first")
    return given.detach()


def check_same_width(queries: VectorSet, items: VectorSet) -> None:
    """Raise a ValueError if queries and gallery have different dimensions."""
    if queries.raw.shape[1] != items.raw.shape[1]:
        raise ValueError(
            "`embeddings` and `gallery` must have the same width, "
            f"got {queries.raw.shape[1]} and {items.raw.shape[1]}"
        )


def _convert_to_tensor(given: ArrayLike, name: str) -> Tensor:
    """Convert an array, a memory map or nested lists, without a copy where torch can share it."""
    try:
        array = np.asarray(given)
    except ValueError as error:  # lists of different lengths
        raise ValueError(f"`{name}` must be (N, D): {error}") from None
    if array.dtype.kind not in "fiu":
        raise ValueError(f"`{name}` must be real numbers, got {array.dtype}")
    # torch does not support read-only arrays, negative strides, other byte orders or long floats.
    native = array.dtype.newbyteorder("=") if array.dtype.itemsize <= 8 else np.dtype(np.float64)
    forward = min(array.strides, default=0) >= 0
    shared = array.flags.writeable and array.dtype == native and forward
    return torch.from_numpy(array if shared else array.astype(native, order="C"))
