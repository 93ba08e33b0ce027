"""Which items are nearest? Exact cosine neighbours in bounded memory.

Order: by similarity and, where it is equal, by index, lower first. Where float32 cannot tell items
apart they are compared in float64, however many they are; cosines that differ by less than 2^-44
are equal, so vectors of one direction tie whatever their lengths. So the order does not depend on
threads, block sizes or the order in which a BLAS library adds.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from trainables.vectors import PART, TIE, Vectors, check_width, vectors

BLOCK_BYTES = 128 * 2**20  # of float32 similarities held at a time
LIST_BYTES = 256 * 2**20  # of candidates held at a time, which few large classes have many of
CANDIDATE_BYTES = 128  # its value, index, exact value, flags, and the copies that sorting makes
SPARE = 8  # candidates beyond those needed, which absorb near-ties of the float32 pass
CROWD = 512  # among more near-ties of one query, equal vectors are compared once
PAIR_COST = 32  # an exact comparison of two vectors costs as much as so many float64 products


@dataclass(frozen=True)
class Neighbours:
    """The nearest items of each query, nearest first, both (queries, k).

    Similarities are exact where neighbours nearly tie, and of float32 accuracy elsewhere.
    """

    indices: NDArray[np.int64]
    similarities: NDArray[np.float64]


@dataclass(frozen=True)
class Answer:
    """Some queries and their exact neighbours."""

    rows: NDArray[np.int64]
    found: Neighbours


@dataclass(frozen=True)
class Block(Answer):
    """An answer, and the queries' float32 products with all centred items.

    `similarities` plus the query's `offset` are the cosines. They are valid until the next block
    is asked for; self is at minus infinity.
    """

    similarities: Tensor
    offsets: Tensor


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
    check_width(queries, items)
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


def cosines(queries: Vectors, items: Vectors, rows: Tensor, columns: Tensor) -> Tensor:
    """float64 similarities of pairs in steps of `TIE`; equal vectors give equal values."""
    out = torch.empty(len(rows), dtype=torch.float64, device=rows.device)
    step = max(1, 2**21 // queries.raw.shape[1])
    for start in range(0, len(rows), step):
        row, column = rows[start : start + step], columns[start : start + step]
        products = queries.raw[row].to(torch.float64).mul_(items.raw[column])
        # Summed along the last axis: unlike in a matrix product, the order of the additions does
        # not depend on where a pair stands.
        lengths = queries.inverse[row] * items.inverse[column]
        out[start : start + step] = products.sum(dim=1) * lengths
    return out.div_(TIE).round_().mul_(TIE)


def cosines_of(queries: Vectors, items: Vectors, row: Tensor, columns: Tensor) -> Tensor:
    """`cosines` of one query with many items; of equal items, one is compared."""
    if len(columns) <= CROWD:
        return cosines(queries, items, row.expand(len(columns)), columns)
    firsts = items.first_equal[columns]
    wanted = torch.zeros(len(items), dtype=torch.bool, device=columns.device)
    wanted[firsts] = True
    distinct = wanted.nonzero()[:, 0]
    values = torch.empty(len(items), dtype=torch.float64, device=columns.device)
    values[distinct] = cosines(queries, items, row.expand(len(distinct)), distinct)
    return values[firsts]


def search(
    queries: Vectors, items: Vectors, rows: NDArray[np.int64], k: int, *, exclude_self: bool
) -> Iterator[Block]:
    """The k nearest items of the queries `rows`, block by block."""
    device, dim = items.raw.device, items.raw.shape[1]
    block = block_rows(len(rows), len(items), dim, min(k + SPARE, len(items)))
    buffer = torch.empty((block, len(items)), dtype=torch.float32, device=device)
    for start in range(0, len(rows), block):
        chunk = rows[start : start + block]
        index = torch.from_numpy(chunk).to(device)
        unit, offsets = _left_sides(queries, items.centre, index)
        products = torch.mm(unit, items.centred.T, out=buffer[: len(chunk)])
        if exclude_self:
            products.scatter_(1, index[:, None], -torch.inf)
        found, values = _ordered(queries, items, index, products, offsets, k, int(exclude_self))
        neighbours = Neighbours(found.cpu().numpy(), values.cpu().numpy())
        yield Block(chunk, neighbours, products, offsets)


def block_rows(n_rows: int, n_items: int, dim: int, count: int) -> int:
    """How many queries are asked at a time: neither products, inputs nor lists grow beyond bounds.

    Args:
        count: Candidates of each query.
    """
    by_products = BLOCK_BYTES // (4 * max(n_items, dim))
    return max(1, min(n_rows, by_products, list_rows(count)))


def list_rows(count: int) -> int:
    """How many queries may have lists of `count` candidates at a time."""
    return max(1, LIST_BYTES // (CANDIDATE_BYTES * count))


def _left_sides(queries: Vectors, centre: Tensor, index: Tensor) -> tuple[Tensor, Tensor]:
    """Queries at length one in float32, and what the centred items lack: their product with it."""
    shape = (len(index), len(centre))
    unit = torch.empty(shape, dtype=torch.float32, device=centre.device)
    offsets = torch.empty(len(index), dtype=torch.float64, device=centre.device)
    for start in range(0, len(index), PART):
        part = slice(start, start + PART)
        exact = queries.unit(index[part])
        unit[part] = exact
        offsets[part] = exact @ centre
    return unit, offsets


def _ordered(
    queries: Vectors,
    items: Vectors,
    index: Tensor,
    similarities: Tensor,
    offsets: Tensor,
    k: int,
    left_out: int,
) -> tuple[Tensor, Tensor]:
    """Indices and similarities of the k nearest, exactly ordered, from float32 products."""
    n_items = similarities.shape[1] - left_out
    coarse, found = top(similarities, min(k + SPARE, n_items))
    unsure = near_ties(coarse, items.margin)
    if PAIR_COST * int(unsure.sum()) > similarities.numel():
        # Long lists, or vectors that hardly differ: float64 products of all cost less.
        return _finely_ordered(queries, items, index, k, left_out)
    values = coarse + offsets[:, None]
    found, values, crowded = settle(queries, items, index, unsure, found, values, k, n_items)
    if len(crowded):
        at = torch.from_numpy(crowded).to(found.device)
        found[at], values[at] = _finely_ordered(queries, items, index[at], k, left_out)
    return found, values


def _finely_ordered(
    queries: Vectors, items: Vectors, index: Tensor, k: int, left_out: int
) -> tuple[Tensor, Tensor]:
    """The same from float64 products; pairs are compared where these leave the order open."""
    device, n_items = index.device, len(items) - left_out
    count = min(k + SPARE, n_items)
    indices = torch.empty((len(index), k), dtype=torch.int64, device=device)
    cosines_found = torch.empty((len(index), k), dtype=torch.float64, device=device)
    step = max(1, min(BLOCK_BYTES // (8 * len(items)), list_rows(count)))
    for start in range(0, len(index), step):
        part = slice(start, start + step)
        fine = _fine_products(queries, items, index[part])
        if left_out:
            fine.scatter_(1, index[part, None], -torch.inf)
        best, found = top(fine, count)
        unsure = near_ties(best, items.fine_margin)
        found, values, crowded = settle(
            queries, items, index[part], unsure, found, best.clone(), k, n_items
        )
        for row in crowded.tolist():
            near = torch.nonzero(fine[row] >= best[row, k - 1] - items.fine_margin)[:, 0]
            exact = cosines_of(queries, items, index[part][row], near)
            found[row], values[row] = _best(near, exact, k)
        indices[part], cosines_found[part] = found, values
    return indices, cosines_found


def _fine_products(queries: Vectors, items: Vectors, index: Tensor) -> Tensor:
    """float64 cosines of some queries with all items."""
    out = torch.empty((len(index), len(items)), dtype=torch.float64, device=index.device)
    unit = queries.unit(index).to(torch.float64)
    for start in range(0, len(items), PART):
        part = slice(start, start + PART)
        out[:, part] = unit @ items.unit(part).to(torch.float64).T
    return out


def near_ties(sorted_values: Tensor, margin: float) -> Tensor:
    """Which values are so close to the next larger or smaller one that their order is open."""
    close = sorted_values[:, :-1] - sorted_values[:, 1:] <= margin
    unsure = torch.zeros_like(sorted_values, dtype=torch.bool)
    unsure[:, 1:] |= close
    unsure[:, :-1] |= close
    return unsure


def settle(
    queries: Vectors,
    items: Vectors,
    index: Tensor,
    unsure: Tensor,
    found: Tensor,
    values: Tensor,
    k: int,
    n_items: int,
) -> tuple[Tensor, Tensor, NDArray[np.int64]]:
    """Order candidates exactly where that is open.

    Args:
        index: The queries, (rows,).
        unsure: Which candidates of each query have `near_ties`, the most similar first.
        found: The candidates; as `values`, changed in place.
        values: Their cosines, float64, as good as they are known.
        n_items: How many items each query could find.

    Returns:
        Items and cosines of the k nearest, and the queries (their places in `index`) for which
        that is not sure: a run of near-ties reaches the last candidate and may go on behind it.
    """
    crowded = torch.zeros(len(index), dtype=torch.bool, device=unsure.device)
    if unsure.shape[1] < n_items:
        crowded = unsure[:, k - 1 :].all(dim=1)
    at, place = torch.nonzero(unsure & ~crowded[:, None], as_tuple=True)
    values[at, place] = cosines(queries, items, index[at], found[at, place])
    rows = unsure.any(dim=1).nonzero()[:, 0]
    found[rows], values[rows] = _sorted(found[rows], values[rows])
    return found[:, :k], values[:, :k], crowded.nonzero()[:, 0].cpu().numpy()


def _best(found: Tensor, values: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k largest of many, in the order of `_sorted`; `found` comes by index."""
    edge = values.topk(k, sorted=False).values.min()
    above = (values > edge).nonzero()[:, 0]
    at = torch.cat([above, (values == edge).nonzero()[: k - len(above), 0]])
    best, best_values = _sorted(found[at][None], values[at][None])
    return best[0], best_values[0]


def _sorted(found: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
    """Rows by value, largest first, and lower index first where values are equal."""
    found, by_index = found.sort(dim=1)
    values, by_value = values.gather(1, by_index).sort(dim=1, descending=True, stable=True)
    return found.gather(1, by_value), values


def top(similarities: Tensor, count: int) -> tuple[Tensor, Tensor]:
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
