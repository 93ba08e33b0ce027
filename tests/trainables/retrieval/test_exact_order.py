"""Exact order: known cosines, ties by index, and near-ties that float32 cannot tell apart."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from trainables.retrieval import exact_order
from trainables.retrieval.exact_order import (
    compute_pair_cosines,
    compute_query_cosines,
    find_near_ties,
    order_candidates,
    resolve_ties,
)
from trainables.retrieval.neighbours import find_neighbours
from trainables.retrieval.vectors import COSINE_TIE_STEP, make_vector_set

pytestmark = pytest.mark.split


def test_pair_cosines_are_multiples_of_the_tie_step() -> None:
    queries = make_vector_set(np.array([[1.0, 0.0], [2.0, 2.0]]), "q")
    items = make_vector_set(np.array([[3.0, 0.0], [0.0, 5.0], [-1.0, -1.0]]), "i")
    rows, columns = torch.tensor([0, 0, 1, 1]), torch.tensor([0, 1, 0, 2])
    cosines = compute_pair_cosines(queries, items, rows, columns)
    assert cosines.tolist() == pytest.approx([1.0, 0.0, 0.5**0.5, -1.0], abs=COSINE_TIE_STEP)
    steps = cosines / COSINE_TIE_STEP
    assert torch.equal(steps, steps.round())


def test_equal_items_are_compared_once(monkeypatch: pytest.MonkeyPatch) -> None:
    x = np.random.default_rng(0).normal(size=(6, 8))[np.arange(60) % 6]
    vectors = make_vector_set(x, "x")
    row, columns = torch.tensor(3), torch.arange(60)
    expected = compute_pair_cosines(vectors, vectors, row.expand(60), columns)
    compared = []
    compute = exact_order.compute_pair_cosines

    def count_pairs(*arguments: object) -> torch.Tensor:
        compared.append(len(arguments[3]))  # type: ignore[arg-type]
        return compute(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(exact_order, "compute_pair_cosines", count_pairs)
    monkeypatch.setattr(exact_order, "MAX_PAIRWISE_TIES", 10)
    assert torch.equal(compute_query_cosines(vectors, vectors, row, columns), expected)
    assert compared == [6]


def test_near_ties_have_a_close_neighbour_in_their_row() -> None:
    values = torch.tensor([[5.0, 4.0, 3.9, 3.0, 2.95, 2.9], [6.0, 5.0, 4.0, 3.0, 2.0, 1.0]])
    assert find_near_ties(values, 0.11).tolist() == [
        [False, True, True, True, True, True],
        [False] * 6,
    ]


def test_a_run_of_near_ties_at_the_end_is_reported() -> None:
    vectors = make_vector_set(np.eye(6), "x")
    candidates = torch.tensor([[1, 2, 3, 4], [2, 3, 4, 5]])
    values = torch.tensor([[0.9, 0.8, 0.0, 0.0], [0.9, 0.8, 0.7, 0.6]], dtype=torch.float64)
    unsure = torch.tensor([[False, True, True, True], [False, False, False, False]])
    _, _, crowded = resolve_ties(
        vectors, vectors, torch.tensor([0, 1]), unsure, candidates, values, k=2, n_items=5
    )
    assert crowded.tolist() == [0]


@pytest.mark.parametrize("ratio", [exact_order.EXACT_PAIR_COST_RATIO, 10**9])
def test_candidates_in_the_wrong_order_are_sorted(
    ratio: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By pairs, or from float64 products of all items where near-ties are many."""
    monkeypatch.setattr(exact_order, "EXACT_PAIR_COST_RATIO", ratio)
    angles = np.array([0.0, 3e-9, 1e-9, 2e-9, 1.0, 2.0])
    items = make_vector_set(np.stack([np.cos(angles), np.sin(angles)], axis=1), "x")
    query = make_vector_set(np.array([[0.0, 1.0]]), "q")
    offsets = query.normalise_rows(slice(None)) @ items.mean_unit_vector
    candidates = torch.tensor([[4, 5, 0, 1, 2, 3]])
    coarse = (query.raw.float() @ items.centred_vectors.T).gather(1, candidates)
    nearest, cosines = order_candidates(
        query, items, torch.tensor([0]), coarse, candidates, offsets, 5, exclude_self=False
    )
    assert nearest.tolist() == [[5, 4, 1, 3, 2]]
    assert cosines[0].tolist() == pytest.approx(np.sin(angles[[5, 4, 1, 3, 2]]), abs=1e-7)


def test_near_ties_beyond_float32_are_ordered_in_float64() -> None:
    # Items whose cosines differ by 1e-12: float32 cannot tell them apart.
    angles = 0.5 + 1e-12 * np.random.default_rng(0).permutation(4000)
    items = np.stack([np.cos(angles), np.sin(angles)], axis=1)
    far = np.tile([[-1.0, 0.0]], (100, 1))
    gallery = np.concatenate([far, items[:300]])
    found = find_neighbours(np.array([[1.0, 0.0]]), k=5, gallery=gallery)
    assert found.indices[0].tolist() == (100 + np.argsort(angles[:300])[:5]).tolist()


def test_parallel_vectors_of_different_length_tie() -> None:
    rng = np.random.default_rng(1)
    direction = rng.integers(-50, 50, size=12)
    gallery = direction * np.arange(1, 40)[:, None].astype(np.float32)
    found = find_neighbours(
        rng.integers(-50, 50, size=(20, 12)).astype(np.float32), k=5, gallery=gallery
    )
    assert (found.indices == np.arange(5)).all()


def test_a_crowd_of_equal_vectors_is_ordered_by_index() -> None:
    x = np.ones((1000, 8), dtype=np.float32)
    x[:3] = np.eye(8)[:3]
    for k in (5, 700):
        assert find_neighbours(x, k=k).indices[999].tolist() == list(range(3, 3 + k))
