"""Retrieval metrics against a brute force and against pytorch-metric-learning."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.support.retrieval_oracles import (
    CONTINUOUS_KINDS,
    KINDS,
    KS,
    evaluate_by_brute_force,
    evaluate_with_pml,
    make_close_embeddings,
    make_embeddings,
    make_few_large_classes,
)
from trainables.retrieval import block_sizes, exact_order, faiss_search, neighbours
from trainables.retrieval.metrics import compute_nmi, evaluate


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(4))
def test_agrees_with_brute_force_and_pml(kind: str, seed: int) -> None:
    x, labels = make_embeddings(kind, seed)
    ours = evaluate(x, labels, ks=KS)
    assert ours == pytest.approx(evaluate_by_brute_force(x, labels), abs=1e-9)
    # The library's own search swaps near neighbours of continuous data, because its distances are
    # float32. It is compared where they are exact, and everywhere with neighbours in float64.
    for exact in (True, False) if kind not in CONTINUOUS_KINDS else (True,):
        for name, value in evaluate_with_pml(x, labels, exact=exact).items():
            assert ours[name] == pytest.approx(value, abs=1e-9), name


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(4))
def test_query_and_gallery_agree_with_brute_force_and_evaluate_with_pml(
    kind: str, seed: int
) -> None:
    x, labels = make_embeddings(kind, seed)
    cut = len(x) // 3
    ours = evaluate(x[:cut], labels[:cut], ks=KS, gallery=x[cut:], gallery_labels=labels[cut:])
    expected = evaluate_by_brute_force(x[:cut], labels[:cut], x[cut:], labels[cut:])
    assert ours == pytest.approx(expected, abs=1e-9)
    for exact in (True, False) if kind not in CONTINUOUS_KINDS else (True,):
        scores = evaluate_with_pml(x[:cut], labels[:cut], x[cut:], labels[cut:], exact=exact)
        for name, value in scores.items():
            assert ours[name] == pytest.approx(value, abs=1e-9), name


@pytest.mark.parametrize("kind", KINDS)
def test_blocks_change_nothing(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(5)
    x, labels = make_embeddings(kind, 11)
    x = np.concatenate([x] * 4) + rng.normal(scale=1e-7, size=(4 * len(x), x.shape[1]))
    labels = np.concatenate([labels] * 4)
    expected = {ks: evaluate(x, labels, ks=ks) for ks in ((1, 8), (1, 8, 100))}
    monkeypatch.setattr(block_sizes, "BLOCK_BYTES", 4 * len(x) * 7)
    monkeypatch.setattr(faiss_search, "QUERY_ROWS", 13)
    for ks, scores in expected.items():
        assert evaluate(x, labels, ks=ks) == pytest.approx(scores, abs=1e-12)


@pytest.mark.parametrize("kind", KINDS)
def test_faiss_and_torch_give_the_same_metrics(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    x, labels = make_embeddings(kind, 3)
    cut, scores = len(x) // 3, []
    for least in (0, 10**9):  # always faiss, always torch
        monkeypatch.setattr(neighbours, "MIN_ITEMS_PER_CANDIDATE", least)
        split = evaluate(x[:cut], labels[:cut], gallery=x[cut:], gallery_labels=labels[cut:])
        scores.append((evaluate(x, labels), split))
    assert scores[0] == scores[1]


def test_exact_in_two_dimensions_where_float32_is_not() -> None:
    rng = np.random.default_rng(3)
    x, labels = rng.normal(size=(1500, 2)), rng.integers(0, 30, 1500)
    assert evaluate(x, labels, ks=KS) == pytest.approx(evaluate_by_brute_force(x, labels), abs=1e-9)


@pytest.mark.parametrize("outliers", [0, 40])
def test_exact_however_close_all_embeddings_are(outliers: int) -> None:
    # The mean cosine is 0.999998; float32 cosines cannot order such neighbours.
    x, labels = make_close_embeddings(1200, 1.4e-3, outliers)
    expected = evaluate_by_brute_force(x, labels)
    assert expected["recall_at_1"] > 0.9
    assert evaluate(x, labels, ks=KS) == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("kind", ["close", "close but some", "close queries"])
def test_few_pairs_are_compared_however_close_embeddings_are(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A pair costs as much as dozens of products: evaluating a collapsed trial would take hours.
    x, labels = make_close_embeddings(1200, 1.4e-3, 40 if kind == "close but some" else 0)
    compared = 0
    compute = exact_order.compute_pair_cosines

    def count_pairs(*arguments: Any) -> Any:
        nonlocal compared
        compared += len(arguments[2])
        return compute(*arguments)

    monkeypatch.setattr(exact_order, "compute_pair_cosines", count_pairs)
    if kind == "close queries":
        x, more, labels, more_labels = x[:600], x[600:], labels[:600], labels[600:]
        scores = evaluate(x, labels, ks=KS, gallery=more, gallery_labels=more_labels)
        expected = evaluate_by_brute_force(x, labels, more, more_labels)
    else:
        scores, expected = evaluate(x, labels, ks=KS), evaluate_by_brute_force(x, labels)
    assert scores == pytest.approx(expected, abs=1e-9)
    assert compared < 50 * len(x)  # some candidates of each query, never all


def test_a_crowd_of_equal_vectors_is_scored_by_index() -> None:
    x, labels = np.ones((1000, 8), dtype=np.float32), np.arange(1000) % 20
    x[:3] = np.eye(8)[:3]
    assert evaluate(x, labels, ks=KS) == pytest.approx(evaluate_by_brute_force(x, labels), abs=1e-9)


def test_labels_beyond_float32_do_not_collide() -> None:
    # 2**24 and 2**24 + 1 are the same number in float32; the right answer here is 0.
    x = np.array([[1, 0], [1, 0.01], [0, 1], [0.01, 1]], dtype=np.float32)
    labels = np.array([2**24, 2**24 + 1, 2**24, 2**24 + 1])
    assert evaluate(x, labels, ks=(1,))["recall_at_1"] == 0.0


def test_recall_beyond_the_gallery_and_tensors() -> None:
    x = torch.tensor([[1.0, 0.0], [0.9, 0.1], [0.0, 1.0]], requires_grad=True)
    scores = evaluate(x, torch.tensor([0, 1, 0]), ks=(1, 100))
    assert scores["recall_at_1"] == 0.0
    assert scores["recall_at_100"] == 1.0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"embeddings": np.ones((3, 2)), "labels": np.arange(3)}, "no query has another item"),
        ({"embeddings": np.ones((3, 2)), "labels": np.zeros(2, int)}, "got 3 and 2"),
        ({"embeddings": np.ones((3, 2)), "labels": np.zeros(3)}, "must be integers"),
        ({"embeddings": np.full((3, 2), np.nan), "labels": np.zeros(3, int)}, "must be finite"),
        ({"embeddings": np.ones(3), "labels": np.zeros(3, int)}, "must be \\(N, D\\)"),
        (
            {"embeddings": np.ones((3, 2)), "labels": np.zeros(3, int), "ks": (0,)},
            "integers from 1",
        ),
        ({"embeddings": np.ones((3, 2)), "labels": np.zeros(3, int), "ks": (1.5,)}, "integers"),
        ({"embeddings": np.ones((3, 2)), "labels": np.zeros(3, int), "ks": ()}, "from 1"),
        ({"embeddings": np.full((3, 2), np.inf), "labels": np.zeros(3, int)}, "must be finite"),
        ({"embeddings": np.ones((0, 2)), "labels": np.zeros(0, int)}, "not empty, got \\(0, 2\\)"),
        ({"embeddings": [], "labels": []}, "not empty, got \\(0,\\)"),
        ({"embeddings": [[1.0, 2.0], [1.0]], "labels": [0, 0]}, "must be \\(N, D\\)"),
        ({"embeddings": [["a", "b"]], "labels": [0]}, "must be real numbers, got <U1"),
        ({"embeddings": np.ones((3, 2), complex), "labels": [0, 0, 0]}, "must be real numbers"),
        ({"embeddings": torch.ones(3, 2) > 0, "labels": [0, 0, 0]}, "must be real numbers"),
        ({"embeddings": torch.eye(2).to_sparse(), "labels": [0, 0]}, "must be dense, got .*sparse"),
        ({"embeddings": np.eye(2), "labels": torch.ones(2).to_sparse()}, "must be dense"),
        ({"embeddings": np.full((2, 4), 1e200), "labels": [0, 0]}, "must be shorter than"),
        ({"embeddings": np.eye(2), "labels": [0, 0], "ks": (True, 2)}, "distinct integers"),
        (
            {
                "embeddings": np.ones((3, 2)),
                "labels": [0, 0, 0],
                "gallery": np.ones((3, 4)),
                "gallery_labels": [0, 0, 0],
            },
            "must have the same width, got 2 and 4",
        ),
        (
            {
                "embeddings": np.ones((3, 2)),
                "labels": [0, 0, 0],
                "gallery": np.ones((3, 2)),
                "gallery_labels": [0, 0],
            },
            "got 3 and 2",
        ),
        (
            {"embeddings": np.ones((3, 2)), "labels": np.zeros(3, int), "gallery": np.ones((1, 2))},
            "must be given together",
        ),
    ],
)
def test_invalid_input_is_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        evaluate(**arguments)
    assert "\n" not in str(caught.value)


def test_lists_of_few_large_classes_are_cut_into_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    x, labels = make_few_large_classes(400)
    expected = evaluate_by_brute_force(x, labels)
    rows = []
    order = exact_order.order_candidates

    def count_rows(*arguments: Any, **options: Any) -> Any:
        rows.append(len(arguments[2]))
        return order(*arguments, **options)

    monkeypatch.setattr(neighbours, "order_candidates", count_rows)
    monkeypatch.setattr(block_sizes, "LIST_BYTES", 2**20)
    assert evaluate(x, labels, ks=KS) == pytest.approx(expected, abs=1e-9)
    longest = exact_order.N_SPARE_CANDIDATES + int(np.bincount(labels).max()) - 1
    assert max(rows) * longest * block_sizes.CANDIDATE_BYTES <= 2**20
    assert min(len(rows), max(rows)) > 1


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="peak memory needs Linux")
def test_memory_does_not_grow_with_the_largest_class(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(block_sizes, "BLOCK_BYTES", 64 * 2**20)
    monkeypatch.setattr(block_sizes, "LIST_BYTES", 32 * 2**20)
    x, labels = make_few_large_classes(4000)  # lists of all queries at once take 600 MiB
    evaluate(*make_few_large_classes(200))  # imports and thread pools do not count
    Path("/proc/self/clear_refs").write_text("5")  # resets the peak
    before = read_status_bytes("VmRSS")
    evaluate(x, labels)
    bound = block_sizes.BLOCK_BYTES + block_sizes.LIST_BYTES
    assert read_status_bytes("VmHWM") - before < 2 * bound


def read_status_bytes(key: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(key))


def test_nmi_of_clear_and_of_no_clusters() -> None:
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(10), 30)
    clear = np.eye(16)[labels] + 0.02 * rng.normal(size=(300, 16))
    noise = rng.normal(size=(300, 16))
    assert compute_nmi(clear, labels) > 0.9
    assert compute_nmi(clear, labels, seed=3) == compute_nmi(clear, labels, seed=3)
    assert compute_nmi(noise, labels) < 0.35
