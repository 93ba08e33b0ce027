"""Exact order of candidates: products that float32 cannot tell apart are compared in float64.

Candidates are ordered by cosine and, where cosines are equal, by index, lower first. Cosines that
differ by less than 2^-44 are equal, so vectors of one direction tie whatever their lengths. The
order therefore does not depend on threads, block sizes or the order in which a BLAS library adds.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from trainables.retrieval import block_sizes
from trainables.retrieval.top_columns import select_top_columns
from trainables.retrieval.vectors import COSINE_TIE_STEP, ROWS_PER_FLOAT64_CHUNK, VectorSet

N_SPARE_CANDIDATES = 8
"""Candidates beyond the k that are needed; they absorb near-ties of the float32 products."""

MAX_PAIRWISE_TIES = 512
"""If one query has more near-ties, equal vectors among them are compared only once."""

EXACT_PAIR_COST_RATIO = 32
"""Cost of one exact comparison of two vectors, in float64 products of a matrix product."""


def compute_pair_cosines(
    queries: VectorSet, items: VectorSet, rows: Tensor, columns: Tensor
) -> Tensor:
    """Return float64 cosines of pairs, in steps of `COSINE_TIE_STEP`.

    Equal vectors give equal values.

    Args:
        queries: The queries.
        items: The gallery.
        rows: Index of the query of each pair.
        columns: Index of the item of each pair.
    """
    out = torch.empty(len(rows), dtype=torch.float64, device=rows.device)
    step = max(1, 2**21 // queries.raw.shape[1])
    for start in range(0, len(rows), step):
        row, column = rows[start : start + step], columns[start : start + step]
        products = queries.raw[row].to(torch.float64).mul_(items.raw[column])
        # Summed along the last axis: unlike in a matrix product, the order of the additions does
        # not depend on the position of a pair.
        lengths = queries.inverse_norms[row] * items.inverse_norms[column]
        out[start : start + step] = products.sum(dim=1) * lengths
    return out.div_(COSINE_TIE_STEP).round_().mul_(COSINE_TIE_STEP)


def compute_query_cosines(
    queries: VectorSet, items: VectorSet, row: Tensor, columns: Tensor
) -> Tensor:
    """Return `compute_pair_cosines` of one query with many items, comparing equal items once."""
    if len(columns) <= MAX_PAIRWISE_TIES:
        return compute_pair_cosines(queries, items, row.expand(len(columns)), columns)
    firsts = items.first_equal_index[columns]
    wanted = torch.zeros(len(items), dtype=torch.bool, device=columns.device)
    wanted[firsts] = True
    distinct = wanted.nonzero()[:, 0]
    values = torch.empty(len(items), dtype=torch.float64, device=columns.device)
    values[distinct] = compute_pair_cosines(queries, items, row.expand(len(distinct)), distinct)
    return values[firsts]


def order_candidates(
    queries: VectorSet,
    items: VectorSet,
    index: Tensor,
    coarse: Tensor,
    candidates: Tensor,
    offsets: Tensor,
    k: int,
    *,
    exclude_self: bool,
) -> tuple[Tensor, Tensor]:
    """Return indices and cosines of the k nearest items, exactly ordered.

    Args:
        queries: The queries.
        items: The gallery.
        index: Indices of the queries, (rows,).
        coarse: The largest float32 products of each query with the centred items, largest first;
            k and `N_SPARE_CANDIDATES` of them, or all.
        candidates: Indices of the items with these products; changed in place.
        offsets: Cosine minus product of each query.
        k: Length of the result.
        exclude_self: Whether the item of the query's own index is left out.
    """
    unsure = find_near_ties(coarse, items.float32_margin)
    if EXACT_PAIR_COST_RATIO * int(unsure.sum()) > len(index) * len(items):
        # Long lists, or vectors that hardly differ: float64 products of all items cost less.
        return _order_from_float64(queries, items, index, k, exclude_self)
    n_items = len(items) - int(exclude_self)
    found, values, crowded = resolve_ties(
        queries, items, index, unsure, candidates, coarse + offsets[:, None], k, n_items
    )
    if len(crowded):
        at = torch.from_numpy(crowded).to(found.device)
        found[at], values[at] = _order_from_float64(queries, items, index[at], k, exclude_self)
    return found, values


def find_near_ties(sorted_values: Tensor, margin: float) -> Tensor:
    """Return which values are so close to a neighbour in their row that the order is open."""
    close = sorted_values[:, :-1] - sorted_values[:, 1:] <= margin
    unsure = torch.zeros_like(sorted_values, dtype=torch.bool)
    unsure[:, 1:] |= close
    unsure[:, :-1] |= close
    return unsure


def resolve_ties(
    queries: VectorSet,
    items: VectorSet,
    index: Tensor,
    unsure: Tensor,
    candidates: Tensor,
    values: Tensor,
    k: int,
    n_items: int,
) -> tuple[Tensor, Tensor, NDArray[np.int64]]:
    """Order candidates exactly where float32 leaves the order open.

    Args:
        queries: The queries.
        items: The gallery.
        index: Indices of the queries, (rows,).
        unsure: Result of `find_near_ties` for the candidates of each query.
        candidates: Indices of the candidates, most similar first; changed in place.
        values: Their approximate cosines, float64; changed in place.
        k: Length of the result.
        n_items: Number of items that each query could find.

    Returns:
        Items and cosines of the k nearest, and the queries (as positions in `index`) for which the
        candidates do not suffice: a run of near-ties reaches the last candidate, so that items
        beyond it may belong to the k nearest.
    """
    crowded = torch.zeros(len(index), dtype=torch.bool, device=unsure.device)
    if unsure.shape[1] < n_items:
        crowded = unsure[:, k - 1 :].all(dim=1)
    at, place = torch.nonzero(unsure & ~crowded[:, None], as_tuple=True)
    values[at, place] = compute_pair_cosines(queries, items, index[at], candidates[at, place])
    rows = unsure.any(dim=1).nonzero()[:, 0]
    candidates[rows], values[rows] = _sort_candidates(candidates[rows], values[rows])
    return candidates[:, :k], values[:, :k], crowded.nonzero()[:, 0].cpu().numpy()


def _order_from_float64(
    queries: VectorSet, items: VectorSet, index: Tensor, k: int, exclude_self: bool
) -> tuple[Tensor, Tensor]:
    """Return the k nearest items from float64 products; pairs are compared where these tie."""
    device, n_items = index.device, len(items) - int(exclude_self)
    count = min(k + N_SPARE_CANDIDATES, n_items)
    nearest = torch.empty((len(index), k), dtype=torch.int64, device=device)
    cosines = torch.empty((len(index), k), dtype=torch.float64, device=device)
    step = max(
        1, min(block_sizes.BLOCK_BYTES // (8 * len(items)), block_sizes.limit_list_rows(count))
    )
    for start in range(0, len(index), step):
        part = slice(start, start + step)
        products = _compute_float64_cosines(queries, items, index[part])
        if exclude_self:
            products.scatter_(1, index[part, None], -torch.inf)
        best, candidates = select_top_columns(products, count)
        unsure = find_near_ties(best, items.float64_margin)
        found, values, crowded = resolve_ties(
            queries, items, index[part], unsure, candidates, best.clone(), k, n_items
        )
        for row in crowded.tolist():
            near = torch.nonzero(products[row] >= best[row, k - 1] - items.float64_margin)[:, 0]
            exact = compute_query_cosines(queries, items, index[part][row], near)
            found[row], values[row] = _select_best(near, exact, k)
        nearest[part], cosines[part] = found, values
    return nearest, cosines


def _compute_float64_cosines(queries: VectorSet, items: VectorSet, index: Tensor) -> Tensor:
    """Return float64 cosines of some queries with all items."""
    out = torch.empty((len(index), len(items)), dtype=torch.float64, device=index.device)
    unit = queries.normalise_rows(index).to(torch.float64)
    for start in range(0, len(items), ROWS_PER_FLOAT64_CHUNK):
        part = slice(start, start + ROWS_PER_FLOAT64_CHUNK)
        out[:, part] = unit @ items.normalise_rows(part).to(torch.float64).T
    return out


def _select_best(candidates: Tensor, values: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Return the k largest of many candidates, which ascend by index, in their exact order."""
    edge = values.topk(k, sorted=False).values.min()
    above = (values > edge).nonzero()[:, 0]
    at = torch.cat([above, (values == edge).nonzero()[: k - len(above), 0]])
    best, best_values = _sort_candidates(candidates[at][None], values[at][None])
    return best[0], best_values[0]


def _sort_candidates(candidates: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
    """Sort each row by value, largest first, and by index, lower first, where values are equal."""
    candidates, by_index = candidates.sort(dim=1)
    values, by_value = values.gather(1, by_index).sort(dim=1, descending=True, stable=True)
    return candidates.gather(1, by_value), values
