"""Neighbours from half of the products are the neighbours from all of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.support.retrieval_oracles import (
    KINDS,
    evaluate_by_brute_force,
    make_close_embeddings,
    make_embeddings,
)
from trainables.retrieval import block_sizes, neighbours, symmetric_search
from trainables.retrieval.metrics import evaluate
from trainables.retrieval.vectors import VectorSet, make_vector_set

KS = (1, 2, 4, 8)


@pytest.mark.parametrize("rows_in_a_block", [1, 7, 60, 5000])
@pytest.mark.parametrize("kind", KINDS)
def test_finds_what_the_search_over_all_products_finds(
    kind: str, rows_in_a_block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, _ = make_embeddings(kind, 11)
    x = np.concatenate([x, x + np.random.default_rng(0).normal(scale=1e-7, size=x.shape)])
    given = make_vector_set(x, "embeddings")
    rows = np.flatnonzero(np.random.default_rng(1).random(len(x)) < 0.8)
    full = list(neighbours.search_in_blocks(given, given, rows, 9, exclude_self=True))
    monkeypatch.setattr(block_sizes, "BLOCK_BYTES", 4 * len(x) * rows_in_a_block)
    monkeypatch.setattr(symmetric_search, "STRIP_COLUMNS", 50)
    half = list(symmetric_search.search_symmetrically(given, rows, 9))
    assert np.array_equal(np.concatenate([part.rows for part in half]), rows)
    found = np.concatenate([part.indices for part in half])
    assert np.array_equal(found, np.concatenate([part.indices for part in full]))
    similarities = np.concatenate([part.cosines for part in half])
    expected = np.concatenate([part.cosines for part in full])
    assert np.allclose(similarities, expected, atol=1e-6)


@pytest.mark.parametrize("outliers", [0, 40])
def test_scores_are_those_of_a_brute_force(outliers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    x, labels = make_close_embeddings(1200, 1.4e-3, outliers)
    calls = []
    search = symmetric_search.search_symmetrically

    def count_calls(*arguments: Any) -> Any:
        calls.append(arguments)
        return search(*arguments)

    monkeypatch.setattr(symmetric_search, "MIN_PRODUCTS_PER_CANDIDATE", 0)
    monkeypatch.setattr("trainables.retrieval.metrics.search_symmetrically", count_calls)
    scores = evaluate(x, labels, ks=KS)
    assert calls
    expected = evaluate_by_brute_force(x, labels)
    assert scores == pytest.approx({name: expected[name] for name in scores}, abs=1e-9)


def test_items_that_all_enter_every_list_are_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Each item is nearer to all that follow than the items before it: each enters every list.
    angles = np.linspace(0, 3, 900) ** 2 / 9
    x = np.stack([np.cos(angles), np.sin(angles)], axis=1)
    given = make_vector_set(x, "embeddings")
    monkeypatch.setattr(block_sizes, "BLOCK_BYTES", 4 * len(x) * 100)
    rows = np.arange(len(x))
    half = np.concatenate(
        [p.indices for p in symmetric_search.search_symmetrically(given, rows, 5)]
    )
    assert np.array_equal(half, neighbours.find_neighbours(x, k=5).indices)


def test_is_used_for_many_items_and_short_lists_only() -> None:
    def items(size: int) -> VectorSet:
        return make_vector_set(np.ones((size, 16), dtype=np.float32), "embeddings")

    large, small = items(300_000), items(2_000)
    assert symmetric_search.is_symmetric_search_faster(large, 300_000, 8)
    assert not symmetric_search.is_symmetric_search_faster(large, 100_000, 8), (
        "most items are not queries"
    )
    assert not symmetric_search.is_symmetric_search_faster(large, 300_000, 2_000), (
        "the lists would be large"
    )
    assert not symmetric_search.is_symmetric_search_faster(small, 2_000, 8)
