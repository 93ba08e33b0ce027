"""Checked vectors: their lengths, centred copies and margins, and inputs that are refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from trainables.retrieval.metrics import evaluate
from trainables.retrieval.vectors import check_same_width, make_vector_set

pytestmark = pytest.mark.split


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (np.full((3, 2), np.nan), "must be finite"),
        (np.full((3, 2), np.inf), "must be finite"),
        (np.ones(3), "must be \\(N, D\\)"),
        (np.ones((0, 2)), "not empty, got \\(0, 2\\)"),
        ([], "not empty, got \\(0,\\)"),
        ([[1.0, 2.0], [1.0]], "must be \\(N, D\\)"),
        ([["a", "b"]], "must be real numbers, got <U1"),
        (np.ones((3, 2), complex), "must be real numbers"),
        (torch.ones(3, 2) > 0, "must be real numbers"),
        (torch.eye(2).to_sparse(), "must be dense, got .*sparse"),
        (np.full((2, 4), 1e200), "must be shorter than"),
    ],
)
def test_other_vectors_are_refused(given: Any, message: str) -> None:
    with pytest.raises(ValueError, match=f"`embeddings` .*{message}") as caught:
        make_vector_set(given, "embeddings")
    assert "\n" not in str(caught.value)


def test_queries_and_gallery_have_the_same_width() -> None:
    two, four = (make_vector_set(np.ones((3, d)), "x") for d in (2, 4))
    check_same_width(two, two)
    with pytest.raises(ValueError, match="got 2 and 4"):
        check_same_width(two, four)


def test_lengths_are_float64_and_zero_vectors_stay_zero() -> None:
    vectors = make_vector_set(np.array([[3.0, 4.0], [0.0, 0.0]], dtype=np.float32), "x")
    assert vectors.raw.dtype == torch.float32
    assert vectors.inverse_norms.dtype == torch.float64
    assert vectors.normalise_rows(slice(None)).tolist() == [[0.6000000000000001, 0.8], [0.0, 0.0]]


@pytest.mark.parametrize("rows", [5, 3000])
def test_centred_vectors_are_unit_vectors_minus_their_mean(rows: int) -> None:
    x = np.random.default_rng(0).normal(size=(rows, 7)) + 3
    vectors = make_vector_set(x, "x")
    unit = x / np.linalg.norm(x, axis=1, keepdims=True)
    assert np.allclose(vectors.mean_unit_vector, unit.mean(axis=0), atol=1e-14)
    assert vectors.centred_vectors.dtype == torch.float32
    assert np.allclose(vectors.centred_vectors, unit - unit.mean(axis=0), atol=1e-7)


def test_products_outside_the_margin_are_ordered_as_in_float64() -> None:
    rng = np.random.default_rng(1)
    x = (rng.normal(size=256) + 0.01 * rng.normal(size=(400, 256))).astype(np.float32)
    vectors = make_vector_set(x, "x")
    unit = vectors.normalise_rows(slice(None))
    exact = unit @ (unit - vectors.mean_unit_vector).T
    coarse = unit.float() @ vectors.centred_vectors.T
    error = (coarse.double() - exact).abs().max()
    assert 0 < 2 * float(error) < vectors.float32_margin < 1e-5
    assert vectors.float64_margin < 1e-5 * vectors.float32_margin


def test_equal_vectors_have_the_index_of_the_first() -> None:
    x = np.array([[1.0, 2.0], [3.0, 4.0], [1.0, 2.0], [3.0, 4.0], [1.0, 2.5]])
    assert make_vector_set(x, "x").first_equal_index.tolist() == [0, 1, 0, 1, 4]


def make_read_only(x: NDArray[Any]) -> NDArray[Any]:
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
        make_read_only,
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


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_embeddings_are_not_changed(dtype: Any) -> None:
    x = np.random.default_rng(0).normal(size=(200, 5)).astype(dtype)
    copy = x.copy()
    evaluate(x, np.arange(200) % 20)
    assert np.array_equal(x, copy)
