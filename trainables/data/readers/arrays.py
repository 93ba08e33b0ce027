"""Arrays that you have: images, encoded pictures or features in one .npz, or in .npy files.

Keys of the .npz (or the .npy files named by the options of the same name):
    labels       class id of each item (N,), integers of any value
    images       pixels (N, H, W) or (N, H, W, C), uint8; or
    features     (N, D), any numbers; times `scale` (D,) when the file has it; or
    webp, jpeg, png or pictures  encoded files as one run of bytes, with `offsets` (N + 1,)
    class_split  0 = train, 1 = test for each class, in the order of sorted class ids (optional)
    split        0 = train, 1 = test for each item (optional; without either the first half trains)
    class_names  for each class, in the order of sorted class ids (optional)
"""

from __future__ import annotations

from dataclasses import replace
from io import BytesIO
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from trainables.data.array_files import (
    ENCODED,
    Arrays,
    contents_digest,
    first_side,
    halves,
    hash_of,
    load_arrays,
    payload_of,
    sized,
    texts,
)
from trainables.data.cache import CachedRows, Progress, Rows, RowSpec, cached_rows
from trainables.data.dataset import Dataset
from trainables.data.duplicates import DIGESTS, SPEC, digests, leave_out_copies
from trainables.data.listing import (
    Listing,
    check_halves,
    check_reading,
    decoded_rows,
    fingerprint_of,
    halve,
)
from trainables.data.notes import PictureNotes

VERSION = 2
ITEMS = "images"  # their name in the cache, as that of pictures from files
SMALLEST = 8  # a side that every payload without one passes with


def read_arrays(
    *,
    cache_dir: Path,
    progress: Progress | None = None,
    path: str,
    labels: str = "",
    query: str = "",
    min_images: int = 2,
    size: int = 0,
    fit: str = "crop",
    on_bad_image: str = "refuse",
    on_duplicate: str = "refuse",
) -> Dataset:
    """Read a .npz, or a .npy of images (4-d or 3-d) or features (2-d) with a .npy of labels.

    Args:
        labels: The .npy of labels, when `path` is a .npy.
        query: "KEY=VALUE": items whose array KEY equals VALUE are queries, all others gallery.
            Without it every item is a query against all others.
        min_images: A class with fewer items is an error.
        size: Side of encoded pictures after decoding; 0 takes the shorter side of the first one
            that can be opened.
    """
    file = Path(path).expanduser()
    arrays = load_arrays(file, Path(labels).expanduser() if labels else None)
    payload, n_items = payload_of(arrays, file)
    listing = _listing(arrays, n_items, file, query, min_images)
    check_halves(listing)
    side = (size or first_side(arrays, payload)) if payload in ENCODED else SMALLEST
    check_reading(
        "arrays", size=side, fit=fit, on_bad_image=on_bad_image, on_duplicate=on_duplicate
    )
    rows = (
        _picture_rows(arrays, payload, listing, side, fit, cache_dir, progress)
        if payload in ENCODED
        else _plain_rows(arrays, payload, listing, cache_dir, progress)
    )
    order = _order(listing)
    notes = PictureNotes("arrays", rows, [f"item {i}" for i in order])
    notes.refuse(on_bad_image=on_bad_image, on_duplicate=on_duplicate)
    kept = order[rows.kept]
    queries = None if listing.is_query is None else listing.is_query[kept]
    train, test = halve(rows, listing, kept)
    if queries is not None:  # also for validation classes: same protocol, same difficulty
        train = replace(train, is_query=queries[: len(train)])
    return Dataset(
        name="arrays",
        train=train,
        test=test,
        class_names=tuple(listing.class_names),
        fingerprint=fingerprint_of(rows, listing, kept),
        notes=(*notes.of_rows(), *notes.of_queries(queries)),
        lists=tuple(notes.lists),
    )


def _listing(arrays: Arrays, n_items: int, file: Path, query: str, min_images: int) -> Listing:
    values, ids, counts = np.unique(arrays["labels"], return_inverse=True, return_counts=True)
    n_classes = len(values)
    if counts.min() < min_images:
        raise ValueError(
            f"arrays: every class needs at least {min_images} items, but class "
            f"{values[counts.argmin()]} has {counts.min()}; remove it or set min_images."
        )
    if "class_split" in arrays:
        in_test = halves(arrays, "class_split", n_classes)[ids]
    elif "split" in arrays:
        in_test = halves(arrays, "split", n_items)
    else:
        in_test = 2 * ids >= n_classes
    titles = [str(v) for v in values]
    if "class_names" in arrays:
        titles = texts(sized(arrays, "class_names", n_classes)).tolist()
    is_query = None
    if query:
        key, _, value = query.partition("=")
        if key not in arrays or not value:
            raise ValueError(
                f"arrays: query must be KEY=VALUE with a KEY of {file.name} "
                f"({', '.join(arrays)}), got {query!r}."
            )
        is_query = texts(sized(arrays, key, n_items)) == value.strip()
        if not is_query.any() or is_query.all():
            raise ValueError(
                f"arrays: query {query!r} makes {is_query.sum():,} of {n_items:,} items."
            )
    return Listing(file.parent, [], ids.astype(np.int64), in_test, titles, is_query)


def _order(listing: Listing) -> NDArray[np.int64]:
    """The items' numbers in the order of rows: training half first."""
    return np.argsort(listing.in_test, kind="stable")


def _picture_rows(
    arrays: Arrays,
    payload: str,
    listing: Listing,
    size: int,
    fit: str,
    cache_dir: Path,
    progress: Progress | None,
) -> CachedRows:
    """Encoded pictures, decoded to the cache."""
    order = _order(listing)
    pictures, offsets = arrays[payload], arrays["offsets"].astype(np.int64)
    return decoded_rows(
        "arrays",
        lambda row: BytesIO(pictures[offsets[order[row]] : offsets[order[row] + 1]].tobytes()),
        [f"item {i}" for i in order],
        listing.labels[order],
        listing.in_test[order],
        settings={
            "file": contents_digest(arrays, payload),
            "payload": payload,
            "order": hash_of(order),
        },
        cache_dir=cache_dir,
        progress=progress,
        size=size,
        fit=fit,
    )


def _plain_rows(
    arrays: Arrays,
    payload: str,
    listing: Listing,
    cache_dir: Path,
    progress: Progress | None,
) -> CachedRows:
    """Pixels or features copied to the cache."""
    order = _order(listing)
    items, scale = arrays[payload], arrays.get("scale") if payload == "features" else None
    if payload == "images":
        shape = items.shape[1:] if items.ndim == 4 else (*items.shape[1:], 1)
        spec = RowSpec(tuple(int(n) for n in shape), "uint8")
    else:
        spec = RowSpec((int(items.shape[1]),), "float32")

    def fill(start: int, stop: int) -> Rows:
        rows = np.asarray(items[order[start:stop]])
        # Cast here and not in the cache: what is infinite in float32 must be seen.
        with np.errstate(over="ignore"):
            if scale is not None:
                rows = rows.astype(np.float32) * scale.astype(np.float32)
            rows = rows.reshape(stop - start, *spec.shape).astype(spec.dtype, copy=False)
        if payload == "features" and not np.isfinite(rows).all():
            raise ValueError(
                "arrays: features must be finite in float32, got NaN, infinity or beyond 3.4e38."
            )
        return Rows({ITEMS: rows, DIGESTS: digests(rows)})

    labels, in_test = listing.labels[order], listing.in_test[order]
    settings = {
        "file": contents_digest(arrays, payload),
        "payload": payload,
        "order": hash_of(order),
    }
    return cached_rows(
        cache_dir,
        name="arrays",
        settings={"version": VERSION, "classes": hash_of(labels, in_test), **settings},
        specs={ITEMS: spec, DIGESTS: SPEC},
        n_rows=len(order),
        fill=fill,
        chunk_rows=1024,
        leave_out=leave_out_copies(labels, in_test, [f"item {i}" for i in order]),
        progress=progress,
    )
