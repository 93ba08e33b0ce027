"""Is one picture on two sides of a split? Found by its contents, whatever its file is called.

Sides are made of classes: training against test, and any validation fold against the rest of the
training classes. So a picture that is in two classes is a leak unless both are test classes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from hashlib import blake2b
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainables.data.rows import LeaveOut, RowSpec, memory_of

ON_DUPLICATE = ("refuse", "drop")
DIGESTS = "digests"
SPEC = RowSpec((16,), "uint8")


def digests(rows: NDArray[Any]) -> NDArray[np.uint8]:
    """A hash of each row's contents, (n, 16): equal rows have equal ones."""
    found = [blake2b(memory_of(np.ascontiguousarray(row)), digest_size=16).digest() for row in rows]
    return np.frombuffer(b"".join(found), dtype=np.uint8).reshape(-1, 16)


def on_two_sides(
    rows: NDArray[np.int64],
    hashes: NDArray[np.uint8],
    labels: NDArray[np.int64],
    in_test: NDArray[np.bool_],
) -> dict[int, int]:
    """Rows to leave out so that no contents are on two sides -> the row that has them too.

    Test classes stay as published: the copies in training classes go. Of copies in several
    training classes those of the first one's class stay.

    Args:
        rows: Numbers of the rows to look at; `hashes`, `labels` and `in_test` are of all rows.
    """
    groups: dict[bytes, list[int]] = {}
    for row in rows.tolist():
        groups.setdefault(hashes[row].tobytes(), []).append(row)
    left_out = {}
    for same in groups.values():
        test = [row for row in same if in_test[row]]
        stays = test[0] if test else same[0]
        for row in same:
            if not in_test[row] and labels[row] != labels[stays]:
                left_out[row] = stays
    return left_out


def leave_out_copies(
    labels: NDArray[np.int64], in_test: NDArray[np.bool_], names: Sequence[str]
) -> LeaveOut:
    """For a cache entry with an array of `digests`: which rows it must not keep, and why."""

    def choose(arrays: Mapping[str, NDArray[Any]], rows: NDArray[np.int64]) -> dict[int, str]:
        found = on_two_sides(rows, np.asarray(arrays[DIGESTS]), labels, in_test)
        return {row: names[other] for row, other in sorted(found.items())}

    return choose


def asked_of_itself(hashes: NDArray[np.uint8], is_query: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Queries whose very picture is in the gallery, too: a hit that says nothing."""
    gallery = {row.tobytes() for row in hashes[~is_query]}
    found = [row for row in np.flatnonzero(is_query).tolist() if hashes[row].tobytes() in gallery]
    return np.array(found, dtype=np.int64)
