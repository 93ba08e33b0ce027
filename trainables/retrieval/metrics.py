"""Retrieval metrics of embeddings: exact Recall@K, R-precision and MAP@R, and NMI.

Similarity is the cosine. A query never finds itself: it is excluded by index, so duplicates of a
query still count. Queries whose class has no other item in the gallery do not enter the means (they
stay in the gallery), as in the papers. Ties are ordered by gallery index, lower first; see
`trainables.retrieval.exact_order`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from trainables.distributed.world import SingleProcessWorld, World, rank_slice
from trainables.retrieval.faiss_search import cluster_points
from trainables.retrieval.first_hits import ClassMembers, rank_first_hits
from trainables.retrieval.neighbours import (
    NearestNeighbours,
    QueryNeighbours,
    SimilarityBlock,
    find_neighbours,
    search_in_blocks,
    search_with_similarities,
)
from trainables.retrieval.symmetric_search import is_symmetric_search_faster, search_symmetrically
from trainables.retrieval.vectors import VectorSet, check_same_width, detach_dense, make_vector_set
from trainables.utils.precision import strict_float32

__all__ = ["NearestNeighbours", "compute_nmi", "evaluate", "find_neighbours"]

MAX_LISTED_K = 32
"""Recall@K for a larger K is computed from the rank of the first hit, without a longer list."""

IdArray = NDArray[np.int64]


def evaluate(
    embeddings: ArrayLike | Tensor,
    labels: ArrayLike | Tensor,
    *,
    ks: Sequence[int] = (1, 2, 4, 8),
    gallery: ArrayLike | Tensor | None = None,
    gallery_labels: ArrayLike | Tensor | None = None,
    world: World | None = None,
) -> dict[str, float]:
    """Return retrieval scores in 0..1: `recall_at_K` for each K, `r_precision` and `map_at_r`.

    R is the number of gallery items of the query's class, without the query itself. R-precision is
    the share of them among the R nearest items. MAP@R is the mean, over the R nearest places, of
    the precision at the places that hold one ("A Metric Learning Reality Check", ECCV 2020).
    Recall@K is the share of queries with at least one among the K nearest items.

    Args:
        embeddings: Queries (N, D); normalised by this function.
        labels: Class ids (N,), integers of any size.
        ks: The values of K, distinct integers from 1.
        gallery: Items to find (M, D). None: the queries themselves; a query never finds itself.
        gallery_labels: Class ids (M,) of the gallery; required with `gallery`.
        world: Ranks that share the queries. All ranks pass the same vectors and receive the same
            scores, bitwise equal to those of a single process.
    """
    _check_recall_ks(ks)
    queries, query_labels = (
        make_vector_set(embeddings, "embeddings"),
        _check_label_ids(labels, "labels"),
    )
    _check_same_length(queries, query_labels, "embeddings", "labels")
    if (gallery is None) != (gallery_labels is None):
        raise ValueError("`gallery` and `gallery_labels` must be given together")
    items, item_labels = queries, query_labels
    if gallery is not None and gallery_labels is not None:
        items, item_labels = (
            make_vector_set(gallery, "gallery"),
            _check_label_ids(gallery_labels, "gallery_labels"),
        )
        _check_same_length(items, item_labels, "gallery", "gallery_labels")
        check_same_width(queries, items)
    exclude_self = gallery is None
    matches = _count_occurrences(query_labels, item_labels) - int(exclude_self)
    valid = np.flatnonzero(matches > 0)
    if not len(valid):
        raise ValueError("no query has another item of its class to find: every class has one item")
    world = world or SingleProcessWorld(torch.device("cpu"))
    task = _RetrievalTask(
        queries, query_labels, items, item_labels, matches, exclude_self=exclude_self
    )
    with strict_float32(queries.raw.device):
        scores = _score_queries(task, valid[rank_slice(len(valid), world.rank, world.size)], ks)
    # Gathered per query and added in one order, so the last digit does not depend on the ranks.
    means = world.all_gather(scores, len(valid)).cpu().numpy().mean(axis=0)
    return {
        **{f"recall_at_{k}": float(mean) for k, mean in zip(ks, means, strict=False)},
        "r_precision": float(means[-2]),
        "map_at_r": float(means[-1]),
    }


@dataclass(frozen=True)
class _RetrievalTask:
    """Queries, gallery and, per query, the number of relevant items (`matches`)."""

    queries: VectorSet
    query_labels: IdArray
    items: VectorSet
    item_labels: IdArray
    matches: IdArray
    exclude_self: bool


def _score_queries(task: _RetrievalTask, rows: IdArray, ks: Sequence[int]) -> Tensor:
    """Return, per query, whether it has a hit within each K, its R-precision and its MAP@R.

    The result is on the device of the items; nothing is sent from there in between, but where
    near-ties are compared.
    """
    queries, items = task.queries, task.items
    device = items.raw.device
    longest = max(int(task.matches.max()), *(k for k in ks if k <= MAX_LISTED_K), 1)
    length = min(longest, len(items) - task.exclude_self)
    members = ClassMembers(task.item_labels)
    labels = torch.from_numpy(task.item_labels).to(device)
    scores = [torch.empty((0, len(ks) + 2), dtype=torch.float64, device=device)]
    for block in _search_neighbours(task, rows, length, all_products=max(ks) > length):
        own = torch.from_numpy(task.query_labels[block.rows]).to(device)
        hits = labels[block.indices] == own[:, None]
        first = hits.to(torch.uint8).argmax(dim=1).add_(1)
        first = first.masked_fill_(~hits.any(dim=1), torch.iinfo(torch.int64).max)
        if isinstance(block, SimilarityBlock) and max(ks) > length:
            missed = np.flatnonzero(~hits.any(dim=1).cpu().numpy())
            ranks = rank_first_hits(
                block, missed, task.query_labels[block.rows], queries, items, members
            )
            first[torch.from_numpy(missed).to(device)] = torch.from_numpy(ranks).to(device)
        matches = torch.from_numpy(task.matches[block.rows]).to(device)
        precisions = _compute_precisions(hits, matches, int(task.matches[block.rows].max()))
        scores.append(torch.stack([*(first <= k for k in ks), *precisions], dim=1))
    return torch.cat(scores)


def _search_neighbours(
    task: _RetrievalTask, rows: IdArray, length: int, *, all_products: bool
) -> Iterator[QueryNeighbours]:
    """Yield the nearest `length` items of the queries; as `SimilarityBlock`s if `all_products`."""
    if all_products:
        return search_with_similarities(
            task.queries, task.items, rows, length, exclude_self=task.exclude_self
        )
    if task.exclude_self and is_symmetric_search_faster(task.items, len(rows), length):
        return search_symmetrically(task.items, rows, length)
    return search_in_blocks(task.queries, task.items, rows, length, exclude_self=task.exclude_self)


def compute_nmi(
    embeddings: ArrayLike | Tensor, labels: ArrayLike | Tensor, *, seed: int = 0
) -> float:
    """Return the normalised mutual information of k-means clusters with the classes, 0..1.

    As in the older papers, k is the number of classes, vectors have unit length, and the
    denominator is the arithmetic mean. k-means finds a local optimum, so this score is noisy,
    unlike the exact scores of `evaluate`; it is not suitable as the objective of a search.

    Args:
        embeddings: Vectors (N, D); normalised by this function.
        labels: Class ids (N,).
        seed: Seed of the initial centres. The same seed gives the same result on one machine.
    """
    from sklearn.metrics import normalized_mutual_info_score

    vectors, ids = make_vector_set(embeddings, "embeddings"), _check_label_ids(labels, "labels")
    _check_same_length(vectors, ids, "embeddings", "labels")
    points = vectors.normalise_rows(slice(None)).float().cpu().numpy()
    clusters = cluster_points(points, len(np.unique(ids)), seed)
    return float(normalized_mutual_info_score(ids, clusters))


def _compute_precisions(hits: Tensor, matches: Tensor, longest: int) -> tuple[Tensor, Tensor]:
    """Return R-precision and MAP@R of each query; `longest` is the largest of `matches`."""
    hits = hits[:, :longest]
    places = torch.arange(1, hits.shape[1] + 1, device=hits.device)
    relevant = hits & (places <= matches[:, None])
    n_relevant = relevant.cumsum(dim=1).double()
    precision = (n_relevant / places).masked_fill_(~relevant, 0.0)
    return n_relevant[:, -1] / matches, precision.sum(dim=1) / matches


def _check_label_ids(labels: ArrayLike | Tensor, name: str) -> IdArray:
    values = detach_dense(labels, name).cpu().numpy() if isinstance(labels, Tensor) else labels
    array = np.asarray(values)
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise ValueError(f"`{name}` must be integers (N,), got {array.dtype} {array.shape}")
    return array.astype(np.int64)


def _check_same_length(vectors: VectorSet, ids: IdArray, name: str, ids_name: str) -> None:
    if len(vectors) != len(ids):
        raise ValueError(
            f"`{name}` and `{ids_name}` must have the same length, "
            f"got {len(vectors)} and {len(ids)}"
        )


def _check_recall_ks(ks: Sequence[int]) -> None:
    # In Python a bool is an int, but recall_at_True is a mistake.
    integers = all(isinstance(k, int | np.integer) and not isinstance(k, bool) for k in ks)
    if not integers or not len(ks) or min(ks) < 1 or len(set(ks)) != len(ks):
        raise ValueError(f"`ks` must be distinct integers from 1, got {tuple(ks)}")


def _count_occurrences(values: IdArray, among: IdArray) -> IdArray:
    """Return how often each value occurs in `among`."""
    classes, counts = np.unique(among, return_counts=True)
    at = np.searchsorted(classes, values).clip(max=len(classes) - 1)
    return np.where(classes[at] == values, counts[at], 0)
