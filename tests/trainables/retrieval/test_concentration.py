"""Similarity concentration: known answers, and changes that must not affect it."""

from __future__ import annotations

import numpy as np
import pytest

from trainables.retrieval.concentration import similarity_concentration


def test_a_spread_that_can_be_computed_by_hand() -> None:
    angles = np.radians([0.0, 60.0, 90.0, 90.0])
    vectors = np.stack([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)
    labels = np.array([0, 0, 1, 1])
    within = np.var([0.5, 1.0])
    between = np.var([0.0, 0.0, np.sqrt(0.75), np.sqrt(0.75)])
    expected = 1.0 - np.sqrt(within + between)
    assert similarity_concentration(vectors, labels) == pytest.approx(expected, abs=1e-6)
    assert similarity_concentration(7 * vectors, labels) == pytest.approx(expected, abs=1e-6)


def test_tighter_classes_are_more_concentrated() -> None:
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(10), 20)
    centres = np.eye(10)[labels]
    noise = rng.normal(size=(200, 10))
    tight, loose = (
        similarity_concentration((centres + s * noise).astype(np.float32), labels)
        for s in (0.05, 0.5)
    )
    assert tight > loose


def test_many_items_are_subsampled_and_one_kind_of_pairs_gives_nan() -> None:
    rng = np.random.default_rng(1)
    vectors, labels = rng.normal(size=(900, 8)).astype(np.float32), rng.integers(3, size=900)
    complete = similarity_concentration(vectors, labels)
    assert similarity_concentration(vectors, labels, limit=300) == pytest.approx(complete, abs=0.02)
    assert np.isnan(similarity_concentration(vectors, np.zeros(900, int)))
    assert np.isnan(similarity_concentration(vectors, np.arange(900)))
