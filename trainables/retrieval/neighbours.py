"""Exact nearest neighbours by cosine, in bounded memory.

A search has two steps. The first finds candidates by float32 products: faiss on CPUs, torch on
other devices. The second orders them exactly, see `trainables.retrieval.exact_order`, so both give
the same neighbours.

torch is also used on CPUs where it is faster or where faiss cannot help:

- Lists of more than one in `MIN_ITEMS_PER_CANDIDATE` items: faiss keeps each list as a heap or a
  reservoir, and torch's selection is up to 2.5 times faster.
- `search_with_similarities`, whose caller needs all products and not only the largest.
- `trainables.retrieval.symmetric_search`, which computes half the products.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from trainables.retrieval import block_sizes, faiss_search
from trainables.retrieval.exact_order import N_SPARE_CANDIDATES, order_candidates
from trainables.retrieval.top_columns import select_top_columns
from trainables.retrieval.vectors import (
    ROWS_PER_FLOAT64_CHUNK,
    VectorSet,
    check_same_width,
    make_vector_set,
)
from trainables.utils.precision import strict_float32

MIN_ITEMS_PER_CANDIDATE = 16
"""Items per candidate from which faiss is at least as fast as torch on CPUs."""


@dataclass(frozen=True)
class NearestNeighbours:
    """The nearest items of each query, nearest first; both arrays are (queries, k).

    Similarities are exact where neighbours nearly tie, and of float32 accuracy elsewhere.
    """

    indices: NDArray[np.int64]
    similarities: NDArray[np.float64]


@dataclass(frozen=True)
class QueryNeighbours:
    """Indices of some queries, and their exact neighbours on the device of the items.

    Args:
        rows: Indices of the queries.
        indices: Their nearest items, (queries, k), nearest first.
        cosines: The cosines with these items, float64.
    """

    rows: NDArray[np.int64]
    indices: Tensor
    cosines: Tensor


@dataclass(frozen=True)
class SimilarityBlock(QueryNeighbours):
    """Some queries with their neighbours and their float32 products with all centred items.

    `similarities` plus the query's entry of `offsets` are the cosines; a query's own item has minus
    infinity. The products are valid until the next block is requested.
    """

    similarities: Tensor
    offsets: Tensor


def find_neighbours(
    embeddings: ArrayLike | Tensor,
    *,
    k: int,
    gallery: ArrayLike | Tensor | None = None,
    rows: ArrayLike | None = None,
) -> NearestNeighbours:
    """Return the k nearest items of some queries.

    Args:
        embeddings: Queries (N, D).
        k: Number of neighbours.
        gallery: Items to find (M, D). None: the queries themselves; a query never finds itself.
        rows: Indices of the queries to search for; None: all.
    """
    queries = make_vector_set(embeddings, "embeddings")
    items = queries if gallery is None else make_vector_set(gallery, "gallery")
    check_same_width(queries, items)
    chosen = np.arange(len(queries)) if rows is None else np.asarray(rows, dtype=np.int64)
    most = len(items) - (1 if gallery is None else 0)
    if not 1 <= k <= most:
        raise ValueError(f"`1 <= k <= {most}` must hold, got {k=}")
    blocks = search_in_blocks(queries, items, chosen, k, exclude_self=gallery is None)
    with strict_float32(items.raw.device):
        parts = [(block.indices.cpu(), block.cosines.cpu()) for block in blocks]
    indices, cosines = (torch.cat(part).numpy() for part in zip(*parts, strict=True))
    return NearestNeighbours(indices, cosines)


def search_in_blocks(
    queries: VectorSet, items: VectorSet, rows: NDArray[np.int64], k: int, *, exclude_self: bool
) -> Iterator[QueryNeighbours]:
    """Yield the k nearest items of the queries `rows`, block by block."""
    if is_faiss_faster(items, k):
        return _search_with_faiss(queries, items, rows, k, exclude_self=exclude_self)
    return search_with_similarities(queries, items, rows, k, exclude_self=exclude_self)


def is_faiss_faster(items: VectorSet, k: int) -> bool:
    """Whether faiss finds the candidates for the k nearest items: on CPUs, unless k is large."""
    count = k + N_SPARE_CANDIDATES
    return items.raw.device.type == "cpu" and len(items) >= MIN_ITEMS_PER_CANDIDATE * count


def _search_with_faiss(
    queries: VectorSet, items: VectorSet, rows: NDArray[np.int64], k: int, *, exclude_self: bool
) -> Iterator[QueryNeighbours]:
    """Yield the k nearest items of the queries `rows`; no block holds all products."""
    count = min(k + N_SPARE_CANDIDATES, len(items) - int(exclude_self))
    block = min(faiss_search.QUERY_ROWS, block_sizes.limit_list_rows(count))
    for start in range(0, len(rows), block):
        chunk = rows[start : start + block]
        index = torch.from_numpy(chunk)
        unit, offsets = _normalise_queries(queries, items.mean_unit_vector, index)
        coarse, candidates = faiss_search.find_largest_products(
            unit, items.centred_vectors, count + int(exclude_self)
        )
        if exclude_self:
            coarse, candidates = _drop_self(coarse, candidates, index)
        found, values = order_candidates(
            queries, items, index, coarse, candidates, offsets, k, exclude_self=exclude_self
        )
        yield QueryNeighbours(chunk, found, values)


def _drop_self(coarse: Tensor, candidates: Tensor, index: Tensor) -> tuple[Tensor, Tensor]:
    """Remove each query's own item from its candidates, or else the last candidate.

    Equal vectors may displace a query from its own list.
    """
    others = candidates != index[:, None]
    others[others.all(dim=1), -1] = False
    shape = (len(index), candidates.shape[1] - 1)
    return coarse[others].view(shape), candidates[others].view(shape)


def search_with_similarities(
    queries: VectorSet, items: VectorSet, rows: NDArray[np.int64], k: int, *, exclude_self: bool
) -> Iterator[SimilarityBlock]:
    """Yield the k nearest items of the queries `rows` and all products, block by block."""
    device, dim = items.raw.device, items.raw.shape[1]
    count = min(k + N_SPARE_CANDIDATES, len(items))
    block = block_sizes.choose_block_rows(len(rows), len(items), dim, count)
    count = min(count, len(items) - int(exclude_self))
    buffer = torch.empty((block, len(items)), dtype=torch.float32, device=device)
    for start in range(0, len(rows), block):
        chunk = rows[start : start + block]
        index = torch.from_numpy(chunk).to(device)
        unit, offsets = _normalise_queries(queries, items.mean_unit_vector, index)
        products = torch.mm(unit, items.centred_vectors.T, out=buffer[: len(chunk)])
        if exclude_self:
            products.scatter_(1, index[:, None], -torch.inf)
        coarse, candidates = select_top_columns(products, count)
        found, values = order_candidates(
            queries, items, index, coarse, candidates, offsets, k, exclude_self=exclude_self
        )
        yield SimilarityBlock(chunk, found, values, products, offsets)


def _normalise_queries(queries: VectorSet, centre: Tensor, index: Tensor) -> tuple[Tensor, Tensor]:
    """Return float32 unit vectors of some queries, and their float64 products with `centre`.

    The second is the difference between a cosine and a product with a centred item.
    """
    shape = (len(index), len(centre))
    unit = torch.empty(shape, dtype=torch.float32, device=centre.device)
    offsets = torch.empty(len(index), dtype=torch.float64, device=centre.device)
    for start in range(0, len(index), ROWS_PER_FLOAT64_CHUNK):
        part = slice(start, start + ROWS_PER_FLOAT64_CHUNK)
        exact = queries.normalise_rows(index[part])
        unit[part] = exact
        offsets[part] = exact @ centre
    return unit, offsets
