"""What users must know of their pictures: said before any trial, or refused."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from trainables.data.duplicates import DIGESTS, asked_of_itself
from trainables.data.entry import CachedRows

SHOWN = 5  # paths in a message; all of them are in a file that the message names


class PictureNotes:
    """Sentences about the pictures of a cache entry.

    Args:
        dataset: Its name.
        rows: The entry.
        names: Of the rows as asked for.

    Attributes:
        lists: Files that name all pictures which a sentence names only some of.
    """

    def __init__(self, dataset: str, rows: CachedRows, names: Sequence[str]) -> None:
        self._dataset, self._rows, self._names = dataset, rows, names
        self.lists: list[Path] = []

    def refuse(self, *, on_bad_image: str, on_duplicate: str) -> None:
        """Stop here, before any trial, unless the study file says to go on without some pictures.

        Raises:
            ValueError: Pictures cannot be read, or one is on two sides of a split.
        """
        if self._rows.bad and on_bad_image == "refuse":
            raise ValueError(
                f"{self._dataset}: {self._bad()}; "
                "set on_bad_image: skip to leave them out, or repair the files."
            )
        if self._rows.left_out and on_duplicate == "refuse":
            raise ValueError(
                f"{self._dataset}: {self._copies()}; set on_duplicate: drop to leave these "
                "training images out, or remove one of each two."
            )

    def of_rows(self) -> list[str]:
        """What was left out or converted, and whether the cache had to be repaired."""
        notes = [f"{self._dataset}: left out: {self._bad()}"] if self._rows.bad else []
        if self._rows.left_out:
            notes.append(f"{self._dataset}: left out: {self._copies()}")
        if self._rows.rebuilt:
            notes.append(f"{self._dataset}: a damaged cache entry was found and computed again")
        return [*notes, *self._converted()]

    def of_queries(self, is_query: NDArray[np.bool_] | None) -> list[str]:
        """Which queries find themselves in the gallery; `is_query` is of the kept rows."""
        if is_query is None:
            return []
        hashes = np.asarray(self._rows.arrays[DIGESTS])
        found = [self._names[row] for row in self._rows.kept[asked_of_itself(hashes, is_query)]]
        if not found:
            return []
        listed = self._listed(found, "queries-in-gallery")
        return [
            f"{self._dataset}: {len(found):,} queries are in the gallery, pixel for pixel "
            f"({listed})"
        ]

    def _converted(self) -> list[str]:
        """One line per kind of picture that was converted."""
        kinds: dict[str, list[str]] = {}
        for row, remark in sorted(self._rows.remarks.items()):
            kinds.setdefault(remark, []).append(self._names[row])
        return [
            f"{self._dataset}: {len(found):,} {kind} picture(s) converted to 8-bit RGB "
            f"({self._listed(found, 'converted')})"
            for kind, found in kinds.items()
        ]

    def _bad(self) -> str:
        reasons = [f"{self._names[row]}: {why}" for row, why in sorted(self._rows.bad.items())]
        listed = self._listed(reasons, "unreadable")
        return f"{len(reasons):,} of {len(self._names):,} pictures cannot be read ({listed})"

    def _copies(self) -> str:
        left_out = sorted(self._rows.left_out.items())
        pairs = [f"{self._names[row]} is also {other}" for row, other in left_out]
        listed = self._listed(pairs, "copies")
        return f"{len(pairs):,} training images are in another class, too ({listed})"

    def _listed(self, texts: Sequence[str], kind: str) -> str:
        """The first few, and where all are."""
        texts = [printable(text) for text in texts]
        if len(texts) <= SHOWN:
            return "; ".join(texts)
        try:
            file = _written(self._rows.directory, kind, texts)
        except OSError:  # somebody else's cache: then all are named here
            return "; ".join(texts)
        if file not in self.lists:
            self.lists.append(file)
        more = len(texts) - SHOWN
        return f"{'; '.join(texts[:SHOWN])}; and {more:,} more, all in {file}"


def printable(text: str) -> str:
    """A name of a file may be no UTF-8; what is said of it must be."""
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def _written(directory: Path, kind: str, texts: Sequence[str]) -> Path:
    """A file of these lines; named by what it says, so that no process spoils another's."""
    content = "".join(f"{text}\n" for text in texts).encode()
    file = directory / f"{kind}-{hashlib.sha256(content).hexdigest()[:8]}.txt"
    if not file.exists():
        temporary = file.with_suffix(f".{os.getpid()}")
        temporary.write_bytes(content)
        temporary.replace(file)
    return file


def count_notes(
    dataset: str,
    in_test: NDArray[np.bool_],
    is_query: NDArray[np.bool_] | None,
    counts: Mapping[str, int],
) -> list[str]:
    """How the numbers of readable images differ from the published ones."""
    asks = np.zeros_like(in_test) if is_query is None else is_query
    sides = {"train": ~in_test, "test": in_test, "query": asks, "gallery": in_test & ~asks}
    have = {side: int(chosen.sum()) for side, chosen in sides.items()}
    return [
        f"{dataset}: {have[side]:,} {side} images, published {published:,}: "
        f"{abs(published - have[side]):,} {'missing' if have[side] < published else 'too many'}"
        for side, published in counts.items()
        if have[side] != published
    ]
