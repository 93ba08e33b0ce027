"""Reference implementations of retrieval metrics, and embeddings that are hard to rank."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

KS = (1, 2, 4, 8, 40, 100)
"""Values of K; the last two are longer than the lists of neighbours."""

CONTINUOUS_KINDS = ("gaussian", "mixed")
KINDS = ("plain", *CONTINUOUS_KINDS, "ties", "duplicates", "lone classes", "collapsed")


def make_embeddings(kind: str, seed: int) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return random embeddings and labels of one of `KINDS`.

    Components are +-1/sqrt(D) with D a power of 4, so that lengths, dot products and distances are
    exact in float32 and the reference library ranks neighbours correctly; few dimensions give many
    ties. "gaussian" and "mixed" are continuous instead, the latter with copies, multiples of copies
    and classes of one item.
    """
    rng = np.random.default_rng(seed)
    n, dim = int(rng.integers(30, 400)), 4 if kind == "ties" else 4 ** int(rng.integers(3, 6))
    labels = rng.integers(0, int(rng.integers(3, 40)), n) + 2**40
    x = rng.choice(np.array([-1, 1], dtype=np.float32), size=(n, dim)) / np.float32(dim**0.5)
    if kind in CONTINUOUS_KINDS:
        x = rng.normal(size=(n, 12)).astype(np.float32)
    if kind in ("duplicates", "mixed"):
        x[rng.integers(0, n, n // 2)] = x[rng.integers(0, n, n // 2)]
    if kind == "mixed":
        x[::5] *= 4.0
    if kind in ("lone classes", "mixed"):
        labels[: n // 4] = np.arange(n // 4)
    if kind == "collapsed":
        x[:] = x[0]
    return x, labels


def make_close_embeddings(
    n: int, spread: float, outliers: int
) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return embeddings close to one direction, except the first `outliers`, in 40 classes."""
    rng = np.random.default_rng(7)
    labels = np.arange(n) % 40
    x = rng.normal(size=64) + spread * rng.normal(size=(40, 64))[labels]
    x += 0.3 * spread * rng.normal(size=x.shape)
    x[:outliers] = rng.normal(size=(outliers, 64))
    return x.astype(np.float32), labels


def make_few_large_classes(n: int) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return embeddings of two classes, so that lists of neighbours are long."""
    rng = np.random.default_rng(4)
    labels = rng.integers(0, 2, n)
    return (rng.normal(size=(n, 8)) + 0.5 * labels[:, None]).astype(np.float32), labels


def evaluate_by_brute_force(
    queries: NDArray[Any],
    labels: NDArray[Any],
    items: NDArray[Any] | None = None,
    item_labels: NDArray[Any] | None = None,
) -> dict[str, float]:
    """Return the metrics of `evaluate` for `KS` from float64 sorts of all items."""
    x = _normalise(queries)
    z = x if items is None else _normalise(items)
    z_labels = labels if item_labels is None else item_labels
    rows = []
    for i in range(len(x)):
        order = rank_items(x[i], z)
        if items is None:
            order = order[order != i]
        hits = z_labels[order] == labels[i]
        r = int(hits.sum())
        if r == 0:
            continue
        average = sum(hits[:p].sum() / p for p in range(1, r + 1) if hits[p - 1]) / r
        rows.append([*(float(hits[:k].any()) for k in KS), hits[:r].sum() / r, average])
    names = [*(f"recall_at_{k}" for k in KS), "r_precision", "map_at_r"]
    return dict(zip(names, np.mean(rows, axis=0).tolist(), strict=True))


def rank_items(query: NDArray[Any], items: NDArray[Any]) -> NDArray[Any]:
    """Return all items, nearest first; cosines closer than 2^-44 are ties, lower index first."""
    cosines = (items * query).sum(axis=1)
    return np.argsort(-np.round(cosines * 2.0**44), kind="stable")


def evaluate_with_pml(
    queries: NDArray[Any], labels: NDArray[Any], *gallery: Any, exact: bool = False
) -> dict[str, float]:
    """Return metrics of pytorch-metric-learning, with its own float32 search or an exact one.

    Args:
        queries: Embeddings.
        labels: Their classes.
        gallery: Embeddings and classes of the gallery, if any.
        exact: Whether neighbours are ranked by `rank_items` in float64.
    """
    from pytorch_metric_learning.utils.accuracy_calculator import AccuracyCalculator

    calculator = AccuracyCalculator(
        include=("precision_at_1", "r_precision", "mean_average_precision_at_r"),
        k="max_bin_count",  # with None it would compare all with all
        device=torch.device("cpu"),
        knn_func=_search_exactly if exact else None,
    )
    arguments = [queries, labels, *gallery]
    for i in range(0, len(arguments), 2):  # the library does not normalise
        arguments[i] = _normalise(arguments[i]).astype(np.float64 if exact else np.float32)
    # The library casts labels to float32, where ids above 2**24 collide, so they are renumbered.
    ids = np.unique(np.concatenate(arguments[1::2]), return_inverse=True)[1]
    arguments[1::2] = np.split(ids, np.cumsum([len(a) for a in arguments[1::2]])[:-1])
    scores = calculator.get_accuracy(*[torch.from_numpy(a) for a in arguments])
    return {
        "recall_at_1": scores["precision_at_1"],
        "r_precision": scores["r_precision"],
        "map_at_r": scores["mean_average_precision_at_r"],
    }


def _search_exactly(
    query: torch.Tensor, k: int, reference: torch.Tensor, ref_includes_query: bool = False
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return distances, which the library ignores, and the k nearest items without the query."""
    nearest = []
    for i, row in enumerate(query.numpy()):
        order = rank_items(row, reference.numpy())
        nearest.append(order[order != i][:k] if ref_includes_query else order[:k])
    indices = torch.from_numpy(np.stack(nearest))
    return torch.zeros(indices.shape), indices


def _normalise(x: NDArray[Any]) -> NDArray[Any]:
    x = x.astype(np.float64)
    unit: NDArray[Any] = x / np.linalg.norm(x, axis=1, keepdims=True)
    return unit
