"""From a list of picture files to a data set: decoded once, checked, reported."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from io import BytesIO
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from trainables.data.cache import CachedRows, Progress, Rows, RowSpec, cached_rows
from trainables.data.dataset import Dataset, Part
from trainables.data.duplicates import DIGESTS, ON_DUPLICATE, SPEC, digests, leave_out_copies
from trainables.data.entry import kept_rows
from trainables.data.notes import PictureNotes, count_notes, printable
from trainables.data.pictures import FITS, BadPictureError, Fit, decode
from trainables.names import unknown_name

ON_BAD_IMAGE = ("refuse", "skip")
ASPECTS = "aspects"  # their name in the cache
VERSION = 3  # raise when decoding changes


@dataclass(frozen=True)
class Listing:
    """Pictures with their classes, before anything is decoded.

    Args:
        root: Folder that the names are relative to.
        names: Relative path of each picture.
        labels: Class id of each, 0..C-1.
        in_test: Whether it belongs to the test half.
        class_names: Name of class id i.
        is_query: For query/gallery protocols; None when every test item is a query.
        notes: What users must know of files that are not listed.
    """

    root: Path
    names: Sequence[str]
    labels: NDArray[np.int64]
    in_test: NDArray[np.bool_]
    class_names: Sequence[str]
    is_query: NDArray[np.bool_] | None = None
    notes: Sequence[str] = ()


def read_listing(
    dataset: str,
    listing: Listing,
    *,
    cache_dir: Path,
    progress: Progress | None,
    size: int,
    fit: str,
    on_bad_image: str,
    on_duplicate: str,
    counts: Mapping[str, int] | None = None,
) -> Dataset:
    """Decode the pictures (or map them when that was done), training half first.

    Args:
        dataset: Name of the data set, for messages and the cache.
        counts: Published numbers to compare with: train and test, or train, query and gallery.
    """
    check_reading(dataset, size=size, fit=fit, on_bad_image=on_bad_image, on_duplicate=on_duplicate)
    if not listing.names:
        raise ValueError(f"{dataset}: there are no pictures in {listing.root}.")
    outside = [n for n in listing.names if n.startswith("/") or ".." in n.split("/")]
    if outside:
        raise ValueError(f"{dataset}: a listed name leads outside the folder: {outside[0]}.")
    check_halves(listing)
    order = np.argsort(listing.in_test, kind="stable")
    names = [listing.names[i] for i in order]
    stamps = [_stamp(listing.root / name) for name in names]
    rows = decoded_rows(
        dataset,
        lambda row: listing.root / names[row],
        names,
        listing.labels[order],
        listing.in_test[order],
        settings={"files": _digest([names, stamps])},
        cache_dir=cache_dir,
        progress=progress,
        size=size,
        fit=fit,
    )
    notes = PictureNotes(dataset, rows, names)
    notes.refuse(on_bad_image=on_bad_image, on_duplicate=on_duplicate)
    kept = order[rows.kept]
    train, test = halve(rows, listing, kept)
    queries = None if listing.is_query is None else listing.is_query[kept]
    readable = order[kept_rows(len(order), [*rows.bad])]  # copies are left out but not missing
    said = [
        *listing.notes,
        *count_notes(dataset, *_sides(listing, readable), counts or {}),
        *notes.of_rows(),
        *notes.of_queries(queries),
    ]
    return Dataset(
        name=dataset,
        train=train,
        test=test,
        class_names=tuple(map(printable, listing.class_names)),
        fingerprint=fingerprint_of(rows, listing, kept, size, fit),
        notes=tuple(said),
        lists=tuple(notes.lists),
    )


def _sides(
    listing: Listing, chosen: NDArray[np.int64]
) -> tuple[NDArray[np.bool_], NDArray[np.bool_] | None]:
    """Which of these pictures test, and which ask."""
    asks = None if listing.is_query is None else listing.is_query[chosen]
    return listing.in_test[chosen], asks


def check_reading(
    dataset: str, *, size: int, fit: str, on_bad_image: str, on_duplicate: str
) -> None:
    """Refuse settings that no picture could be read with."""
    if not 8 <= size <= 4096:
        raise ValueError(f"{dataset}: `8 <= size <= 4096` must hold, got {size}.")
    if fit not in FITS:
        raise unknown_name(f"fit of data set {dataset!r}:", fit, FITS)
    if on_bad_image not in ON_BAD_IMAGE:
        raise unknown_name(f"on_bad_image of data set {dataset!r}:", on_bad_image, ON_BAD_IMAGE)
    if on_duplicate not in ON_DUPLICATE:
        raise unknown_name(f"on_duplicate of data set {dataset!r}:", on_duplicate, ON_DUPLICATE)


def decoded_rows(
    dataset: str,
    source: Callable[[int], Path | BytesIO],
    names: Sequence[str],
    labels: NDArray[np.int64],
    in_test: NDArray[np.bool_],
    *,
    settings: Mapping[str, object],
    cache_dir: Path,
    progress: Progress | None,
    size: int,
    fit: str,
) -> CachedRows:
    """Pictures as one memory-mapped array `images` (n, size, size, 3); PIL decodes in threads.

    With `fit` "whole" there are `aspects` (n,), too. Copies on two sides of a split are left out.

    Args:
        source: The picture of a row.
        names: Of the rows, for messages; as `labels` and `in_test` in the order of rows.
    """
    how: Fit = next(f for f in FITS if f == fit)
    specs = {"images": RowSpec((size, size, 3), "uint8"), DIGESTS: SPEC}
    if fit == "whole":
        specs[ASPECTS] = RowSpec((), "float32")

    def fill(start: int, stop: int) -> Rows:
        images = np.zeros((stop - start, size, size, 3), dtype=np.uint8)
        aspects = np.ones(stop - start, dtype=np.float32)
        bad, remarks = {}, {}
        for row in range(start, stop):
            picture = source(row)
            try:
                pixels, remark, aspect = decode(picture, size=size, fit=how)
            except BadPictureError as error:
                bad[row] = str(error)
            except OSError as error:  # of the disk and not of the picture: not kept against it
                place = str(picture) if isinstance(picture, Path) else names[row]
                raise OSError(error.errno, error.strerror, printable(place)) from error
            else:
                images[row - start], aspects[row - start] = pixels, aspect
                if remark:
                    remarks[row] = remark
        # Aspects that no spec names are not kept.
        found = {"images": images, DIGESTS: digests(images)}
        return Rows({**found, ASPECTS: aspects}, bad, remarks)

    return cached_rows(
        cache_dir,
        name=dataset,
        settings={"version": VERSION, "size": size, "fit": fit, **settings}
        | {"classes": _digest([labels.tolist(), in_test.tolist()])},
        specs=specs,
        n_rows=len(names),
        leave_out=leave_out_copies(labels, in_test, names),
        fill=fill,
        chunk_rows=64,
        progress=progress,
    )


def halve(rows: CachedRows, listing: Listing, kept: NDArray[np.int64]) -> tuple[Part, Part]:
    """Both parts of rows that lie training half first; slices, so nothing is copied."""
    check_halves(listing, kept)
    labels, cut = listing.labels[kept], int((~listing.in_test[kept]).sum())
    queries = None if listing.is_query is None else listing.is_query[kept]
    items, aspects = rows.arrays["images"], rows.arrays.get(ASPECTS)
    train = Part(items[:cut], labels[:cut])
    test = Part(items[cut:], labels[cut:], None if queries is None else queries[cut:])
    if aspects is not None:
        train, test = replace(train, aspects=aspects[:cut]), replace(test, aspects=aspects[cut:])
    return train, test


def fingerprint_of(
    rows: CachedRows, listing: Listing, kept: NDArray[np.int64], *settings: object
) -> str:
    """Of contents, classes, halves and queries: where they are equal, scores can be compared."""
    in_test, is_query = _sides(listing, kept)
    asks = None if is_query is None else is_query.tolist()
    classes = listing.labels[kept].tolist()
    return _digest([rows.fingerprint, classes, in_test.tolist(), asks, *settings])[:16]


def check_halves(listing: Listing, kept: NDArray[np.int64] | slice = slice(None)) -> None:
    """Refuse halves that share a class or have too few, before and after items are left out."""
    labels, in_test = listing.labels[kept], listing.in_test[kept]
    shared = np.intersect1d(labels[~in_test], labels[in_test])
    if len(shared):
        names = ", ".join(repr(listing.class_names[i]) for i in shared[:3])
        raise ValueError(f"train and test must share no class, but both hold {names}.")
    for own, half in ((labels[~in_test], "training"), (labels[in_test], "test")):
        classes = np.unique(own)
        if len(classes) < 2:
            got = f"only {listing.class_names[classes[0]]!r}" if len(classes) else "none"
            raise ValueError(f"the {half} half needs at least 2 classes with images, got {got}.")


def existing_folder(dataset: str, path: str, *inside: str) -> Path:
    """The folder a user named, or the usual sub-folder of an archive below it.

    Args:
        inside: Names of sub-folders in which the files may be instead.
    """
    root = Path(path).expanduser()
    if not root.is_dir():
        raise ValueError(f"{dataset}: the folder {root} does not exist.")
    for name in inside:
        if (root / name).is_dir():
            return root / name
    return root


def needed_file(dataset: str, folder: Path, *names: str) -> Path:
    """The first of these files that exists below the folder."""
    for name in names:
        if (folder / name).is_file():
            return folder / name
    raise ValueError(f"{dataset}: {folder} must hold {' or '.join(names)}, but it does not.")


def lines_of(dataset: str, path: Path) -> list[str]:
    """The lines of a list file, which must be UTF-8."""
    try:
        return path.read_text(encoding="utf-8-sig").splitlines()  # some editors write a mark first
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{dataset}: {path} must be UTF-8 text, but byte {error.start:,} is not."
        ) from error


def _stamp(path: Path) -> list[int]:
    """Size and time of change; cheap, and enough to see that a file was replaced."""
    try:
        status = path.stat()
    except OSError:
        return [-1, -1]
    return [status.st_size, status.st_mtime_ns]


def _digest(value: object) -> str:
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()
