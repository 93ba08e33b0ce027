"""Decoding of listed images into a data set: cached, checked for copies, and reported."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainables.data.cache import (
    CacheEntry,
    DataProgressCallback,
    RowChunk,
    RowSpec,
    open_or_build_entry,
)
from trainables.data.cache.entry import remaining_row_numbers
from trainables.data.dataset import Dataset, DatasetPart
from trainables.data.decode import FIT_MODES, BadImageError, FitMode, decode_image
from trainables.data.duplicates import (
    DIGEST_SPEC,
    DIGESTS_KEY,
    DUPLICATE_POLICIES,
    hash_rows,
    make_duplicate_filter,
)
from trainables.data.listing import ImageListing
from trainables.data.notes import ImageReport, describe_count_differences, escape_surrogates
from trainables.utils.suggestions import unknown_name_error

BAD_IMAGE_POLICIES = ("refuse", "skip")
ASPECTS_KEY = "aspects"  # name of the array in the cache
DECODING_VERSION = 3  # increase when decoding changes


def decode_listing(
    dataset: str,
    listing: ImageListing,
    *,
    cache_dir: Path,
    progress: DataProgressCallback | None,
    size: int,
    fit: str,
    on_bad_image: str,
    on_duplicate: str,
    counts: Mapping[str, int] | None = None,
) -> Dataset:
    """Decode the listed images, or map them from the cache, training half first.

    Args:
        dataset: Name of the data set, for messages and the cache.
        listing: The images.
        cache_dir: Cache directory of this node.
        progress: Called with (label, rows done, total rows) while images are decoded.
        size: Side of the decoded images in pixels.
        fit: One of `FIT_MODES`.
        on_bad_image: One of `BAD_IMAGE_POLICIES`.
        on_duplicate: One of `DUPLICATE_POLICIES`.
        counts: Published numbers to compare with: train and test, or train, query and gallery.
    """
    check_decoding_options(
        dataset, size=size, fit=fit, on_bad_image=on_bad_image, on_duplicate=on_duplicate
    )
    if not listing.names:
        raise ValueError(f"{dataset}: no images found in {listing.root}")
    outside = [n for n in listing.names if n.startswith("/") or ".." in n.split("/")]
    if outside:
        raise ValueError(f"{dataset}: a listed name leads outside the folder: {outside[0]}")
    listing.check_halves()
    order = np.argsort(listing.in_test, kind="stable")
    names = [listing.names[i] for i in order]
    stamps = [_stat_file(listing.root / name) for name in names]
    rows = decode_to_cache(
        dataset,
        lambda row: listing.root / names[row],
        names,
        listing.labels[order],
        listing.in_test[order],
        settings={"files": _hash_json([names, stamps])},
        cache_dir=cache_dir,
        progress=progress,
        size=size,
        fit=fit,
    )
    report = ImageReport(dataset, rows, names)
    report.raise_if_refused(on_bad_image=on_bad_image, on_duplicate=on_duplicate)
    kept = order[rows.row_numbers]
    train, test = split_halves(rows, listing, kept)
    # Copies are excluded but not missing, so published counts are compared with readable images.
    readable = order[remaining_row_numbers(len(order), [*rows.bad])]
    notes = [
        *listing.notes,
        *describe_count_differences(dataset, *listing.select_masks(readable), counts or {}),
        *report.describe_rows(),
        *report.describe_queries(listing.select_masks(kept)[1]),
    ]
    return Dataset(
        name=dataset,
        train=train,
        test=test,
        class_names=tuple(map(escape_surrogates, listing.class_names)),
        fingerprint=compute_dataset_fingerprint(rows, listing, kept, size, fit),
        notes=tuple(notes),
        note_files=tuple(report.note_files),
    )


def check_decoding_options(
    dataset: str, *, size: int, fit: str, on_bad_image: str, on_duplicate: str
) -> None:
    """Raise a ValueError if an option of image decoding has an invalid value."""
    if not 8 <= size <= 4096:
        raise ValueError(f"{dataset}: `8 <= size <= 4096` must hold, got {size}")
    if fit not in FIT_MODES:
        raise unknown_name_error(f"fit of data set {dataset!r}:", fit, FIT_MODES)
    if on_bad_image not in BAD_IMAGE_POLICIES:
        raise unknown_name_error(
            f"on_bad_image of data set {dataset!r}:", on_bad_image, BAD_IMAGE_POLICIES
        )
    if on_duplicate not in DUPLICATE_POLICIES:
        raise unknown_name_error(
            f"on_duplicate of data set {dataset!r}:", on_duplicate, DUPLICATE_POLICIES
        )


def decode_to_cache(
    dataset: str,
    source: Callable[[int], Path | BytesIO],
    names: Sequence[str],
    labels: NDArray[np.int64],
    in_test: NDArray[np.bool_],
    *,
    settings: Mapping[str, object],
    cache_dir: Path,
    progress: DataProgressCallback | None,
    size: int,
    fit: str,
) -> CacheEntry:
    """Return the images as one memory-mapped array `images` (n, size, size, 3).

    PIL decodes in several threads. With `fit` "whole" the entry also has `aspects` (n,). Training
    images that are copies of images on the other side of a split are excluded.

    Args:
        dataset: Name of the data set, for the name of the entry.
        source: Returns the encoded image of a row.
        names: Name of each row, for messages.
        labels: Class id of each row.
        in_test: Whether each row belongs to the test half.
        settings: What else the rows depend on.
        cache_dir: Cache directory of this node.
        progress: Called with (label, rows done, total rows) while images are decoded.
        size: Side of the decoded images in pixels.
        fit: One of `FIT_MODES`.
    """
    mode: FitMode = next(f for f in FIT_MODES if f == fit)
    specs = {"images": RowSpec((size, size, 3), "uint8"), DIGESTS_KEY: DIGEST_SPEC}
    if fit == "whole":
        specs[ASPECTS_KEY] = RowSpec((), "float32")

    def decode_chunk(start: int, stop: int) -> RowChunk:
        images = np.zeros((stop - start, size, size, 3), dtype=np.uint8)
        aspects = np.ones(stop - start, dtype=np.float32)
        bad, remarks = {}, {}
        for row in range(start, stop):
            image = source(row)
            try:
                pixels, remark, aspect = decode_image(image, size=size, fit=mode)
            except BadImageError as error:
                bad[row] = str(error)
            except OSError as error:  # the disk failed, so the image is not marked as bad
                place = str(image) if isinstance(image, Path) else names[row]
                raise OSError(error.errno, error.strerror, escape_surrogates(place)) from error
            else:
                images[row - start], aspects[row - start] = pixels, aspect
                if remark:
                    remarks[row] = remark
        # The cache stores only arrays that have a spec.
        arrays: dict[str, Any] = {
            "images": images,
            DIGESTS_KEY: hash_rows(images),
            ASPECTS_KEY: aspects,
        }
        return RowChunk(arrays, bad, remarks)

    return open_or_build_entry(
        cache_dir,
        name=dataset,
        settings={"version": DECODING_VERSION, "size": size, "fit": fit, **settings}
        | {"classes": _hash_json([labels.tolist(), in_test.tolist()])},
        specs=specs,
        n_rows=len(names),
        leave_out=make_duplicate_filter(labels, in_test, names),
        fill=decode_chunk,
        chunk_rows=64,
        progress=progress,
    )


def split_halves(
    rows: CacheEntry, listing: ImageListing, kept: NDArray[np.int64]
) -> tuple[DatasetPart, DatasetPart]:
    """Return training and test part of rows with the training half first, without copies.

    Args:
        rows: The decoded rows.
        listing: The images.
        kept: Index in the listing of each row.
    """
    listing.check_halves(kept)
    labels, cut = listing.labels[kept], int((~listing.in_test[kept]).sum())
    queries = None if listing.is_query is None else listing.is_query[kept]
    items, aspects = rows.arrays["images"], rows.arrays.get(ASPECTS_KEY)
    train = DatasetPart(items[:cut], labels[:cut])
    test = DatasetPart(items[cut:], labels[cut:], None if queries is None else queries[cut:])
    if aspects is not None:
        train, test = replace(train, aspects=aspects[:cut]), replace(test, aspects=aspects[cut:])
    return train, test


def compute_dataset_fingerprint(
    rows: CacheEntry, listing: ImageListing, kept: NDArray[np.int64], *settings: object
) -> str:
    """Return a hash of contents, classes, halves and queries.

    Scores of data sets with equal fingerprints can be compared.
    """
    in_test, is_query = listing.select_masks(kept)
    queries = None if is_query is None else is_query.tolist()
    classes = listing.labels[kept].tolist()
    return _hash_json([rows.fingerprint, classes, in_test.tolist(), queries, *settings])[:16]


def _stat_file(path: Path) -> list[int]:
    """Return size and modification time: cheap, and enough to notice a replaced file."""
    try:
        status = path.stat()
    except OSError:
        return [-1, -1]
    return [status.st_size, status.st_mtime_ns]


def _hash_json(value: object) -> str:
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()
