"""Exact nearest neighbours among the items of one set, from half of the products.

The product of two items serves both of them. Rows are processed block by block and multiplied with
the items from the block on. The products to the right of a block complete the candidate lists of
its rows. The same products are offered to the lists of the columns: a similarity above the smallest
of a list enters it, and the more products a list has seen, the rarer that is.

This search is used where it is faster than the search by faiss or torch over all products, see
`is_symmetric_search_faster`.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from trainables.retrieval import block_sizes
from trainables.retrieval.exact_order import N_SPARE_CANDIDATES, find_near_ties, resolve_ties
from trainables.retrieval.neighbours import QueryNeighbours, search_in_blocks
from trainables.retrieval.top_columns import select_top_columns
from trainables.retrieval.vectors import COSINE_TIE_STEP, ROWS_PER_FLOAT64_CHUNK, VectorSet

STRIP_COLUMNS = 8192
"""Columns processed together, so that their lists and masks stay small."""

MIN_PRODUCTS_PER_CANDIDATE = 200_000
"""N x D per candidate from which half of the products cost more than the lists."""

MIN_SHARE_OF_ROWS = 0.7
"""Share of the items that must be queries; the search computes products of all items."""


def is_symmetric_search_faster(items: VectorSet, n_rows: int, k: int) -> bool:
    """Whether this search finds the k nearest of `n_rows` items faster, in bounded memory."""
    size, dim = items.raw.shape
    count = min(k + N_SPARE_CANDIDATES, size - 1)
    list_bytes = size * count * (4 + 8)
    return (
        items.raw.device.type == "cpu"  # its lists depend on values that a GPU would have to send
        and n_rows > MIN_SHARE_OF_ROWS * size
        and size * dim > MIN_PRODUCTS_PER_CANDIDATE * count
        and list_bytes <= block_sizes.BLOCK_BYTES
    )


def search_symmetrically(
    items: VectorSet, rows: NDArray[np.int64], k: int
) -> Iterator[QueryNeighbours]:
    """Yield the k nearest other items of the items `rows`, which ascend, block by block."""
    size, device = len(items), items.raw.device
    count = min(k + N_SPARE_CANDIDATES, size - 1)
    factors, constant, margin = _build_right_factors(items)
    lists = _CandidateLists(size, count, device)
    wanted = np.zeros(size, dtype=bool)
    wanted[rows] = True
    buffer_size = max(block_sizes.BLOCK_BYTES // 4, size)
    buffer = torch.empty(buffer_size, dtype=torch.float32, device=device)
    max_height = block_sizes.limit_list_rows(count)
    start, height = 0, 2 * count  # the first lists are short; then the blocks double
    while start < size:
        width = size - start
        height = max(1, min(height, len(buffer) // width, width, max_height))
        stop = start + height
        tile = buffer[: height * width].view(height, width)
        torch.mm(_build_left_factors(factors[start:stop]), factors[start:].T, out=tile)
        tile.diagonal().fill_(-torch.inf)
        coarse, candidates = lists.complete_block_rows(tile, start)
        lists.offer_to_columns(tile[:, height:], start)
        chunk = start + np.flatnonzero(wanted[start:stop])
        if len(chunk):
            at = torch.from_numpy(chunk - start).to(device)
            yield _order_candidates(items, chunk, coarse[at], candidates[at], constant, margin, k)
        start, height = stop, 2 * height


def _build_right_factors(items: VectorSet) -> tuple[Tensor, float, float]:
    """Return [c, a, 1] of every item (N, D + 2) in float32, the cosine's constant, and the margin.

    With c a unit vector minus the mean unit vector m, and a = c m, the cosine of two items is
    c c' + a + a' + m m: a product of [c, 1, a] with [c', a', 1] plus a constant, the same in both
    directions. The margin corresponds to `VectorSet.float32_margin`, for the numbers added here.
    """
    centre, dim = items.mean_unit_vector, items.raw.shape[1]
    out = torch.ones((len(items), dim + 2), dtype=torch.float32, device=items.raw.device)
    reach = shift = 0.0
    for start in range(0, len(items), ROWS_PER_FLOAT64_CHUNK):
        part = slice(start, start + ROWS_PER_FLOAT64_CHUNK)
        centred = items.normalise_rows(part).sub_(centre)
        along = centred @ centre
        out[part, :dim], out[part, dim] = centred, along
        reach = max(reach, float(centred.square().sum(dim=1).max()))
        shift = max(shift, float(along.abs().max()))
    margin = 8 * dim**0.5 * 2.0**-24 * (reach + 2 * shift)
    return out, float(centre @ centre), max(margin, 4 * COSINE_TIE_STEP)


def _build_left_factors(right: Tensor) -> Tensor:
    """Return [c, 1, a] of [c, a, 1]."""
    left = right.clone()
    left[:, -2:] = right[:, -2:].flip(1)
    return left


class _CandidateLists:
    """The most similar items that each item has met so far, (N, count), unordered."""

    def __init__(self, size: int, count: int, device: torch.device) -> None:
        nothing = torch.tensor(-torch.inf, dtype=torch.float32, device=device)
        self.values = nothing.repeat(size, count)
        self.item_indices = torch.zeros((size, count), dtype=torch.int64, device=device)
        self.smallest_values = nothing.repeat(size)

    def complete_block_rows(self, tile: Tensor, start: int) -> tuple[Tensor, Tensor]:
        """Return values and items of a block's rows, largest first.

        Args:
            tile: Products of the block's rows with the items from `start` on.
            start: Item of the tile's first row and first column.
        """
        rows, count = slice(start, start + len(tile)), self.values.shape[1]
        values, columns = select_top_columns(tile, min(count, tile.shape[1]))
        values = torch.cat([self.values[rows], values], dim=1)
        candidates = torch.cat([self.item_indices[rows], columns + start], dim=1)
        best = values.topk(count, dim=1)
        return best.values, candidates.gather(1, best.indices)

    def offer_to_columns(self, tile: Tensor, start: int) -> None:
        """Offer a block's rows, which begin at item `start`, to the lists of the items behind."""
        behind = start + len(tile)
        for at in range(0, tile.shape[1], STRIP_COLUMNS):
            part = tile[:, at : at + STRIP_COLUMNS]
            columns = slice(behind + at, behind + at + part.shape[1])
            better = part > self.smallest_values[columns]
            # A sample of the rows tells whether a list of all entries would be long.
            sample = better[::16]
            if 8 * int(sample.sum()) > sample.numel():
                met = torch.arange(start, behind, device=tile.device).expand(part.shape[1], -1)
                self._merge_candidates(torch.arange(columns.start, columns.stop), part.T, met)
                continue
            row, column = better.nonzero(as_tuple=True)
            if len(row):
                self._merge_candidates(
                    *_group_by_column(column, row + start, part[row, column], columns.start)
                )

    def _merge_candidates(self, items: Tensor, values: Tensor, candidates: Tensor) -> None:
        """Offer each of `items` a row of values and the candidates that they belong to."""
        values = torch.cat([self.values[items], values], dim=1)
        candidates = torch.cat([self.item_indices[items], candidates], dim=1)
        best = values.topk(self.values.shape[1], dim=1, sorted=False)
        self.values[items] = best.values
        self.item_indices[items] = candidates.gather(1, best.indices)
        self.smallest_values[items] = best.values.amin(dim=1)


def _group_by_column(
    column: Tensor, candidates: Tensor, values: Tensor, first: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the entries of a sparse matrix as one row per non-empty column, padded with -inf."""
    column, order = column.sort(stable=True)
    distinct, row, counts = torch.unique_consecutive(
        column, return_inverse=True, return_counts=True
    )
    place = torch.arange(len(column), device=column.device) - (counts.cumsum(0) - counts)[row]
    shape = (len(distinct), int(counts.max()))
    padded = torch.full(shape, -torch.inf, dtype=values.dtype, device=values.device)
    padded[row, place] = values[order]
    items = torch.zeros(shape, dtype=torch.int64, device=candidates.device)
    items[row, place] = candidates[order]
    return distinct + first, padded, items


def _order_candidates(
    items: VectorSet,
    rows: NDArray[np.int64],
    coarse: Tensor,
    candidates: Tensor,
    constant: float,
    margin: float,
    k: int,
) -> QueryNeighbours:
    """Return the k nearest items of `rows`, exactly ordered."""
    index = torch.from_numpy(rows).to(coarse.device)
    values = coarse.to(torch.float64).add_(constant)
    unsure = find_near_ties(coarse, margin)
    found, values, crowded = resolve_ties(
        items, items, index, unsure, candidates, values, k, len(items) - 1
    )
    if len(crowded):  # the search over all products finds their near-ties
        at = 0
        for block in search_in_blocks(items, items, rows[crowded], k, exclude_self=True):
            these = torch.from_numpy(crowded[at : at + len(block.rows)]).to(found.device)
            found[these], values[these] = block.indices, block.cosines
            at += len(block.rows)
    return QueryNeighbours(rows, found, values)
