"""Duplicate images on two sides of a split, found by their contents and not by their names.

The sides consist of classes: training against test, and each validation fold against the rest of
the training classes. An image in two classes is therefore a leak unless both are test classes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from hashlib import blake2b
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainables.data.cache.rows import RowFilter, RowSpec, as_memoryview

DUPLICATE_POLICIES = ("refuse", "drop")
DIGESTS_KEY = "digests"
DIGEST_SPEC = RowSpec((16,), "uint8")


def hash_rows(rows: NDArray[Any]) -> NDArray[np.uint8]:
    """Return a hash of each row's contents, (n, 16); equal rows have equal hashes."""
    digests = [
        blake2b(as_memoryview(np.ascontiguousarray(row)), digest_size=16).digest() for row in rows
    ]
    return np.frombuffer(b"".join(digests), dtype=np.uint8).reshape(-1, 16)


def find_cross_split_duplicates(
    rows: NDArray[np.int64],
    hashes: NDArray[np.uint8],
    labels: NDArray[np.int64],
    in_test: NDArray[np.bool_],
) -> dict[int, int]:
    """Return rows to exclude so that no contents are on two sides, with the row they duplicate.

    Test classes stay as published: copies in training classes are excluded. Of copies in several
    training classes, those in the class of the first one stay.

    Args:
        rows: Row numbers to consider.
        hashes: Result of `hash_rows` for all rows.
        labels: Class id of all rows.
        in_test: Whether each of all rows belongs to the test half.
    """
    groups: dict[bytes, list[int]] = {}
    for row in rows.tolist():
        groups.setdefault(hashes[row].tobytes(), []).append(row)
    left_out = {}
    for same in groups.values():
        test_rows = [row for row in same if in_test[row]]
        original = test_rows[0] if test_rows else same[0]
        for row in same:
            if not in_test[row] and labels[row] != labels[original]:
                left_out[row] = original
    return left_out


def make_duplicate_filter(
    labels: NDArray[np.int64], in_test: NDArray[np.bool_], names: Sequence[str]
) -> RowFilter:
    """Return the filter that excludes duplicates from a cache entry with an array `digests`."""

    def select_duplicates(
        arrays: Mapping[str, NDArray[Any]], rows: NDArray[np.int64]
    ) -> dict[int, str]:
        digests = np.asarray(arrays[DIGESTS_KEY])
        duplicates = find_cross_split_duplicates(rows, digests, labels, in_test)
        return {row: names[original] for row, original in sorted(duplicates.items())}

    return select_duplicates


def find_queries_in_gallery(
    hashes: NDArray[np.uint8], is_query: NDArray[np.bool_]
) -> NDArray[np.int64]:
    """Return the queries whose image is also in the gallery, so that a hit is meaningless."""
    gallery = {row.tobytes() for row in hashes[~is_query]}
    queries = np.flatnonzero(is_query).tolist()
    return np.array([row for row in queries if hashes[row].tobytes() in gallery], dtype=np.int64)
