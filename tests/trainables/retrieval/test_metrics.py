"""Retrieval scores against a brute force and against pytorch-metric-learning."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from trainables import neighbours, retrieval
from trainables.retrieval import evaluate, nearest

KS = (1, 2, 4, 8, 40, 100)  # the last two lie behind the list of neighbours


def normalised(x: NDArray[Any]) -> NDArray[Any]:
    x = x.astype(np.float64)
    unit: NDArray[Any] = x / np.linalg.norm(x, axis=1, keepdims=True)
    return unit


def in_order(query: NDArray[Any], items: NDArray[Any]) -> NDArray[Any]:
    """All items, nearest first; cosines closer than 2^-44 are ties, lower index first."""
    cosines = (items * query).sum(axis=1)
    return np.argsort(-np.round(cosines * 2.0**44), kind="stable")


def brute_force(
    queries: NDArray[Any],
    labels: NDArray[Any],
    items: NDArray[Any] | None = None,
    item_labels: NDArray[Any] | None = None,
) -> dict[str, float]:
    x = normalised(queries)
    z = x if items is None else normalised(items)
    z_labels = labels if item_labels is None else item_labels
    rows = []
    for i in range(len(x)):
        order = in_order(x[i], z)
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


def exact_knn(
    query: torch.Tensor, k: int, reference: torch.Tensor, ref_includes_query: bool = False
) -> tuple[torch.Tensor, torch.Tensor]:
    """What the reference library asks for: the k nearest, itself left out; in float64."""
    found = []
    for i, row in enumerate(query.numpy()):
        order = in_order(row, reference.numpy())
        found.append(order[order != i][:k] if ref_includes_query else order[:k])
    indices = torch.from_numpy(np.stack(found))
    return torch.zeros(indices.shape), indices  # it does not look at the distances


def pml(
    queries: NDArray[Any], labels: NDArray[Any], *rest: Any, exact: bool = False
) -> dict[str, float]:
    """Scores of pytorch-metric-learning, with its own float32 search or with an exact one."""
    from pytorch_metric_learning.utils.accuracy_calculator import AccuracyCalculator

    calculator = AccuracyCalculator(
        include=("precision_at_1", "r_precision", "mean_average_precision_at_r"),
        k="max_bin_count",  # its None would compare all with all
        device=torch.device("cpu"),
        knn_func=exact_knn if exact else None,
    )
    arguments = [queries, labels, *rest]
    for i in range(0, len(arguments), 2):  # it does not normalise
        arguments[i] = normalised(arguments[i]).astype(np.float64 if exact else np.float32)
    # It casts labels to float32, where ids above 2**24 collide; ours are renumbered for it.
    ids = np.unique(np.concatenate(arguments[1::2]), return_inverse=True)[1]
    arguments[1::2] = np.split(ids, np.cumsum([len(a) for a in arguments[1::2]])[:-1])
    scores = calculator.get_accuracy(*[torch.from_numpy(a) for a in arguments])
    return {
        "recall_at_1": scores["precision_at_1"],
        "r_precision": scores["r_precision"],
        "map_at_r": scores["mean_average_precision_at_r"],
    }


def make(kind: str, seed: int) -> tuple[NDArray[Any], NDArray[Any]]:
    """Random data. Components are +-1/sqrt(D) with D a power of 4, so lengths, dot products and
    distances are exact in float32 too and the reference library orders neighbours rightly; few
    dimensions mean many ties. "gaussian" and "mixed" are continuous instead, the latter with
    copies, multiples of copies and lone classes."""
    rng = np.random.default_rng(seed)
    n, dim = int(rng.integers(30, 400)), 4 if kind == "ties" else 4 ** int(rng.integers(3, 6))
    labels = rng.integers(0, int(rng.integers(3, 40)), n) + 2**40
    x = rng.choice(np.array([-1, 1], dtype=np.float32), size=(n, dim)) / np.float32(dim**0.5)
    if kind in CONTINUOUS:
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


CONTINUOUS = ("gaussian", "mixed")
KINDS = ("plain", *CONTINUOUS, "ties", "duplicates", "lone classes", "collapsed")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(4))
def test_agrees_with_brute_force_and_pml(kind: str, seed: int) -> None:
    x, labels = make(kind, seed)
    ours = evaluate(x, labels, ks=KS)
    assert ours == pytest.approx(brute_force(x, labels), abs=1e-9)
    # Its own search swaps near neighbours of continuous data: distances are float32. Where they
    # are exact it is asked as it comes; everywhere it is asked with neighbours in float64.
    for exact in (True, False) if kind not in CONTINUOUS else (True,):
        for name, value in pml(x, labels, exact=exact).items():
            assert ours[name] == pytest.approx(value, abs=1e-9), name


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(4))
def test_query_and_gallery_agree_with_brute_force_and_pml(kind: str, seed: int) -> None:
    x, labels = make(kind, seed)
    cut = len(x) // 3
    ours = evaluate(x[:cut], labels[:cut], ks=KS, gallery=x[cut:], gallery_labels=labels[cut:])
    expected = brute_force(x[:cut], labels[:cut], x[cut:], labels[cut:])
    assert ours == pytest.approx(expected, abs=1e-9)
    for exact in (True, False) if kind not in CONTINUOUS else (True,):
        scores = pml(x[:cut], labels[:cut], x[cut:], labels[cut:], exact=exact)
        for name, value in scores.items():
            assert ours[name] == pytest.approx(value, abs=1e-9), name


@pytest.mark.parametrize("kind", KINDS)
def test_blocks_threads_and_group_sizes_change_nothing(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(5)
    x, labels = make(kind, 11)
    x = np.concatenate([x] * 4) + rng.normal(scale=1e-7, size=(4 * len(x), x.shape[1]))
    labels = np.concatenate([labels] * 4)
    whole = nearest(x, k=20)
    scores = evaluate(x, labels, ks=(1, 8, 100))
    monkeypatch.setattr(neighbours, "BLOCK_BYTES", 4 * len(x) * 7)
    assert np.array_equal(nearest(x, k=20).indices, whole.indices)
    assert evaluate(x, labels, ks=(1, 8, 100)) == pytest.approx(scores, abs=1e-12)


def test_exact_in_two_dimensions_where_float32_is_not() -> None:
    rng = np.random.default_rng(3)
    x, labels = rng.normal(size=(1500, 2)), rng.integers(0, 30, 1500)
    assert evaluate(x, labels, ks=KS) == pytest.approx(brute_force(x, labels), abs=1e-9)


def test_near_ties_beyond_float32_are_ordered_in_float64() -> None:
    # 4,000 items whose similarities differ by 1e-12: float32 cannot tell them apart.
    angles = 0.5 + 1e-12 * np.random.default_rng(0).permutation(4000)
    items = np.stack([np.cos(angles), np.sin(angles)], axis=1)
    far = np.tile([[-1.0, 0.0]], (100, 1))
    gallery = np.concatenate([far, items[:300]])
    found = nearest(np.array([[1.0, 0.0]]), k=5, gallery=gallery)
    assert found.indices[0].tolist() == (100 + np.argsort(angles[:300])[:5]).tolist()


def test_large_k_equals_a_full_sort() -> None:
    rng = np.random.default_rng(2)
    x = rng.normal(size=(3000, 16)).astype(np.float32)
    z = (x / np.linalg.norm(x, axis=1, keepdims=True)).astype(np.float64)
    for k in (1, 9, 100, 2000, 2999):
        found = nearest(x, k=k, rows=[0, 5, 2999])
        for row, indices in zip([0, 5, 2999], found.indices, strict=True):
            order = np.argsort(-(z @ z[row]), kind="stable")
            assert indices.tolist() == order[order != row][:k].tolist()


def concentrated(n: int, spread: float, outliers: int) -> tuple[NDArray[Any], NDArray[Any]]:
    rng = np.random.default_rng(7)
    labels = np.arange(n) % 40
    x = rng.normal(size=64) + spread * rng.normal(size=(40, 64))[labels]
    x += 0.3 * spread * rng.normal(size=x.shape)
    x[:outliers] = rng.normal(size=(outliers, 64))
    return x.astype(np.float32), labels


@pytest.mark.parametrize("outliers", [0, 40])
def test_exact_however_close_all_embeddings_are(outliers: int) -> None:
    # The mean cosine is 0.999998; float32 cosines cannot order such neighbours.
    x, labels = concentrated(1200, 1.4e-3, outliers)
    expected = brute_force(x, labels)
    assert expected["recall_at_1"] > 0.9
    assert evaluate(x, labels, ks=KS) == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("kind", ["close", "close but some", "close queries"])
def test_few_pairs_are_compared_however_close_embeddings_are(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # One costs as much as dozens of products: a collapsed trial would be scored for hours.
    x, labels = concentrated(1200, 1.4e-3, 40 if kind == "close but some" else 0)
    compared = 0
    exact = neighbours.cosines

    def counted(*arguments: Any) -> Any:
        nonlocal compared
        compared += len(arguments[2])
        return exact(*arguments)

    monkeypatch.setattr(neighbours, "cosines", counted)
    if kind == "close queries":
        x, more, labels, more_labels = x[:600], x[600:], labels[:600], labels[600:]
        scores = evaluate(x, labels, ks=KS, gallery=more, gallery_labels=more_labels)
        expected = brute_force(x, labels, more, more_labels)
    else:
        scores, expected = evaluate(x, labels, ks=KS), brute_force(x, labels)
    assert scores == pytest.approx(expected, abs=1e-9)
    assert compared < 50 * len(x)  # some candidates each, never all


def test_a_crowd_of_equal_vectors_is_ordered_by_index() -> None:
    x, labels = np.ones((1000, 8), dtype=np.float32), np.arange(1000) % 20
    x[:3] = np.eye(8)[:3]
    assert evaluate(x, labels, ks=KS) == pytest.approx(brute_force(x, labels), abs=1e-9)
    found = nearest(x, k=700)
    assert found.indices[999].tolist() == list(range(3, 703))


def test_parallel_vectors_of_different_length_tie() -> None:
    rng = np.random.default_rng(1)
    direction = rng.integers(-50, 50, size=12)
    gallery = direction * np.arange(1, 40)[:, None].astype(np.float32)
    found = nearest(rng.integers(-50, 50, size=(20, 12)).astype(np.float32), k=5, gallery=gallery)
    assert (found.indices == np.arange(5)).all()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_embeddings_are_not_changed(dtype: Any) -> None:
    x = np.random.default_rng(0).normal(size=(200, 5)).astype(dtype)
    copy = x.copy()
    evaluate(x, np.arange(200) % 20)
    assert np.array_equal(x, copy)


def test_labels_beyond_float32_do_not_collide() -> None:
    # 2**24 and 2**24 + 1 are one number in float32; the right answer here is 0.
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
        ({"embeddings": np.ones((3, 2)), "labels": np.arange(3)}, "every class is alone"),
        ({"embeddings": np.ones((3, 2)), "labels": np.zeros(2, int)}, "got 3 and 2"),
        ({"embeddings": np.ones((3, 2)), "labels": np.zeros(3)}, "must be integers"),
        ({"embeddings": np.full((3, 2), np.nan), "labels": np.zeros(3, int)}, "must be finite"),
        ({"embeddings": np.ones(3), "labels": np.zeros(3, int)}, "must be \\(N, D\\)"),
        ({"embeddings": np.ones((3, 2)), "labels": np.zeros(3, int), "ks": (0,)}, "from 1 on"),
        ({"embeddings": np.ones((3, 2)), "labels": np.zeros(3, int), "ks": (1.5,)}, "whole"),
        ({"embeddings": np.ones((3, 2)), "labels": np.zeros(3, int), "ks": ()}, "from 1 on"),
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
        ({"embeddings": np.eye(2), "labels": [0, 0], "ks": (True, 2)}, "distinct whole numbers"),
        (
            {
                "embeddings": np.ones((3, 2)),
                "labels": [0, 0, 0],
                "gallery": np.ones((3, 4)),
                "gallery_labels": [0, 0, 0],
            },
            "must have one width, got 2 and 4",
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
def test_bad_input_is_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        evaluate(**arguments)
    assert "\n" not in str(caught.value)


def frozen_copy(x: NDArray[Any]) -> NDArray[Any]:
    x = x.copy()
    x.flags.writeable = False
    return x


@pytest.mark.parametrize(
    "form",
    [
        lambda x: x[::-1][::-1],  # contiguous again
        lambda x: np.ascontiguousarray(x[::-1])[::-1],  # negative strides
        lambda x: np.ascontiguousarray(x[:, ::-1])[:, ::-1],
        lambda x: np.asfortranarray(x),
        lambda x: np.repeat(x, 3, axis=1)[:, ::3],  # gaps
        lambda x: x.astype(">f4"),
        lambda x: x.astype(np.float16),
        lambda x: x.astype(np.int8),
        lambda x: x.tolist(),
        frozen_copy,
        lambda x: torch.from_numpy(x).half(),
        lambda x: torch.from_numpy(x).bfloat16(),
        lambda x: torch.from_numpy(x.T.copy()).T,
    ],
)
def test_vectors_in_any_form_give_the_same_scores(form: Any) -> None:
    rng = np.random.default_rng(0)
    x = rng.integers(-9, 9, size=(60, 6)).astype(np.float32)  # exact in every type
    labels = rng.integers(0, 8, size=60)
    expected = evaluate(x, labels)
    assert evaluate(form(x), labels.tolist()) == expected
    assert evaluate(x, labels, gallery=form(x), gallery_labels=labels[::-1][::-1]) == evaluate(
        x, labels, gallery=x, gallery_labels=torch.from_numpy(labels)
    )


def few_large_classes(n: int) -> tuple[NDArray[Any], NDArray[Any]]:
    rng = np.random.default_rng(4)
    labels = rng.integers(0, 2, n)
    return (rng.normal(size=(n, 8)) + 0.5 * labels[:, None]).astype(np.float32), labels


def test_lists_of_few_large_classes_are_cut_into_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    x, labels = few_large_classes(400)
    expected = brute_force(x, labels)
    rows = []
    ordered = neighbours._ordered

    def noted(*arguments: Any) -> Any:
        rows.append(len(arguments[2]))
        return ordered(*arguments)

    monkeypatch.setattr(neighbours, "_ordered", noted)
    monkeypatch.setattr(neighbours, "LIST_BYTES", 2**20)
    assert evaluate(x, labels, ks=KS) == pytest.approx(expected, abs=1e-9)
    longest = neighbours.SPARE + int(np.bincount(labels).max()) - 1
    assert max(rows) * longest * neighbours.CANDIDATE_BYTES <= 2**20
    assert min(len(rows), max(rows)) > 1


def test_block_sizes_are_bounded_whatever_the_classes() -> None:
    sop, huge = (neighbours.block_rows(60_502, 60_502, 512, count) for count in (20, 30_251 + 8))
    assert sop == neighbours.BLOCK_BYTES // (4 * 60_502)  # lists are short: nothing is lost
    assert huge * 30_259 * neighbours.CANDIDATE_BYTES <= neighbours.LIST_BYTES
    assert neighbours.block_rows(10**7, 10**7, 512, 5 * 10**6) == 1


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="peak memory needs Linux")
def test_memory_does_not_grow_with_the_largest_class(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(neighbours, "BLOCK_BYTES", 64 * 2**20)
    monkeypatch.setattr(neighbours, "LIST_BYTES", 32 * 2**20)
    x, labels = few_large_classes(4000)  # lists of all queries at once take 600 MiB
    evaluate(*few_large_classes(200))  # imports and thread pools are not of interest
    Path("/proc/self/clear_refs").write_text("5")  # resets the peak
    before = _status("VmRSS")
    evaluate(x, labels)
    bound = neighbours.BLOCK_BYTES + neighbours.LIST_BYTES
    assert _status("VmHWM") - before < 2 * bound


def _status(key: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(key))


def test_nmi_of_clear_and_of_no_clusters() -> None:
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(10), 30)
    clear = np.eye(16)[labels] + 0.02 * rng.normal(size=(300, 16))
    noise = rng.normal(size=(300, 16))
    assert retrieval.nmi(clear, labels) > 0.9
    assert retrieval.nmi(clear, labels, seed=3) == retrieval.nmi(clear, labels, seed=3)
    assert retrieval.nmi(noise, labels) < 0.35
