"""Nearest neighbours: faiss and torch give the same, in blocks of any size and bounded memory."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from tests.support.retrieval_oracles import KINDS, make_embeddings
from trainables.retrieval import block_sizes, faiss_search, neighbours
from trainables.retrieval.exact_order import N_SPARE_CANDIDATES
from trainables.retrieval.neighbours import (
    NearestNeighbours,
    find_neighbours,
    is_faiss_faster,
    search_in_blocks,
    search_with_similarities,
)
from trainables.retrieval.vectors import make_vector_set


def join(blocks: Any) -> NearestNeighbours:
    parts = [(block.indices, block.cosines) for block in blocks]
    return NearestNeighbours(*(np.concatenate(part) for part in zip(*parts, strict=True)))


@pytest.mark.parametrize("exclude_self", [True, False])
@pytest.mark.parametrize("kind", [*KINDS, "close"])
def test_faiss_and_torch_find_the_same_neighbours(
    kind: str, exclude_self: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(0)
    if kind == "close":
        x = rng.normal(size=24) + 1e-5 * rng.normal(size=(500, 24))
    else:
        x, _ = make_embeddings(kind, 11)
        x = np.concatenate([x] * 4) + rng.normal(scale=1e-7, size=(4 * len(x), x.shape[1]))
    vectors, rows = make_vector_set(x, "x"), np.flatnonzero(rng.random(len(x)) < 0.8)
    monkeypatch.setattr(neighbours, "MIN_ITEMS_PER_CANDIDATE", 0)
    monkeypatch.setattr(faiss_search, "QUERY_ROWS", 100)
    by_faiss = join(search_in_blocks(vectors, vectors, rows, 9, exclude_self=exclude_self))
    by_torch = join(search_with_similarities(vectors, vectors, rows, 9, exclude_self=exclude_self))
    assert np.array_equal(by_faiss.indices, by_torch.indices)
    assert np.allclose(by_faiss.similarities, by_torch.similarities, atol=1e-6)
    assert (not exclude_self) or not (by_faiss.indices == rows[:, None]).any()


def test_faiss_searches_on_cpus_unless_lists_are_long(monkeypatch: pytest.MonkeyPatch) -> None:
    items = make_vector_set(np.random.default_rng(0).normal(size=(400, 6)), "x")
    assert is_faiss_faster(items, 8)
    assert not is_faiss_faster(items, 40)
    calls = []
    search = faiss_search.find_largest_products

    def count_calls(*arguments: Any) -> Any:
        calls.append(arguments[2])
        return search(*arguments)

    monkeypatch.setattr(faiss_search, "find_largest_products", count_calls)
    for k in (8, 40):
        find_neighbours(items.raw, k=k)
    assert calls == [8 + N_SPARE_CANDIDATES + 1]  # one more, for the query itself


def test_other_devices_are_searched_with_torch() -> None:
    items = make_vector_set(np.ones((400, 6)), "x")
    elsewhere = type(items)(items.raw.to("meta"), items.inverse_norms)
    assert not is_faiss_faster(elsewhere, 8)


def test_as_many_threads_as_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    import faiss

    x = np.random.default_rng(0).normal(size=(300, 8))
    before = torch.get_num_threads()
    try:
        for n_threads in (2, 1):
            torch.set_num_threads(n_threads)
            find_neighbours(x, k=3)
            assert faiss.omp_get_max_threads() == n_threads
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("kind", KINDS)
def test_blocks_change_nothing(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(5)
    x, _ = make_embeddings(kind, 11)
    x = np.concatenate([x] * 4) + rng.normal(scale=1e-7, size=(4 * len(x), x.shape[1]))
    expected = {k: find_neighbours(x, k=k).indices for k in (4, 60)}
    monkeypatch.setattr(block_sizes, "BLOCK_BYTES", 4 * len(x) * 7)
    monkeypatch.setattr(faiss_search, "QUERY_ROWS", 13)
    for k, indices in expected.items():
        assert np.array_equal(find_neighbours(x, k=k).indices, indices)


def test_large_k_equals_a_full_sort() -> None:
    rng = np.random.default_rng(2)
    x = rng.normal(size=(3000, 16)).astype(np.float32)
    z = (x / np.linalg.norm(x, axis=1, keepdims=True)).astype(np.float64)
    for k in (1, 9, 100, 2000, 2999):
        found = find_neighbours(x, k=k, rows=[0, 5, 2999])
        for row, indices in zip([0, 5, 2999], found.indices, strict=True):
            order = np.argsort(-(z @ z[row]), kind="stable")
            assert indices.tolist() == order[order != row][:k].tolist()


def test_all_products_are_those_with_the_centred_items() -> None:
    x = np.random.default_rng(3).normal(size=(50, 4)) + 1
    vectors = make_vector_set(x, "x")
    (block,) = search_with_similarities(vectors, vectors, np.arange(50), 3, exclude_self=True)
    unit = vectors.normalise_rows(slice(None))
    cosines = block.similarities.double() + block.offsets[:, None]
    assert (cosines.diagonal() == -torch.inf).all()
    others = ~torch.eye(50, dtype=torch.bool)
    assert torch.allclose(cosines[others], (unit @ unit.T)[others], atol=1e-6)


@pytest.mark.parametrize("k", [0, 3])
def test_k_is_limited_by_the_gallery(k: int) -> None:
    with pytest.raises(ValueError, match=f"`1 <= k <= 2` must hold, got k={k}"):
        find_neighbours(np.eye(3), k=k)
    assert find_neighbours(np.eye(3), k=3, gallery=np.eye(3)).indices[1].tolist() == [1, 0, 2]
