"""faiss on CPUs: the largest products, k-means, threads, and the kernels that it loads."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from trainables.retrieval.faiss_search import (
    OPENBLAS_CORE_TYPES,
    cluster_points,
    find_largest_products,
)


@pytest.mark.parametrize("n_queries", [1, 19, 20, 300])
@pytest.mark.parametrize("count", [1, 7, 120, 200])
def test_the_largest_products_are_found_in_order(n_queries: int, count: int) -> None:
    """faiss uses another algorithm below 20 queries and from 100 results on."""
    generator = torch.Generator().manual_seed(0)
    queries, items = (torch.randn(n, 16, generator=generator) for n in (n_queries, 200))
    values, columns = find_largest_products(queries, items, count)
    products = queries @ items.T
    expected = products.topk(count, dim=1)
    assert values.shape == columns.shape == (n_queries, count)
    assert torch.allclose(values, expected.values, atol=1e-5)
    assert torch.allclose(products.gather(1, columns), values, atol=1e-5)
    assert (values[:, :-1] >= values[:, 1:]).all()


def test_inputs_that_are_not_contiguous() -> None:
    x = torch.randn(40, 2, 8, generator=torch.Generator().manual_seed(0))
    columns = find_largest_products(x[:, 0], x[:, 1], 3)[1]
    assert torch.equal(columns, (x[:, 0] @ x[:, 1].T).topk(3, dim=1).indices)


def test_clear_clusters_are_found() -> None:
    labels = np.repeat(np.arange(5), 8)
    noise = np.random.default_rng(0).normal(scale=0.01, size=(40, 5))
    points = (np.eye(5)[labels] + noise).astype(np.float32)
    clusters = cluster_points(points, 5, seed=1)
    assert clusters.shape == (40,)
    # Each cluster lies within a class or joins whole classes, whatever the initial centres are.
    assert all(len(set(clusters[labels == label])) <= 4 for label in range(5))
    assert np.array_equal(clusters, cluster_points(points, 5, seed=1))


SCRIPT = """
import os, sys, torch
from threadpoolctl import threadpool_info
from trainables.retrieval import faiss_search
torch.set_num_threads(1)
environment = dict(os.environ)
faiss_search.find_largest_products(torch.ones(30, 4), torch.ones(50, 4), 2)
assert dict(os.environ) == environment
import faiss
assert faiss.omp_get_max_threads() == 1
kernels = [i["architecture"] for i in threadpool_info() if "faiss_cpu" in i["filepath"]
           and i["internal_api"] == "openblas"]
print(torch.backends.cpu.get_cpu_capability(), *kernels)
"""


@pytest.mark.slow
@pytest.mark.parametrize("chosen", [None, "Nehalem"])
def test_faiss_is_imported_with_kernels_for_the_processor(chosen: str | None) -> None:
    """Unless the user chose the kernels; the environment stays as it was."""
    environment = {k: v for k, v in os.environ.items() if k != "OPENBLAS_CORETYPE"}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[3],
        env=environment | ({"OPENBLAS_CORETYPE": chosen} if chosen else {}),
    )
    assert done.returncode == 0, done.stderr
    capability, *kernels = done.stdout.split()
    if not kernels or capability not in OPENBLAS_CORE_TYPES:
        pytest.skip("faiss does not bring its own OpenBLAS here, or the processor is not x86-64")
    assert kernels == [chosen or OPENBLAS_CORE_TYPES[capability]]
