"""Parts of a data set: items and aspects by position, with and without an index."""

from __future__ import annotations

import numpy as np
import pytest

from trainables.data.dataset import DatasetPart

pytestmark = pytest.mark.split


def test_an_index_selects_and_orders_the_items() -> None:
    items = np.arange(10, dtype=np.float32).reshape(5, 2)
    aspects = np.array([1.0, 2.0, 3.0, 4.0, 5.0], dtype=np.float32)
    index = np.array([4, 0, 2])
    part = DatasetPart(items, np.array([7, 7, 9]), index=index, aspects=aspects)
    assert len(part) == 3
    assert np.array_equal(part.read_items(slice(None)), items[index])
    assert np.array_equal(part.read_items(1), items[0])
    assert part.read_aspects(np.array([2, 0])).tolist() == [3.0, 5.0]  # type: ignore[union-attr]


def test_without_an_index_all_items_are_meant() -> None:
    items = np.arange(6, dtype=np.float32).reshape(3, 2)
    part = DatasetPart(items, np.array([0, 0, 1]))
    assert np.shares_memory(part.read_items(slice(1, 3)), items)
    assert part.read_aspects(slice(None)) is None


@pytest.mark.parametrize(
    ("items", "kind"),
    [
        (np.zeros((2, 4, 4, 3), np.uint8), "images"),
        (np.zeros((2, 8), np.float32), "features"),
    ],
)
def test_the_kind_follows_from_the_axes(items: np.ndarray, kind: str) -> None:
    assert DatasetPart(items, np.zeros(2, np.int64)).kind == kind
