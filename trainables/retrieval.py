"""How well do embeddings find images of their own class? Exact R@K, R-precision and MAP@R.

Similarity is the cosine. A query never finds itself: self is left out by index, so duplicates of a
query still count. Queries whose class has no other item in the gallery are left out of the means
(they stay in the gallery), as the papers do.

Ties: neighbours are ordered by similarity and, where it is equal, by gallery index, lower first.
Where float32 cannot tell neighbours apart they are compared in float64; equal vectors tie exactly.
So results do not depend on threads, block sizes or the order in which a BLAS library adds.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from trainables.world import Alone, World, share

BLOCK_BYTES = 128 * 2**20  # of float32 similarities held at a time
SPARE = 8  # candidates beyond those needed, which absorb near-ties of the float32 pass
CROWD = 512  # near-ties at the edge beyond this number count as ties, lower index first


@dataclass(frozen=True)
class Neighbours:
    """The nearest gallery items of each query, nearest first, both (queries, k).

    Similarities are exact where neighbours nearly tie, and of float32 accuracy elsewhere.
    """

    indices: NDArray[np.int64]
    similarities: NDArray[np.float64]


@dataclass(frozen=True)
class _Vectors:
    """Vectors as given (N, D), one over their float64 lengths (N,), and float32 unit vectors."""

    raw: Tensor
    inverse: Tensor
    unit: Tensor

    def __len__(self) -> int:
        return len(self.raw)


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
        embeddings: Queries (N, D), not all zero; normalised here.
        labels: Class ids (N,), integers of any size.
        gallery: Items to find (M, D). None: the queries themselves, self left out.
        gallery_labels: Their class ids (M,); needed with `gallery`.
        world: Ranks that share the queries; all pass the same vectors and get the same scores,
            bit for bit those of one rank.
    """
    _check_ks(ks)
    queries, query_labels = _vectors(embeddings, "embeddings"), _ids(labels, "labels")
    _same_length(queries, query_labels, "embeddings", "labels")
    if (gallery is None) != (gallery_labels is None):
        raise ValueError("`gallery` and `gallery_labels` must be given together.")
    items, item_labels = queries, query_labels
    if gallery is not None and gallery_labels is not None:
        items, item_labels = _vectors(gallery, "gallery"), _ids(gallery_labels, "gallery_labels")
        _same_length(items, item_labels, "gallery", "gallery_labels")
    matches = _count_in(query_labels, item_labels) - (1 if gallery is None else 0)
    valid = np.flatnonzero(matches > 0)
    if not len(valid):
        raise ValueError("no query has another item of its class to find; every class is alone.")
    length = min(max(*ks, int(matches.max())), len(items) - (1 if gallery is None else 0))
    world = world or Alone(torch.device("cpu"))
    own = valid[share(len(valid), world.rank, world.size)]
    scores = np.empty((len(own), len(ks) + 2))
    done = 0
    for rows, found in _search(queries, items, own, length, exclude_self=gallery is None):
        hits = item_labels[found.indices] == query_labels[rows][:, None]
        scores[done : done + len(rows)] = _score(hits, matches[rows], ks)
        done += len(rows)
    # Gathered per query and added in one order: the last digit does not depend on the ranks.
    means = world.gather(torch.from_numpy(scores), len(valid)).numpy().mean(axis=0)
    return {
        **{f"recall_at_{k}": float(mean) for k, mean in zip(ks, means, strict=False)},
        "r_precision": float(means[-2]),
        "map_at_r": float(means[-1]),
    }


def nearest(
    embeddings: ArrayLike | Tensor,
    *,
    k: int,
    gallery: ArrayLike | Tensor | None = None,
    rows: ArrayLike | None = None,
) -> Neighbours:
    """The k nearest gallery items of the queries `rows` (default all), ties as in this module."""
    queries = _vectors(embeddings, "embeddings")
    items = queries if gallery is None else _vectors(gallery, "gallery")
    chosen = np.arange(len(queries)) if rows is None else np.asarray(rows, dtype=np.int64)
    most = len(items) - (1 if gallery is None else 0)
    if not 1 <= k <= most:
        raise ValueError(f"`1 <= k <= {most}` must hold, got {k=}.")
    parts = [f for _, f in _search(queries, items, chosen, k, exclude_self=gallery is None)]
    return Neighbours(
        np.concatenate([p.indices for p in parts]),
        np.concatenate([p.similarities for p in parts]),
    )


def _score(
    hits: NDArray[np.bool_], matches: NDArray[np.int64], ks: Sequence[int]
) -> NDArray[np.float64]:
    """Recall at each K, R-precision and MAP@R of each query, (queries, len(ks) + 2)."""
    places = np.arange(1, hits.shape[1] + 1)
    recalls = [hits[:, :k].any(axis=1) for k in ks]
    hits = hits[:, : int(matches.max())]
    places = places[: hits.shape[1]]
    relevant = hits & (places <= matches[:, None])
    found = relevant.cumsum(axis=1)
    precision = np.where(relevant, found / places, 0.0)
    return np.stack([*recalls, found[:, -1] / matches, precision.sum(axis=1) / matches], axis=1)


def _search(
    queries: _Vectors, items: _Vectors, rows: NDArray[np.int64], k: int, *, exclude_self: bool
) -> Iterator[tuple[NDArray[np.int64], Neighbours]]:
    """Blocks of query rows with their k nearest items."""
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
        yield chunk, Neighbours(found.cpu().numpy(), values.cpu().numpy())


def _ordered(
    queries: _Vectors,
    items: _Vectors,
    index: Tensor,
    similarities: Tensor,
    k: int,
    left_out: int,
) -> tuple[Tensor, Tensor]:
    """Indices and similarities of the k nearest, exactly ordered, from float32 similarities.

    Candidates further apart than the rounding of two float32 similarities are in the right order.
    Where neighbours are closer their similarities are computed again in float64.
    """
    n_items = similarities.shape[1] - left_out
    count = min(k + SPARE, n_items)
    coarse, found = _top(similarities, count)
    values = coarse.to(torch.float64)
    # Rounding errors add up like a random walk: one is below sqrt(D) / 2 units in the last place
    # of 1 and far below 4 sqrt(D), which leaves room for two of them and for unit lengths.
    margin = 8 * queries.raw.shape[1] ** 0.5 * 2.0**-24
    close = coarse[:, :-1] - coarse[:, 1:] <= margin
    unsure = torch.zeros_like(coarse, dtype=torch.bool)
    unsure[:, 1:] |= close
    unsure[:, :-1] |= close
    at, place = torch.nonzero(unsure, as_tuple=True)
    values[at, place] = _cosines(queries, items, index[at], found[at, place])
    rows = unsure.any(dim=1).nonzero()[:, 0]
    found[rows], values[rows] = _sorted(found[rows], values[rows])
    # A run of near-ties that reaches the last candidate may go on behind it.
    crowded = unsure[:, k - 1 :].all(dim=1).nonzero()[:, 0].tolist() if count < n_items else []
    for row in crowded:
        near = _crowd(similarities[row], k, float(coarse[row, k - 1]), margin)
        exact = _cosines(queries, items, index[row].expand(len(near)), near)
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


def _cosines(queries: _Vectors, items: _Vectors, rows: Tensor, columns: Tensor) -> Tensor:
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


def _top(similarities: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Values and columns of the `count` largest of each row, largest first.

    The largest `count` values lie in the `count` groups with the largest maxima. Group maxima cost
    one pass at memory speed and the selection then sees 1 / 64 of the columns, where `topk` over
    whole rows would cost more than the matrix product.
    """
    n_rows, n_columns = similarities.shape
    size = 64
    while size > 1 and count * size * 4 > n_columns:
        size //= 2
    if size < 4:
        top = similarities.topk(count, dim=1)
        return top.values, top.indices
    groups = n_columns // size  # group g holds columns g, g + groups, g + 2 groups, ...
    main = similarities[:, : groups * size].view(n_rows, size, groups)
    best = main.amax(dim=1).topk(count, dim=1, sorted=False).indices
    columns = (best[:, None, :] + groups * torch.arange(size, device=best.device)[:, None]).flatten(
        1
    )
    tail = torch.arange(groups * size, n_columns, device=best.device).expand(n_rows, -1)
    columns = torch.cat([columns, tail], dim=1)
    top = similarities.gather(1, columns).topk(count, dim=1)
    return top.values, columns.gather(1, top.indices)


def _vectors(vectors: ArrayLike | Tensor, name: str) -> _Vectors:
    if isinstance(vectors, Tensor):
        raw = vectors
    else:
        array = np.asarray(vectors)
        # torch has no read-only tensors; a memory map is copied, anything else is not.
        raw = torch.from_numpy(array if array.flags.writeable else array.copy())
    if raw.ndim != 2 or 0 in raw.shape:
        raise ValueError(f"`{name}` must be (N, D) and not empty, got {tuple(raw.shape)}.")
    raw = raw.detach()
    if raw.dtype != torch.float64:
        raw = raw.to(torch.float32)
    if not bool(torch.isfinite(raw).all()):
        raise ValueError(f"`{name}` must be finite, got NaN or infinity.")
    inverse = torch.empty(len(raw), dtype=torch.float64, device=raw.device)
    unit = torch.empty(raw.shape, dtype=torch.float32, device=raw.device)
    for start in range(0, len(raw), 4096):  # in parts: a float64 copy of all would be large
        part = raw[start : start + 4096].to(torch.float64)
        scale = 1 / part.square().sum(dim=1).sqrt().clamp_min(1e-30)
        inverse[start : start + 4096] = scale
        unit[start : start + 4096] = part * scale[:, None]
    return _Vectors(raw, inverse, unit)


def _ids(labels: ArrayLike | Tensor, name: str) -> NDArray[np.int64]:
    array = labels.detach().cpu().numpy() if isinstance(labels, Tensor) else np.asarray(labels)
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise ValueError(f"`{name}` must be integers (N,), got {array.dtype} {array.shape}.")
    return array.astype(np.int64)


def _same_length(vectors: _Vectors, ids: NDArray[np.int64], name: str, ids_name: str) -> None:
    if len(vectors) != len(ids):
        raise ValueError(
            f"`{name}` and `{ids_name}` must be equally many, got {len(vectors)} and {len(ids)}."
        )


def _check_ks(ks: Sequence[int]) -> None:
    if not ks or min(ks) < 1 or len(set(ks)) != len(ks):
        raise ValueError(f"`ks` must be distinct and at least 1, got {tuple(ks)}.")


def _count_in(values: NDArray[np.int64], among: NDArray[np.int64]) -> NDArray[np.int64]:
    """How often each value occurs in `among`."""
    classes, counts = np.unique(among, return_counts=True)
    at = np.searchsorted(classes, values).clip(max=len(classes) - 1)
    return np.where(classes[at] == values, counts[at], 0)


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

    vectors, ids = _vectors(embeddings, "embeddings"), _ids(labels, "labels")
    _same_length(vectors, ids, "embeddings", "labels")
    points = vectors.unit.cpu().numpy()
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
