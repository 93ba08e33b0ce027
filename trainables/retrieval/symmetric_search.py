"""Neighbours among the items of one set: each product of two of them serves both.

Rows are taken block by block and multiplied with the items from the block on, half of all products.
What a block's rows find to their right completes them. What the columns find among the block's rows
is kept for them as candidates: a similarity above the least of a column's list enters it, and the
more has been seen, the rarer that is.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from trainables import neighbours
from trainables.neighbours import SPARE, Answer, Neighbours
from trainables.vectors import PART, TIE, Vectors

STRIP = 8192  # columns looked at together: their lists and masks stay small
WORTH = 200_000  # N x D per candidate and item from which half the products cost more than lists


def pays(items: Vectors, n_rows: int, k: int) -> bool:
    """Whether the k nearest of `n_rows` of the items are found faster, and in bounded memory."""
    size, dim = items.raw.shape
    count = min(k + SPARE, size - 1)
    lists = size * count * (4 + 8)
    return n_rows > 0.7 * size and size * dim > WORTH * count and lists <= neighbours.BLOCK_BYTES


def search_within(items: Vectors, rows: NDArray[np.int64], k: int) -> Iterator[Answer]:
    """The k nearest other items of the items `rows`, block by block; `rows` ascend."""
    size, device = len(items), items.raw.device
    count = min(k + SPARE, size - 1)
    sides, middle, margin = _right_sides(items)
    lists = _Lists(size, count, device)
    wanted = np.zeros(size, dtype=bool)
    wanted[rows] = True
    room = max(neighbours.BLOCK_BYTES // 4, size)
    buffer = torch.empty(room, dtype=torch.float32, device=device)
    most = neighbours.list_rows(count)
    start, height = 0, 2 * count  # the first lists are short; then the blocks double
    while start < size:
        width = size - start
        height = max(1, min(height, len(buffer) // width, width, most))
        stop = start + height
        tile = buffer[: height * width].view(height, width)
        torch.mm(_left_sides(sides[start:stop]), sides[start:].T, out=tile)
        tile.diagonal().fill_(-torch.inf)
        coarse, found = lists.complete(tile, start)
        lists.offer(tile[:, height:], start)
        chunk = start + np.flatnonzero(wanted[start:stop])
        if len(chunk):
            at = torch.from_numpy(chunk - start).to(device)
            yield _answer(items, chunk, coarse[at], found[at], middle, margin, k)
        start, height = stop, 2 * height


def _right_sides(items: Vectors) -> tuple[Tensor, float, float]:
    """[c, a, 1] of every item (N, D + 2) in float32, the cosine's constant, and the margin.

    With c a unit vector less the mean unit vector m and a = c m, the cosine of two items is
    c c' + a + a' + m m: a product of [c, 1, a] with [c', a', 1] and a constant, the same both ways
    round. The margin is as `Vectors.margin`, for the numbers that are added here.
    """
    centre, dim = items.centre, items.raw.shape[1]
    out = torch.ones((len(items), dim + 2), dtype=torch.float32, device=items.raw.device)
    reach = shift = 0.0
    for start in range(0, len(items), PART):
        part = slice(start, start + PART)
        centred = items.unit(part).sub_(centre)
        along = centred @ centre
        out[part, :dim], out[part, dim] = centred, along
        reach = max(reach, float(centred.square().sum(dim=1).max()))
        shift = max(shift, float(along.abs().max()))
    margin = 8 * dim**0.5 * 2.0**-24 * (reach + 2 * shift)
    return out, float(centre @ centre), max(margin, 4 * TIE)


def _left_sides(right: Tensor) -> Tensor:
    """[c, 1, a] of [c, a, 1]."""
    left = right.clone()
    left[:, -2:] = right[:, -2:].flip(1)
    return left


class _Lists:
    """The most similar items that each item has met so far, (N, count), in no order."""

    def __init__(self, size: int, count: int, device: torch.device) -> None:
        nothing = torch.tensor(-torch.inf, dtype=torch.float32, device=device)
        self.values = nothing.repeat(size, count)
        self.found = torch.zeros((size, count), dtype=torch.int64, device=device)
        self.least = nothing.repeat(size)

    def complete(self, tile: Tensor, start: int) -> tuple[Tensor, Tensor]:
        """Values and items of a block's rows, largest first; the tile's rows and columns begin
        at item `start`.
        """
        rows, count = slice(start, start + len(tile)), self.values.shape[1]
        values, found = neighbours.top(tile, min(count, tile.shape[1]))
        values = torch.cat([self.values[rows], values], dim=1)
        found = torch.cat([self.found[rows], found + start], dim=1)
        best = values.topk(count, dim=1)
        return best.values, found.gather(1, best.indices)

    def offer(self, tile: Tensor, start: int) -> None:
        """Let the items behind a block meet its rows, which begin at item `start`."""
        behind = start + len(tile)
        for at in range(0, tile.shape[1], STRIP):
            part = tile[:, at : at + STRIP]
            columns = slice(behind + at, behind + at + part.shape[1])
            better = part > self.least[columns]
            # Some rows tell whether a list of all that enter would be long.
            some = better[::16]
            if 8 * int(some.sum()) > some.numel():
                met = torch.arange(start, behind, device=tile.device).expand(part.shape[1], -1)
                self._merge(torch.arange(columns.start, columns.stop), part.T, met)
                continue
            row, column = better.nonzero(as_tuple=True)
            if len(row):
                self._merge(*_by_column(column, row + start, part[row, column], columns.start))

    def _merge(self, items: Tensor, values: Tensor, found: Tensor) -> None:
        """Offer each of `items` a row of values and the items they belong to."""
        values = torch.cat([self.values[items], values], dim=1)
        found = torch.cat([self.found[items], found], dim=1)
        best = values.topk(self.values.shape[1], dim=1, sorted=False)
        self.values[items] = best.values
        self.found[items] = found.gather(1, best.indices)
        self.least[items] = best.values.amin(dim=1)


def _by_column(
    column: Tensor, found: Tensor, values: Tensor, first: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Entries of a sparse matrix as one row per column that has any, filled up with -inf."""
    column, order = column.sort(stable=True)
    who, row, counts = torch.unique_consecutive(column, return_inverse=True, return_counts=True)
    place = torch.arange(len(column), device=column.device) - (counts.cumsum(0) - counts)[row]
    shape = (len(who), int(counts.max()))
    lined = torch.full(shape, -torch.inf, dtype=values.dtype, device=values.device)
    lined[row, place] = values[order]
    items = torch.zeros(shape, dtype=torch.int64, device=found.device)
    items[row, place] = found[order]
    return who + first, lined, items


def _answer(
    items: Vectors,
    rows: NDArray[np.int64],
    coarse: Tensor,
    found: Tensor,
    middle: float,
    margin: float,
    k: int,
) -> Answer:
    """The k nearest of `rows`, exactly ordered."""
    index = torch.from_numpy(rows).to(coarse.device)
    values = coarse.to(torch.float64).add_(middle)
    unsure = neighbours.near_ties(coarse, margin)
    found, values, crowded = neighbours.settle(
        items, items, index, unsure, found, values, k, len(items) - 1
    )
    if len(crowded):  # their near-ties are looked for among all items
        again = neighbours.search(items, items, rows[crowded], k, exclude_self=True)
        at = 0
        for block in again:
            these = torch.from_numpy(crowded[at : at + len(block.rows)]).to(found.device)
            found[these] = torch.from_numpy(block.found.indices).to(found)
            values[these] = torch.from_numpy(block.found.similarities).to(values)
            at += len(block.rows)
    return Answer(rows, Neighbours(found.cpu().numpy(), values.cpu().numpy()))
