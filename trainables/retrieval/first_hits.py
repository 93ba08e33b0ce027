"""Rank of the first hit of queries whose neighbour lists contain none.

Recall@K for a large K needs this rank and no longer list.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from trainables.retrieval.exact_order import (
    MAX_PAIRWISE_TIES,
    compute_pair_cosines,
    compute_query_cosines,
)
from trainables.retrieval.neighbours import SimilarityBlock
from trainables.retrieval.vectors import VectorSet

QUERIES_PER_STEP = 64

IdArray = NDArray[np.int64]


class ClassMembers:
    """Indices of the items of each class.

    Args:
        labels: Class of each item.
    """

    def __init__(self, labels: IdArray) -> None:
        self.order = np.argsort(labels, kind="stable")
        self.classes, self.starts = np.unique(labels[self.order], return_index=True)
        self.ends = np.append(self.starts[1:], len(labels))

    def items_of_class(self, label: int) -> IdArray:
        """Return the indices of a class's items, ascending."""
        at = int(np.searchsorted(self.classes, label))
        return self.order[self.starts[at] : self.ends[at]]


def rank_first_hits(
    block: SimilarityBlock,
    missed: IdArray,
    own: IdArray,
    queries: VectorSet,
    items: VectorSet,
    members: ClassMembers,
) -> IdArray:
    """Return the ranks, from 1, of the first hits of some queries.

    The rank of the nearest item of the class is one more than the number of items before it. Items
    that are clearly more similar are counted in float32; near-ties are compared in float64.

    Args:
        block: Queries with their products with all items.
        missed: Positions in the block of the queries to rank.
        own: Class of each query of the block.
        queries: The queries.
        items: The gallery.
        members: Items of each class of the gallery.
    """
    firsts = np.empty(len(missed), dtype=np.int64)
    for start in range(0, len(missed), QUERIES_PER_STEP):
        at = missed[start : start + QUERIES_PER_STEP]
        rows, similarities = block.rows[at], block.similarities[torch.from_numpy(at)]
        best, best_item = _find_nearest_members(
            rows, own[at], similarities, queries, items, members
        )
        shifted = torch.from_numpy(best).to(block.offsets) - block.offsets[torch.from_numpy(at)]
        middle = shifted.to(similarities)[:, None]
        before = (similarities > middle + items.float32_margin).sum(dim=1).cpu().numpy()
        near = torch.nonzero((similarities - middle).abs() <= items.float32_margin).cpu().numpy()
        of, item = near[:, 0], near[:, 1]
        rivals = _compute_rival_cosines(queries, items, rows, of, item)
        own_cosines = best[of]
        tied_and_lower = (rivals == own_cosines) & (item < best_item[of])
        ahead = (rivals > own_cosines) | tied_and_lower
        firsts[start : start + QUERIES_PER_STEP] = (
            before + np.bincount(of[ahead], minlength=len(at)) + 1
        )
    return firsts


def _compute_rival_cosines(
    queries: VectorSet, items: VectorSet, rows: IdArray, of: IdArray, item: IdArray
) -> NDArray[np.float64]:
    """Return exact cosines of the queries `rows[of]` with items; `of` ascends."""
    counts = np.bincount(of, minlength=len(rows))
    few = counts[of] <= MAX_PAIRWISE_TIES
    exact = np.empty(len(of))
    exact[few] = _pair_cosines_as_numpy(queries, items, rows[of[few]], item[few])
    for crowd in np.flatnonzero(counts > MAX_PAIRWISE_TIES):
        part = slice(*np.searchsorted(of, [crowd, crowd + 1]))
        row, columns = torch.tensor(rows[crowd]), torch.from_numpy(item[part])
        device = items.raw.device
        cosines = compute_query_cosines(queries, items, row.to(device), columns.to(device))
        exact[part] = cosines.cpu().numpy()
    return exact


def _find_nearest_members(
    rows: IdArray,
    own: IdArray,
    similarities: Tensor,
    queries: VectorSet,
    items: VectorSet,
    members: ClassMembers,
) -> tuple[NDArray[np.float64], IdArray]:
    """Return exact cosine and index of each query's nearest item of its own class."""
    lists = [members.items_of_class(int(label)) for label in own]
    of = np.repeat(np.arange(len(rows)), [len(indices) for indices in lists])
    item = np.concatenate(lists)
    # The query's own item has minus infinity.
    other = (similarities[torch.from_numpy(of), torch.from_numpy(item)] > -torch.inf).cpu().numpy()
    of, item = of[other], item[other]
    exact = _pair_cosines_as_numpy(queries, items, rows[of], item)
    order = np.lexsort((item, -exact, of))
    first = order[np.unique(of[order], return_index=True)[1]]
    return exact[first], item[first]


def _pair_cosines_as_numpy(
    queries: VectorSet, items: VectorSet, rows: IdArray, columns: IdArray
) -> NDArray[np.float64]:
    device = items.raw.device
    pair = (torch.from_numpy(index).to(device) for index in (rows, columns))
    exact: NDArray[np.float64] = compute_pair_cosines(queries, items, *pair).cpu().numpy()
    return exact
