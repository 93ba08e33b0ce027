"""Messages about a data set's images: errors that stop a study, and notes for the user."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from trainables.data.cache.entry import CacheEntry
from trainables.data.duplicates import DIGESTS_KEY, find_queries_in_gallery

MAX_NAMES_PER_MESSAGE = 5  # a file that the message names lists all of them


class ImageReport:
    """Messages about the images of a cache entry.

    Args:
        dataset: Name of the data set.
        rows: The cache entry.
        names: Name of each requested row.

    Attributes:
        note_files: Files that list all images of a message that names only some.
    """

    def __init__(self, dataset: str, rows: CacheEntry, names: Sequence[str]) -> None:
        self._dataset, self._rows, self._names = dataset, rows, names
        self.note_files: list[Path] = []

    def raise_if_refused(self, *, on_bad_image: str, on_duplicate: str) -> None:
        """Stop before any trial, unless the options say to continue without some images.

        Raises:
            ValueError: If images cannot be read, or if one is on two sides of a split.
        """
        if self._rows.bad and on_bad_image == "refuse":
            raise ValueError(
                f"{self._dataset}: {self._describe_unreadable()}; "
                "set on_bad_image: skip to exclude them, or repair the files"
            )
        if self._rows.left_out and on_duplicate == "refuse":
            raise ValueError(
                f"{self._dataset}: {self._describe_duplicates()}; "
                "set on_duplicate: drop to exclude these training images, "
                "or remove one image of each pair"
            )

    def describe_rows(self) -> list[str]:
        """Return notes on excluded and converted images and on a repaired cache entry."""
        notes = []
        if self._rows.bad:
            notes.append(f"{self._dataset}: excluded: {self._describe_unreadable()}")
        if self._rows.left_out:
            notes.append(f"{self._dataset}: excluded: {self._describe_duplicates()}")
        if self._rows.rebuilt:
            notes.append(f"{self._dataset}: a damaged cache entry was found and rebuilt")
        return [*notes, *self._describe_converted()]

    def describe_queries(self, is_query: NDArray[np.bool_] | None) -> list[str]:
        """Return a note on queries that are also in the gallery.

        Args:
            is_query: Whether each row of the entry is a query; None without a query protocol.
        """
        if is_query is None:
            return []
        hashes = np.asarray(self._rows.arrays[DIGESTS_KEY])
        duplicates = [
            self._names[row]
            for row in self._rows.row_numbers[find_queries_in_gallery(hashes, is_query)]
        ]
        if not duplicates:
            return []
        listed = self._list_examples(duplicates, "queries-in-gallery")
        return [
            f"{self._dataset}: queries that are also in the gallery, pixel for pixel: "
            f"{len(duplicates):,} ({listed})"
        ]

    def _describe_converted(self) -> list[str]:
        """Return one note per kind of image that was converted."""
        kinds: dict[str, list[str]] = {}
        for row, remark in sorted(self._rows.remarks.items()):
            kinds.setdefault(remark, []).append(self._names[row])
        return [
            f"{self._dataset}: {kind} images converted to 8-bit RGB: {len(names):,} "
            f"({self._list_examples(names, 'converted')})"
            for kind, names in kinds.items()
        ]

    def _describe_unreadable(self) -> str:
        reasons = [f"{self._names[row]}: {why}" for row, why in sorted(self._rows.bad.items())]
        listed = self._list_examples(reasons, "unreadable")
        return f"{len(reasons):,} of {len(self._names):,} images cannot be read ({listed})"

    def _describe_duplicates(self) -> str:
        left_out = sorted(self._rows.left_out.items())
        pairs = [f"{self._names[row]} is also {other}" for row, other in left_out]
        listed = self._list_examples(pairs, "copies")
        return f"training images that are also in another class: {len(pairs):,} ({listed})"

    def _list_examples(self, texts: Sequence[str], kind: str) -> str:
        """Return the first few texts, and the file that lists all of them."""
        texts = [escape_surrogates(text) for text in texts]
        if len(texts) <= MAX_NAMES_PER_MESSAGE:
            return "; ".join(texts)
        try:
            file = _write_note_file(self._rows.directory, kind, texts)
        except OSError:  # the cache is read-only, so the message lists all of them
            return "; ".join(texts)
        if file not in self.note_files:
            self.note_files.append(file)
        more = len(texts) - MAX_NAMES_PER_MESSAGE
        return f"{'; '.join(texts[:MAX_NAMES_PER_MESSAGE])}; and {more:,} more, all in {file}"


def escape_surrogates(text: str) -> str:
    """Return a file name, which may not be UTF-8, as text that is."""
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def _write_note_file(directory: Path, kind: str, texts: Sequence[str]) -> Path:
    """Write a file of these lines; the name depends on the content, so processes can share it."""
    content = "".join(f"{text}\n" for text in texts).encode()
    file = directory / f"{kind}-{hashlib.sha256(content).hexdigest()[:8]}.txt"
    if not file.exists():
        temporary = file.with_suffix(f".{os.getpid()}")
        temporary.write_bytes(content)
        temporary.replace(file)
    return file


def describe_count_differences(
    dataset: str,
    in_test: NDArray[np.bool_],
    is_query: NDArray[np.bool_] | None,
    counts: Mapping[str, int],
) -> list[str]:
    """Return how the numbers of readable images differ from the published ones.

    Args:
        dataset: Name of the data set.
        in_test: Whether each readable image belongs to the test half.
        is_query: Whether each is a query; None without a query protocol.
        counts: Published numbers by side.
    """
    queries = np.zeros_like(in_test) if is_query is None else is_query
    sides = {"train": ~in_test, "test": in_test, "query": queries, "gallery": in_test & ~queries}
    have = {side: int(mask.sum()) for side, mask in sides.items()}
    return [
        f"{dataset}: {have[side]:,} {side} images, published {published:,}: "
        f"{abs(published - have[side]):,} {'missing' if have[side] < published else 'too many'}"
        for side, published in counts.items()
        if have[side] != published
    ]
