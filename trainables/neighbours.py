"""Which items are nearest? Exact cosine neighbours in bounded memory.

Order: by similarity and, where it is equal, by index, lower first. Where float32 cannot tell items
apart they are compared in float64; equal vectors tie exactly. So the order does not depend on
threads, block sizes or the order in which a BLAS library adds.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

BLOCK_BYTES = 128 * 2**20  # of float32 similarities held at a time
SPARE = 8  # candidates beyond those needed, which absorb near-ties of the float32 pass
CROWD = 512  # near-ties of one query beyond this number count as ties, lower index first


@dataclass(frozen=True)
class Vectors:
    """Vectors as given (N, D), one over their float64 lengths (N,), and float32 unit vectors."""

    raw: Tensor
    inverse: Tensor
    unit: Tensor

    def __len__(self) -> int:
        return len(self.raw)

    @property
    def margin(self) -> float:
        """Two float32 similarities that differ by more are in the right order.

        Rounding errors add up like a random walk: one similarity is off by less than sqrt(D) / 2
        units in the last place of 1, far less than the 4 sqrt(D) granted to each here.
        """
        return float(8 * self.raw.shape[1] ** 0.5 * 2.0**-24)


@dataclass(frozen=True)
class Neighbours:
    """The nearest items of each query, nearest first, both (queries, k).

    Similarities are exact where neighbours nearly tie, and of float32 accuracy elsewhere.
    """

    indices: NDArray[np.int64]
    similarities: NDArray[np.float64]


@dataclass(frozen=True)
class Block:
    """Some queries, their float32 similarities to all items, and their exact neighbours.

    `similarities` is valid until the next block is asked for; self is at minus infinity.
    """

    rows: NDArray[np.int64]
    similarities: Tensor
    found: Neighbours


def nearest(
    embeddings: ArrayLike | Tensor,
    *,
    k: int,
    gallery: ArrayLike | Tensor | None = None,
    rows: ArrayLike | None = None,
) -> Neighbours:
    """The k nearest items of the queries `rows` (default all); self is left out by index.

    Args:
        gallery: Items to find (M, D). None: the queries themselves.
    """
    queries = vectors(embeddings, "embeddings")
    items = queries if gallery is None else vectors(gallery, "gallery")
    chosen = np.arange(len(queries)) if rows is None else np.asarray(rows, dtype=np.int64)
    most = len(items) - (1 if gallery is None else 0)
    if not 1 <= k <= most:
        raise ValueError(f"`1 <= k <= {most}` must hold, got {k=}.")
    blocks = search(queries, items, chosen, k, exclude_self=gallery is None)
    parts = [block.found for block in blocks]
    return Neighbours(
        np.concatenate([p.indices for p in parts]),
        np.concatenate([p.similarities for p in parts]),
    )


def vectors(given: ArrayLike | Tensor, name: str) -> Vectors:
    """Check and normalise; float32 stays float32, everything else but float64 becomes float32."""
    if isinstance(given, Tensor):
        raw = given.detach()
    else:
        array = np.asarray(given)
        # torch has no read-only tensors; a memory map is copied, anything else is not.
        raw = torch.from_numpy(array if array.flags.writeable else array.copy())
    if raw.ndim != 2 or 0 in raw.shape:
        raise ValueError(f"`{name}` must be (N, D) and not empty, got {tuple(raw.shape)}.")
    if raw.dtype != torch.float64:
        raw = raw.to(torch.float32)
    inverse = torch.empty(len(raw), dtype=torch.float64, device=raw.device)
    unit = torch.empty(raw.shape, dtype=torch.float32, device=raw.device)
    for start in range(0, len(raw), 4096):  # in parts: a float64 copy of all would be large
        part = raw[start : start + 4096].to(torch.float64)
        lengths = part.square().sum(dim=1).sqrt()
        if not bool(torch.isfinite(lengths).all()):
            raise ValueError(f"`{name}` must be finite, got NaN or infinity.")
        scale = 1 / lengths.clamp_min(1e-30)
        inverse[start : start + 4096] = scale
        unit[start : start + 4096] = part * scale[:, None]
    return Vectors(raw, inverse, unit)


def cosines(queries: Vectors, items: Vectors, rows: Tensor, columns: Tensor) -> Tensor:
    """float64 similarities of pairs; equal vectors give equal values."""
    out = torch.empty(len(rows), dtype=torch.float64, device=rows.device)
    step = max(1, 2**21 // queries.raw.shape[1])
    for start in range(0, len(rows), step):
        row, column = rows[start : start + step], columns[start : start + step]
        products = queries.raw[row].to(torch.float64).mul_(items.raw[column])
        # Summed along the last axis: unlike in a matrix product, the order of the additions does
        # not depend on where a pair stands.
        lengths = queries.inverse[row] * items.inverse[column]
        out[start : start + step] = products.sum(dim=1) * lengths
    return out


def search(
    queries: Vectors, items: Vectors, rows: NDArray[np.int64], k: int, *, exclude_self: bool
) -> Iterator[Block]:
    """The k nearest items of the queries `rows`, block by block."""
    device = items.raw.device
    block = max(1, min(len(rows), BLOCK_BYTES // (4 * len(items))))
    buffer = torch.empty((block, len(items)), dtype=torch.float32, device=device)
    for start in range(0, len(rows), block):
        chunk = rows[start : start + block]
        index = torch.from_numpy(chunk).to(device)
        similarities = torch.mm(queries.unit[index], items.unit.T, out=buffer[: len(chunk)])
        if exclude_self:
            similarities.scatter_(1, index[:, None], -torch.inf)
        found, values = _ordered(queries, items, index, similarities, k, int(exclude_self))
        yield Block(chunk, similarities, Neighbours(found.cpu().numpy(), values.cpu().numpy()))


def _ordered(
    queries: Vectors, items: Vectors, index: Tensor, similarities: Tensor, k: int, left_out: int
) -> tuple[Tensor, Tensor]:
    """Indices and similarities of the k nearest, exactly ordered, from float32 similarities."""
    n_items = similarities.shape[1] - left_out
    count = min(k + SPARE, n_items)
    coarse, found = _top(similarities, count)
    values = coarse.to(torch.float64)
    close = coarse[:, :-1] - coarse[:, 1:] <= queries.margin
    unsure = torch.zeros_like(coarse, dtype=torch.bool)
    unsure[:, 1:] |= close
    unsure[:, :-1] |= close
    at, place = torch.nonzero(unsure, as_tuple=True)
    values[at, place] = cosines(queries, items, index[at], found[at, place])
    rows = unsure.any(dim=1).nonzero()[:, 0]
    found[rows], values[rows] = _sorted(found[rows], values[rows])
    # A run of near-ties that reaches the last candidate may go on behind it.
    crowded = unsure[:, k - 1 :].all(dim=1).nonzero()[:, 0].tolist() if count < n_items else []
    for row in crowded:
        near = _crowd(similarities[row], k, float(coarse[row, k - 1]), queries.margin)
        exact = cosines(queries, items, index[row].expand(len(near)), near)
        best, best_values = _sorted(near[None], exact[None])
        found[row, :k], values[row, :k] = best[0, :k], best_values[0, :k]
    return found[:, :k], values[:, :k]


def _sorted(found: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
    """Rows by value, largest first, and lower index first where values are equal."""
    found, by_index = found.sort(dim=1)
    values, by_value = values.gather(1, by_index).sort(dim=1, descending=True, stable=True)
    return found.gather(1, by_value), values


def _crowd(similarities: Tensor, k: int, edge: float, margin: float) -> Tensor:
    """Every item that may be among the k nearest, by index; of a very large crowd its first."""
    sure = torch.nonzero(similarities > edge + margin)[:, 0]
    near = torch.nonzero((similarities - edge).abs() <= margin)[:, 0][: CROWD + k]
    return torch.cat([sure, near])


def _top(similarities: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Values and columns of the `count` largest of each row, largest first.

    The largest `count` values lie in the `count` groups with the largest maxima. Group maxima cost
    one pass at memory speed, and the selection then sees the maxima and the members of the best
    groups only, where `topk` over whole rows would cost more than the matrix product.
    """
    n_rows, n_columns = similarities.shape
    # Both selections are then about equally long.
    size = 2 ** round(np.log2(max(1.0, n_columns / count)) / 2)
    if size < 4:
        top = similarities.topk(count, dim=1)
        return top.values, top.indices
    groups = n_columns // size  # group g holds columns g, g + groups, g + 2 groups, ...
    main = similarities[:, : groups * size].view(n_rows, size, groups)
    best = main.amax(dim=1).topk(count, dim=1, sorted=False).indices
    steps = groups * torch.arange(size, device=best.device)
    columns = (best[:, None, :] + steps[:, None]).flatten(1)
    tail = torch.arange(groups * size, n_columns, device=best.device).expand(n_rows, -1)
    columns = torch.cat([columns, tail], dim=1)
    top = similarities.gather(1, columns).topk(count, dim=1)
    return top.values, columns.gather(1, top.indices)
