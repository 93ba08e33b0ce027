"""What users must know of their pictures: said before any trial, or refused."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from trainables.data.dataset import Part
from trainables.data.duplicates import DIGESTS, asked_of_itself
from trainables.data.entry import CachedRows

SHOWN = 5  # paths in a message


def report_bad(dataset: str, rows: CachedRows, names: Sequence[str], *, on_bad_image: str) -> None:
    """Stop here, before any trial, when pictures are bad and the study file does not skip them."""
    if rows.bad and on_bad_image == "refuse":
        raise ValueError(
            f"{dataset}: {_bad_text(rows, names)}; "
            "set on_bad_image: skip to leave them out, or repair the files."
        )


def report_copies(
    dataset: str, rows: CachedRows, names: Sequence[str], *, on_duplicate: str
) -> None:
    """Stop here when a picture is on two sides of a split and the study file does not drop it."""
    if rows.left_out and on_duplicate == "refuse":
        raise ValueError(
            f"{dataset}: {_copies_text(rows, names)}; set on_duplicate: drop to leave these "
            "training images out, or remove one of each two."
        )


def row_notes(dataset: str, rows: CachedRows, names: Sequence[str]) -> list[str]:
    """What was left out or converted, and whether the cache had to be repaired."""
    notes = [f"{dataset}: left out: {_bad_text(rows, names)}"] if rows.bad else []
    if rows.left_out:
        notes.append(f"{dataset}: left out: {_copies_text(rows, names)}")
    if rows.rebuilt:
        notes.append(f"{dataset}: a damaged cache entry was found and computed again")
    return [*notes, *_remark_notes(dataset, rows, names)]


def query_notes(
    dataset: str, rows: CachedRows, names: Sequence[str], is_query: NDArray[np.bool_] | None
) -> list[str]:
    """Which queries find themselves in the gallery; `is_query` is of the kept rows."""
    if is_query is None:
        return []
    found = rows.kept[asked_of_itself(np.asarray(rows.arrays[DIGESTS]), is_query)]
    if not len(found):
        return []
    listed = _listed([names[row] for row in found])
    return [f"{dataset}: {len(found):,} queries are in the gallery, pixel for pixel ({listed})"]


def count_notes(dataset: str, halves: tuple[Part, Part], counts: Mapping[str, int]) -> list[str]:
    """How the numbers of images differ from the published ones."""
    train, test = halves
    queries = 0 if test.is_query is None else int(test.is_query.sum())
    have = {
        "train": len(train), "test": len(test), "query": queries, "gallery": len(test) - queries
    }  # fmt: skip
    return [
        f"{dataset}: {have[side]:,} {side} images, published {published:,}: "
        f"{abs(published - have[side]):,} {'missing' if have[side] < published else 'too many'}"
        for side, published in counts.items()
        if have[side] != published
    ]


def _remark_notes(dataset: str, rows: CachedRows, names: Sequence[str]) -> list[str]:
    """One line per kind of picture that was converted."""
    kinds: dict[str, list[int]] = {}
    for row, remark in sorted(rows.remarks.items()):
        kinds.setdefault(remark, []).append(row)
    return [
        f"{dataset}: {len(found):,} {kind} picture(s) converted to 8-bit RGB "
        f"({_listed([names[row] for row in found])})"
        for kind, found in kinds.items()
    ]


def _bad_text(rows: CachedRows, names: Sequence[str]) -> str:
    reasons = [f"{names[row]}: {why}" for row, why in sorted(rows.bad.items())]
    return f"{len(reasons):,} of {len(names):,} pictures cannot be read ({_listed(reasons)})"


def _copies_text(rows: CachedRows, names: Sequence[str]) -> str:
    pairs = [f"{names[row]} is also {other}" for row, other in sorted(rows.left_out.items())]
    return f"{len(pairs):,} training images are in another class, too ({_listed(pairs)})"


def _listed(texts: Sequence[str]) -> str:
    more = f"; and {len(texts) - SHOWN:,} more" if len(texts) > SHOWN else ""
    return "; ".join(texts[:SHOWN]) + more
