"""Neighbours from half the products are the neighbours from all of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.trainables.test_retrieval import KINDS, brute_force, concentrated, make
from trainables import neighbours, within
from trainables.retrieval import evaluate
from trainables.vectors import Vectors, vectors

KS = (1, 2, 4, 8)


@pytest.mark.parametrize("rows_in_a_block", [1, 7, 60, 5000])
@pytest.mark.parametrize("kind", KINDS)
def test_finds_what_the_search_over_whole_rows_finds(
    kind: str, rows_in_a_block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, _ = make(kind, 11)
    x = np.concatenate([x, x + np.random.default_rng(0).normal(scale=1e-7, size=x.shape)])
    given = vectors(x, "embeddings")
    rows = np.flatnonzero(np.random.default_rng(1).random(len(x)) < 0.8)
    whole = list(neighbours.search(given, given, rows, 9, exclude_self=True))
    monkeypatch.setattr(neighbours, "BLOCK_BYTES", 4 * len(x) * rows_in_a_block)
    monkeypatch.setattr(within, "STRIP", 50)
    half = list(within.search_within(given, rows, 9))
    assert np.array_equal(np.concatenate([part.rows for part in half]), rows)
    found = np.concatenate([part.found.indices for part in half])
    assert np.array_equal(found, np.concatenate([part.found.indices for part in whole]))
    similarities = np.concatenate([part.found.similarities for part in half])
    expected = np.concatenate([part.found.similarities for part in whole])
    assert np.allclose(similarities, expected, atol=1e-6)


@pytest.mark.parametrize("outliers", [0, 40])
def test_scores_are_those_of_a_brute_force(outliers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    x, labels = concentrated(1200, 1.4e-3, outliers)
    used = []
    search = within.search_within

    def noted(*arguments: Any) -> Any:
        used.append(arguments)
        return search(*arguments)

    monkeypatch.setattr(within, "WORTH", 0)
    monkeypatch.setattr("trainables.retrieval.search_within", noted)
    scores = evaluate(x, labels, ks=KS)
    assert used
    expected = brute_force(x, labels)
    assert scores == pytest.approx({name: expected[name] for name in scores}, abs=1e-9)


def test_items_that_all_enter_every_list_are_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Every next item is nearer to all that follow: each enters every list.
    angles = np.linspace(0, 3, 900) ** 2 / 9
    x = np.stack([np.cos(angles), np.sin(angles)], axis=1)
    given = vectors(x, "embeddings")
    monkeypatch.setattr(neighbours, "BLOCK_BYTES", 4 * len(x) * 100)
    rows = np.arange(len(x))
    half = np.concatenate([p.found.indices for p in within.search_within(given, rows, 5)])
    assert np.array_equal(half, neighbours.nearest(x, k=5).indices)


def test_pays_for_many_items_and_short_lists_only() -> None:
    def items(size: int) -> Vectors:
        return vectors(np.ones((size, 16), dtype=np.float32), "embeddings")

    large, small = items(300_000), items(2_000)
    assert within.pays(large, 300_000, 8)
    assert not within.pays(large, 100_000, 8), "most rows are not asked for"
    assert not within.pays(large, 300_000, 2_000), "the lists would be large"
    assert not within.pays(small, 2_000, 8)
