"""The faiss library on CPUs: largest inner products and k-means.

This is the only module that imports faiss. Both functions use as many threads as torch.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from types import ModuleType

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

OPENBLAS_CORE_TYPES = {"AVX512": "SkylakeX", "AVX2": "Haswell"}
"""OpenBLAS kernels by the instruction set that torch detects."""

QUERY_ROWS = 4096
"""Queries that faiss multiplies with the items at a time (`distance_compute_blas_query_bs`)."""

KMEANS_ITERATIONS = 20


def find_largest_products(queries: Tensor, items: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Return values and columns of the `count` largest products of each query with the items.

    Both results are (queries, count), largest first. The products are float32, so their last digits
    depend on the processor and on the number of threads.

    Args:
        queries: (N, D), float32, on the CPU.
        items: (M, D), float32, on the CPU; not copied.
        count: At most M.
    """
    faiss = _import_faiss()
    faiss.omp_set_num_threads(torch.get_num_threads())
    values, columns = faiss.knn(
        queries.numpy(), items.numpy(), count, metric=faiss.METRIC_INNER_PRODUCT
    )
    return torch.from_numpy(values), torch.from_numpy(columns)


def cluster_points(points: NDArray[np.float32], n_clusters: int, seed: int) -> NDArray[np.int64]:
    """Return the k-means cluster of each point.

    Args:
        points: (N, D).
        n_clusters: Number of clusters, at most N.
        seed: Seed of the initial centres.
    """
    faiss = _import_faiss()
    faiss.omp_set_num_threads(torch.get_num_threads())
    means = faiss.Kmeans(
        points.shape[1],
        n_clusters,
        niter=KMEANS_ITERATIONS,
        seed=seed,
        min_points_per_centroid=1,  # classes are small; the default of 39 only adds a warning
        max_points_per_centroid=len(points),  # no subsampling
    )
    means.train(points)
    clusters: NDArray[np.int64] = means.index.search(points, 1)[1][:, 0]
    return clusters


@cache
def _import_faiss() -> ModuleType:
    """Import faiss with BLAS kernels that suit the processor.

    The wheels of faiss contain OpenBLAS 0.3.15, which does not recognise Intel processors since
    2021 and then uses SSE3 kernels, five times slower than AVX-512. OpenBLAS reads the variable
    once, when it is loaded; a value that the user set has precedence.
    """
    core_type = OPENBLAS_CORE_TYPES.get(torch.backends.cpu.get_cpu_capability())
    with _default_environment("OPENBLAS_CORETYPE", core_type):
        import faiss
    return faiss


@contextmanager
def _default_environment(name: str, value: str | None) -> Iterator[None]:
    """Set an environment variable for a while, unless it is already set or `value` is None."""
    if value is None or name in os.environ:
        yield
        return
    os.environ[name] = value
    try:
        yield
    finally:
        del os.environ[name]
