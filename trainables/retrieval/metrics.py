"""How well do embeddings find images of their own class? Exact R@K, R-precision and MAP@R.

Similarity is the cosine. A query never finds itself: self is left out by index, so duplicates of a
query still count. Queries whose class has no other item in the gallery are left out of the means
(they stay in the gallery), as the papers do. Ties are ordered by gallery index, lower first; see
`trainables.neighbours`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from trainables.neighbours import (
    CROWD,
    Answer,
    Block,
    Neighbours,
    cosines,
    cosines_of,
    nearest,
    search,
)
from trainables.vectors import Vectors, check_width, dense, vectors
from trainables.within import pays, search_within
from trainables.world import Alone, World, share

__all__ = ["Neighbours", "evaluate", "nearest", "nmi"]

LISTED = 32  # a larger K is answered by the rank of the first hit, not by a longer list

Ids = NDArray[np.int64]


def evaluate(
    embeddings: ArrayLike | Tensor,
    labels: ArrayLike | Tensor,
    *,
    ks: Sequence[int] = (1, 2, 4, 8),
    gallery: ArrayLike | Tensor | None = None,
    gallery_labels: ArrayLike | Tensor | None = None,
    world: World | None = None,
) -> dict[str, float]:
    """Retrieval scores in 0..1: recall_at_K for each K, r_precision and map_at_r.

    R is the number of gallery items of the query's class (the query itself not counted).
    R-precision is the share of them among the R nearest; MAP@R averages, over those R places, the
    precision at the places that hold one ("A Metric Learning Reality Check", ECCV 2020). Recall@K
    is the share of queries with one among the K nearest.

    Args:
        embeddings: Queries (N, D); normalised here.
        labels: Class ids (N,), integers of any size.
        gallery: Items to find (M, D). None: the queries themselves, self left out.
        gallery_labels: Their class ids (M,); needed with `gallery`.
        world: Ranks that share the queries; all pass the same vectors and get the same scores,
            bit for bit those of one rank.
    """
    _check_ks(ks)
    queries, query_labels = vectors(embeddings, "embeddings"), _ids(labels, "labels")
    _same_length(queries, query_labels, "embeddings", "labels")
    if (gallery is None) != (gallery_labels is None):
        raise ValueError("`gallery` and `gallery_labels` must be given together.")
    items, item_labels = queries, query_labels
    if gallery is not None and gallery_labels is not None:
        items, item_labels = vectors(gallery, "gallery"), _ids(gallery_labels, "gallery_labels")
        _same_length(items, item_labels, "gallery", "gallery_labels")
        check_width(queries, items)
    itself = 1 if gallery is None else 0
    matches = _count_in(query_labels, item_labels) - itself
    valid = np.flatnonzero(matches > 0)
    if not len(valid):
        raise ValueError("no query has another item of its class to find; every class is alone.")
    world = world or Alone(torch.device("cpu"))
    task = _Task(queries, query_labels, items, item_labels, matches, exclude_self=bool(itself))
    scores = _scores(task, valid[share(len(valid), world.rank, world.size)], ks)
    # Gathered per query and added in one order: the last digit does not depend on the ranks.
    means = world.gather(torch.from_numpy(scores), len(valid)).numpy().mean(axis=0)
    return {
        **{f"recall_at_{k}": float(mean) for k, mean in zip(ks, means, strict=False)},
        "r_precision": float(means[-2]),
        "map_at_r": float(means[-1]),
    }


@dataclass(frozen=True)
class _Task:
    """Who asks what of whom; `matches` is how many items each query should find."""

    queries: Vectors
    query_labels: Ids
    items: Vectors
    item_labels: Ids
    matches: Ids
    exclude_self: bool


def _scores(task: _Task, rows: Ids, ks: Sequence[int]) -> NDArray[np.float64]:
    """Hit or miss within each K, R-precision and MAP@R of the queries `rows`, one row each."""
    queries, items, labels = task.queries, task.items, task.item_labels
    longest = max(int(task.matches.max()), *(k for k in ks if k <= LISTED), 1)
    length = min(longest, len(items) - task.exclude_self)
    members = _Members(labels)
    scores: list[NDArray[np.float64]] = [np.empty((0, len(ks) + 2))]
    for block in _answers(task, rows, length, whole=max(ks) > length):
        own = task.query_labels[block.rows]
        hits = labels[block.found.indices] == own[:, None]
        first = np.where(hits.any(axis=1), hits.argmax(axis=1) + 1, np.iinfo(np.int64).max)
        if isinstance(block, Block) and max(ks) > length:
            missed = np.flatnonzero(~hits.any(axis=1))
            first[missed] = _first_hits(block, missed, own, queries, items, members)
        precisions = _precisions(hits, task.matches[block.rows])
        scores.append(np.stack([*(first <= k for k in ks), *precisions], axis=1))
    return np.concatenate(scores)


def _answers(task: _Task, rows: Ids, length: int, *, whole: bool) -> Iterator[Answer]:
    """The nearest `length` items of the queries; as `Block`s if `whole` rows are needed."""
    if task.exclude_self and not whole and pays(task.items, len(rows), length):
        return search_within(task.items, rows, length)
    return search(task.queries, task.items, rows, length, exclude_self=task.exclude_self)


def nmi(embeddings: ArrayLike | Tensor, labels: ArrayLike | Tensor, *, seed: int = 0) -> float:
    """Normalised mutual information of k-means clusters with the classes, 0..1.

    As in the older papers: k is the number of classes, vectors are of unit length, arithmetic mean
    in the denominator. k-means finds a local optimum, so this score has noise that the exact
    scores of `evaluate` do not have; it is not a goal for a search.

    Args:
        seed: Of the first centres; same seed, same result on one machine.
    """
    import faiss
    from sklearn.metrics import normalized_mutual_info_score

    given, ids = vectors(embeddings, "embeddings"), _ids(labels, "labels")
    _same_length(given, ids, "embeddings", "labels")
    points = given.unit(slice(None)).float().cpu().numpy()
    n_classes = len(np.unique(ids))
    means = faiss.Kmeans(
        points.shape[1],
        n_classes,
        niter=20,
        seed=seed,
        min_points_per_centroid=1,  # classes are small; its default of 39 only warns
        max_points_per_centroid=len(points),  # no subsampling
    )
    means.train(points)
    clusters = means.index.search(points, 1)[1][:, 0]
    return float(normalized_mutual_info_score(ids, clusters))


def _precisions(
    hits: NDArray[np.bool_], matches: Ids
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """R-precision and MAP@R of each query."""
    hits = hits[:, : int(matches.max())]
    places = np.arange(1, hits.shape[1] + 1)
    relevant = hits & (places <= matches[:, None])
    found = relevant.cumsum(axis=1)
    precision = np.where(relevant, found / places, 0.0)
    return found[:, -1] / matches, precision.sum(axis=1) / matches


class _Members:
    """The items of each class, by index."""

    def __init__(self, labels: Ids) -> None:
        self.order = np.argsort(labels, kind="stable")
        self.classes, self.starts = np.unique(labels[self.order], return_index=True)
        self.ends = np.append(self.starts[1:], len(labels))

    def of(self, label: int) -> Ids:
        at = int(np.searchsorted(self.classes, label))
        return self.order[self.starts[at] : self.ends[at]]


def _first_hits(
    block: Block, missed: Ids, own: Ids, queries: Vectors, items: Vectors, members: _Members
) -> Ids:
    """Places of the first hits of the block's queries `missed`, which have none in the list.

    The place of the best item of the class is one more than the number of items before it: those
    clearly more similar are counted in float32, near-ties are compared in float64.
    """
    firsts = np.empty(len(missed), dtype=np.int64)
    for start in range(0, len(missed), 64):
        at = missed[start : start + 64]
        rows, similarities = block.rows[at], block.similarities[torch.from_numpy(at)]
        best, best_item = _best_members(rows, own[at], similarities, queries, items, members)
        shifted = torch.from_numpy(best).to(block.offsets) - block.offsets[torch.from_numpy(at)]
        middle = shifted.to(similarities)[:, None]
        before = (similarities > middle + items.margin).sum(dim=1).cpu().numpy()
        near = torch.nonzero((similarities - middle).abs() <= items.margin).cpu().numpy()
        of, item = near[:, 0], near[:, 1]
        rivals = _rivals(queries, items, rows, of, item)
        mine = best[of]
        ahead = (rivals > mine) | ((rivals == mine) & (item < best_item[of]))
        firsts[start : start + 64] = before + np.bincount(of[ahead], minlength=len(at)) + 1
    return firsts


def _rivals(queries: Vectors, items: Vectors, rows: Ids, of: Ids, item: Ids) -> NDArray[np.float64]:
    """Exact similarities of the queries `rows[of]` with items; `of` ascends."""
    counts = np.bincount(of, minlength=len(rows))
    few = counts[of] <= CROWD
    exact = np.empty(len(of))
    exact[few] = _pairs(queries, items, rows[of[few]], item[few])
    for crowd in np.flatnonzero(counts > CROWD):
        part = slice(*np.searchsorted(of, [crowd, crowd + 1]))
        row, columns = torch.tensor(rows[crowd]), torch.from_numpy(item[part])
        device = items.raw.device
        found = cosines_of(queries, items, row.to(device), columns.to(device))
        exact[part] = found.cpu().numpy()
    return exact


def _best_members(
    rows: Ids, own: Ids, similarities: Tensor, queries: Vectors, items: Vectors, members: _Members
) -> tuple[NDArray[np.float64], Ids]:
    """Exact similarity and index of each query's nearest item of its own class."""
    lists = [members.of(int(label)) for label in own]
    of = np.repeat(np.arange(len(rows)), [len(found) for found in lists])
    item = np.concatenate(lists)
    # The query itself stands at minus infinity.
    other = (similarities[torch.from_numpy(of), torch.from_numpy(item)] > -torch.inf).cpu().numpy()
    of, item = of[other], item[other]
    exact = _pairs(queries, items, rows[of], item)
    order = np.lexsort((item, -exact, of))
    first = order[np.unique(of[order], return_index=True)[1]]
    return exact[first], item[first]


def _pairs(queries: Vectors, items: Vectors, rows: Ids, columns: Ids) -> NDArray[np.float64]:
    device = items.raw.device
    pair = (torch.from_numpy(index).to(device) for index in (rows, columns))
    exact: NDArray[np.float64] = cosines(queries, items, *pair).cpu().numpy()
    return exact


def _ids(labels: ArrayLike | Tensor, name: str) -> Ids:
    given = dense(labels, name).cpu().numpy() if isinstance(labels, Tensor) else labels
    array = np.asarray(given)
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise ValueError(f"`{name}` must be integers (N,), got {array.dtype} {array.shape}.")
    return array.astype(np.int64)


def _same_length(given: Vectors, ids: Ids, name: str, ids_name: str) -> None:
    if len(given) != len(ids):
        raise ValueError(
            f"`{name}` and `{ids_name}` must be equally many, got {len(given)} and {len(ids)}."
        )


def _check_ks(ks: Sequence[int]) -> None:
    # In Python a bool is an int, but recall_at_True is a slip.
    whole = all(isinstance(k, int | np.integer) and not isinstance(k, bool) for k in ks)
    if not whole or not len(ks) or min(ks) < 1 or len(set(ks)) != len(ks):
        raise ValueError(f"`ks` must be distinct whole numbers from 1 on, got {tuple(ks)}.")


def _count_in(values: Ids, among: Ids) -> Ids:
    """How often each value occurs in `among`."""
    classes, counts = np.unique(among, return_counts=True)
    at = np.searchsorted(classes, values).clip(max=len(classes) - 1)
    return np.where(classes[at] == values, counts[at], 0)
