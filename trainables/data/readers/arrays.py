"""Data set of your own arrays: images, encoded images or features in one .npz or in .npy files.

Keys of the .npz (or the .npy files named by the options of the same name):
    labels       class id of each item (N,), integers of any value
    images       pixels (N, H, W) or (N, H, W, C), uint8; or
    features     (N, D), any numbers; times `scale` (D,) when the file has it; or
    webp, jpeg, png or pictures  encoded files as one array of bytes, with `offsets` (N + 1,)
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

from trainables.data.cache import (
    CacheEntry,
    DataProgressCallback,
    RowChunk,
    RowSpec,
    open_or_build_entry,
)
from trainables.data.dataset import Dataset
from trainables.data.decode_listing import (
    check_decoding_options,
    compute_dataset_fingerprint,
    decode_to_cache,
    split_halves,
)
from trainables.data.duplicates import DIGEST_SPEC, DIGESTS_KEY, hash_rows, make_duplicate_filter
from trainables.data.listing import ImageListing
from trainables.data.notes import ImageReport
from trainables.data.readers.array_files import (
    ENCODED_PAYLOADS,
    NamedArrays,
    decode_texts,
    find_payload,
    first_image_side,
    get_sized_array,
    hash_arrays,
    hash_payload,
    load_arrays,
    read_test_mask,
)

ARRAYS_VERSION = 2
ITEMS_KEY = "images"  # name of the array in the cache, also for features
MIN_IMAGE_SIDE = 8  # a valid side for payloads that need no decoding


def build_arrays(
    *,
    cache_dir: Path,
    progress: DataProgressCallback | None,
    path: str,
    labels: str,
    query: str,
    min_images: int,
    size: int,
    fit: str,
    on_bad_image: str,
    on_duplicate: str,
) -> Dataset:
    """Read a .npz, or a .npy of images (4-d or 3-d) or features (2-d) with a .npy of labels.

    Args:
        cache_dir: Cache directory of this node.
        progress: Called with (label, rows done, total rows) while the cache is filled.
        path: The .npz or .npy file.
        labels: The .npy of labels if `path` is a .npy, else "".
        query: "KEY=VALUE": items whose array KEY equals VALUE are queries, all others gallery. If
            "", every item is a query against all others.
        min_images: Smallest number of items of a class.
        size: Side of encoded images after decoding; 0 for the shorter side of the first image that
            can be opened.
        fit: One of `FIT_MODES`, for encoded images.
        on_bad_image: One of `BAD_IMAGE_POLICIES`.
        on_duplicate: One of `DUPLICATE_POLICIES`.
    """
    file = Path(path).expanduser()
    arrays = load_arrays(file, Path(labels).expanduser() if labels else None)
    payload, n_items = find_payload(arrays, file)
    listing = _build_listing(arrays, n_items, file, query, min_images)
    listing.check_halves()
    side = (
        (size or first_image_side(arrays, payload))
        if payload in ENCODED_PAYLOADS
        else MIN_IMAGE_SIDE
    )
    check_decoding_options(
        "arrays", size=side, fit=fit, on_bad_image=on_bad_image, on_duplicate=on_duplicate
    )
    rows = (
        _cache_decoded_images(arrays, payload, listing, side, fit, cache_dir, progress)
        if payload in ENCODED_PAYLOADS
        else _cache_array_items(arrays, payload, listing, cache_dir, progress)
    )
    order = _train_first_order(listing)
    report = ImageReport("arrays", rows, [f"item {i}" for i in order])
    report.raise_if_refused(on_bad_image=on_bad_image, on_duplicate=on_duplicate)
    kept = order[rows.row_numbers]
    queries = None if listing.is_query is None else listing.is_query[kept]
    train, test = split_halves(rows, listing, kept)
    if queries is not None:  # validation folds use the protocol of the test half
        train = replace(train, is_query=queries[: len(train)])
    return Dataset(
        name="arrays",
        train=train,
        test=test,
        class_names=tuple(listing.class_names),
        fingerprint=compute_dataset_fingerprint(rows, listing, kept),
        notes=(*report.describe_rows(), *report.describe_queries(queries)),
        note_files=tuple(report.note_files),
    )


def _build_listing(
    arrays: NamedArrays, n_items: int, file: Path, query: str, min_images: int
) -> ImageListing:
    values, ids, counts = np.unique(arrays["labels"], return_inverse=True, return_counts=True)
    n_classes = len(values)
    if counts.min() < min_images:
        raise ValueError(
            f"arrays: every class needs at least {min_images} items, but class "
            f"{values[counts.argmin()]} has {counts.min()}; remove it or set min_images"
        )
    if "class_split" in arrays:
        in_test = read_test_mask(arrays, "class_split", n_classes)[ids]
    elif "split" in arrays:
        in_test = read_test_mask(arrays, "split", n_items)
    else:
        in_test = 2 * ids >= n_classes
    titles = [str(v) for v in values]
    if "class_names" in arrays:
        titles = decode_texts(get_sized_array(arrays, "class_names", n_classes)).tolist()
    is_query = None
    if query:
        key, _, value = query.partition("=")
        if key not in arrays or not value:
            raise ValueError(
                f"arrays: query must be KEY=VALUE with a KEY of {file.name} "
                f"({', '.join(arrays)}), got {query!r}"
            )
        is_query = decode_texts(get_sized_array(arrays, key, n_items)) == value.strip()
        if not is_query.any() or is_query.all():
            raise ValueError(
                f"arrays: query {query!r} must select some of the items, "
                f"but selects {is_query.sum():,} of {n_items:,}"
            )
    return ImageListing(file.parent, [], ids.astype(np.int64), in_test, titles, is_query)


def _train_first_order(listing: ImageListing) -> NDArray[np.int64]:
    """Return the items' indices in the order of rows: training half first."""
    return np.argsort(listing.in_test, kind="stable")


def _cache_decoded_images(
    arrays: NamedArrays,
    payload: str,
    listing: ImageListing,
    size: int,
    fit: str,
    cache_dir: Path,
    progress: DataProgressCallback | None,
) -> CacheEntry:
    """Decode encoded images to the cache."""
    order = _train_first_order(listing)
    images, offsets = arrays[payload], arrays["offsets"].astype(np.int64)
    return decode_to_cache(
        "arrays",
        lambda row: BytesIO(images[offsets[order[row]] : offsets[order[row] + 1]].tobytes()),
        [f"item {i}" for i in order],
        listing.labels[order],
        listing.in_test[order],
        settings={
            "file": hash_payload(arrays, payload),
            "payload": payload,
            "order": hash_arrays(order),
        },
        cache_dir=cache_dir,
        progress=progress,
        size=size,
        fit=fit,
    )


def _cache_array_items(
    arrays: NamedArrays,
    payload: str,
    listing: ImageListing,
    cache_dir: Path,
    progress: DataProgressCallback | None,
) -> CacheEntry:
    """Copy pixels or features to the cache."""
    order = _train_first_order(listing)
    items, scale = arrays[payload], arrays.get("scale") if payload == "features" else None
    if payload == "images":
        shape = items.shape[1:] if items.ndim == 4 else (*items.shape[1:], 1)
        spec = RowSpec(tuple(int(n) for n in shape), "uint8")
    else:
        spec = RowSpec((int(items.shape[1]),), "float32")

    def copy_chunk(start: int, stop: int) -> RowChunk:
        rows = np.asarray(items[order[start:stop]])
        # Cast here and not in the cache, so that values beyond float32 are noticed.
        with np.errstate(over="ignore"):
            if scale is not None:
                rows = rows.astype(np.float32) * scale.astype(np.float32)
            rows = rows.reshape(stop - start, *spec.shape).astype(spec.dtype, copy=False)
        if payload == "features" and not np.isfinite(rows).all():
            raise ValueError(
                "arrays: features must be finite in float32, got NaN, infinity or beyond 3.4e38"
            )
        return RowChunk({ITEMS_KEY: rows, DIGESTS_KEY: hash_rows(rows)})

    labels, in_test = listing.labels[order], listing.in_test[order]
    settings = {
        "file": hash_payload(arrays, payload),
        "payload": payload,
        "order": hash_arrays(order),
    }
    return open_or_build_entry(
        cache_dir,
        name="arrays",
        settings={"version": ARRAYS_VERSION, "classes": hash_arrays(labels, in_test), **settings},
        specs={ITEMS_KEY: spec, DIGESTS_KEY: DIGEST_SPEC},
        n_rows=len(order),
        fill=copy_chunk,
        chunk_rows=1024,
        leave_out=make_duplicate_filter(labels, in_test, [f"item {i}" for i in order]),
        progress=progress,
    )
