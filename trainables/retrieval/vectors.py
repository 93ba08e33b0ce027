"""Vectors to compare: checked once, their lengths known in float64, centred for float32."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

TIE = 2.0**-44  # cosines are multiples of it: far above the errors of float64, far below float32's
PART = 1024  # rows turned to float64 at a time: a float64 copy of all would be large


@dataclass(frozen=True)
class Vectors:
    """Vectors as given (N, D) and one over their float64 lengths (N,)."""

    raw: Tensor
    inverse: Tensor

    def __len__(self) -> int:
        return len(self.raw)

    def unit(self, rows: Tensor | slice) -> Tensor:
        """Some rows at length one, float64."""
        return self.raw[rows] * self.inverse[rows, None]

    @cached_property
    def centre(self) -> Tensor:
        """The mean unit vector (D,), float64."""
        total = torch.zeros(self.raw.shape[1], dtype=torch.float64, device=self.raw.device)
        for start in range(0, len(self), PART):
            total += self.unit(slice(start, start + PART)).sum(dim=0)
        return total / len(self)

    @cached_property
    def centred(self) -> Tensor:
        """Unit vectors minus their mean, float32: what float32 can tell apart of close vectors.

        A query's products with them differ from its cosines by one number, the same for all items.
        """
        out = torch.empty(self.raw.shape, dtype=torch.float32, device=self.raw.device)
        for start in range(0, len(self), PART):
            part = slice(start, start + PART)
            out[part] = self.unit(part).sub_(self.centre)
        return out

    @cached_property
    def margin(self) -> float:
        """Two float32 products with the centred vectors that differ by more are in the right order.

        Rounding errors add up like a random walk: one product is off by less than sqrt(D) / 2
        units in the last place of the longest vector, far less than the 4 sqrt(D) granted here.
        """
        reach = float(torch.linalg.vector_norm(self.centred, dim=1).max())
        return max(float(8 * self.raw.shape[1] ** 0.5 * 2.0**-24) * reach, 4 * TIE)

    @property
    def fine_margin(self) -> float:
        """The same for two float64 cosines, which are at most one."""
        return max(float(8 * self.raw.shape[1] ** 0.5 * 2.0**-53), 4 * TIE)

    @cached_property
    def first_equal(self) -> Tensor:
        """For each vector the index of the first that equals it, (N,)."""
        seen: dict[bytes, int] = {}
        starts = range(0, len(self), PART)
        rows = (row for at in starts for row in self.raw[at : at + PART].cpu().numpy())
        firsts = [
            seen.setdefault(blake2b(row.tobytes(), digest_size=16).digest(), i)
            for i, row in enumerate(rows)
        ]
        return torch.tensor(firsts, device=self.raw.device)


def vectors(given: ArrayLike | Tensor, name: str) -> Vectors:
    """Check and normalise; float32 stays float32, everything else but float64 becomes float32."""
    raw = dense(given, name) if isinstance(given, Tensor) else _tensor(given, name)
    if raw.is_complex() or raw.dtype == torch.bool:
        raise ValueError(f"`{name}` must be real numbers, got {raw.dtype}.")
    if raw.ndim != 2 or 0 in raw.shape:
        raise ValueError(f"`{name}` must be (N, D) and not empty, got {tuple(raw.shape)}.")
    if raw.dtype != torch.float64:
        raw = raw.to(torch.float32)
    inverse = torch.empty(len(raw), dtype=torch.float64, device=raw.device)
    for start in range(0, len(raw), PART):
        part = raw[start : start + PART].to(torch.float64)
        lengths = part.square().sum(dim=1).sqrt()
        if not bool(torch.isfinite(lengths).all()):
            if not bool(torch.isfinite(part).all()):
                raise ValueError(f"`{name}` must be finite, got NaN or infinity.")
            raise ValueError(f"`{name}` must be shorter than 1e154: squares must be finite.")
        inverse[start : start + PART] = 1 / lengths.clamp_min(1e-30)
    return Vectors(raw, inverse)


def dense(given: Tensor, name: str) -> Tensor:
    """A tensor's values, without what autograd knows of them."""
    if given.layout != torch.strided:
        raise ValueError(f"`{name}` must be dense, got {given.layout}; call to_dense() first.")
    return given.detach()


def check_width(queries: Vectors, items: Vectors) -> None:
    """Refuse a gallery of another space."""
    if queries.raw.shape[1] != items.raw.shape[1]:
        raise ValueError(
            "`embeddings` and `gallery` must have one width, "
            f"got {queries.raw.shape[1]} and {items.raw.shape[1]}."
        )


def _tensor(given: ArrayLike, name: str) -> Tensor:
    """An array, a memory map or lists of numbers; arrays that torch can share are not copied."""
    try:
        array = np.asarray(given)
    except ValueError as error:  # lists of different lengths
        raise ValueError(f"`{name}` must be (N, D): {error}") from None
    if array.dtype.kind not in "fiu":
        raise ValueError(f"`{name}` must be real numbers, got {array.dtype}.")
    # torch has no read-only tensors, no negative strides, no foreign byte order, no long floats.
    native = array.dtype.newbyteorder("=") if array.dtype.itemsize <= 8 else np.dtype(np.float64)
    forward = min(array.strides, default=0) >= 0
    shared = array.flags.writeable and array.dtype == native and forward
    return torch.from_numpy(array if shared else array.astype(native, order="C"))
