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

import hashlib
import zlib
from io import BytesIO
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from trainables.data.cache import CachedRows, Progress, Rows, RowSpec, cached_rows
from trainables.data.dataset import Dataset, Part
from trainables.data.listing import (
    Listing,
    bad_notes,
    check_reading,
    decoded_rows,
    halve,
    remark_notes,
    report_bad,
)

ENCODED = ("webp", "jpeg", "png", "pictures")
PAYLOADS = ("images", "features", *ENCODED)
VERSION = 1
UNREADABLE = (OSError, ValueError, EOFError, KeyError, BadZipFile, zlib.error)

Arrays = dict[str, NDArray[Any]]


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
) -> Dataset:
    """Read a .npz, or a .npy of images (4-d or 3-d) or features (2-d) with a .npy of labels.

    Args:
        labels: The .npy of labels, when `path` is a .npy.
        query: "KEY=VALUE": items whose array KEY equals VALUE are queries, all others gallery.
            Without it every item is a query against all others.
        min_images: A class with fewer items is an error.
        size: Side of encoded pictures after decoding; 0 takes the first picture's shorter side.
    """
    file = Path(path).expanduser()
    arrays = _load(file, Path(labels).expanduser() if labels else None)
    payload, n_items = _payload(arrays, file)
    listing = _listing(arrays, n_items, file, query, min_images)
    order = np.argsort(listing.in_test, kind="stable")
    names = [f"item {i}" for i in order]
    settings = {"file": _digest(arrays, payload), "payload": payload, "order": _hash(order)}
    if payload in ENCODED:
        side = size or _first_side(arrays, payload)
        check_reading("arrays", size=side, fit=fit, on_bad_image=on_bad_image)
        pictures, offsets = arrays[payload], arrays["offsets"].astype(np.int64)
        rows = decoded_rows(
            "arrays",
            lambda row: BytesIO(pictures[offsets[order[row]] : offsets[order[row] + 1]].tobytes()),
            n_items,
            settings=settings,
            cache_dir=cache_dir,
            progress=progress,
            size=side,
            fit=fit,
        )
        report_bad("arrays", rows, names, on_bad_image=on_bad_image)
    else:
        rows = _plain_rows(arrays, payload, order, settings, cache_dir, progress)
    items = next(iter(rows.arrays.values()))
    kept = order[rows.kept]
    train, test = halve(items, listing, kept)
    if listing.is_query is not None:  # also for validation classes: same protocol, same difficulty
        train = Part(train.items, train.labels, listing.is_query[kept][: len(train)])
    return Dataset(
        name="arrays",
        train=train,
        test=test,
        class_names=tuple(listing.class_names),
        fingerprint=_hash(np.frombuffer(rows.fingerprint.encode(), np.uint8), listing.labels[kept]),
        notes=(*bad_notes("arrays", rows, names), *remark_notes("arrays", rows, names)),
    )


def holds_features(path: str) -> bool:
    """Whether a file holds features instead of images; its numbers are not read.

    False for a file that cannot be read: reading it will say why.
    """
    file = Path(path).expanduser()
    try:
        if file.suffix == ".npz":
            with np.load(file, allow_pickle=False) as content:
                return "features" in content.files
        return bool(np.load(file, allow_pickle=False, mmap_mode="r").ndim == 2)
    except UNREADABLE:
        return False


def _load(file: Path, labels: Path | None) -> Arrays:
    for needed in (file, labels):
        if needed is not None and not needed.is_file():
            raise ValueError(f"arrays: the file {needed} does not exist.")
    try:
        if file.suffix == ".npz":
            with np.load(file, allow_pickle=False) as content:
                arrays = {name: content[name] for name in content.files}
        elif file.suffix == ".npy":
            items = np.load(file, allow_pickle=False, mmap_mode="r")
            arrays = {"features" if items.ndim == 2 else "images": items}
        else:
            raise ValueError(f"arrays: the file must be .npz or .npy, got {file.name!r}.")
        if labels is not None:
            arrays["labels"] = np.load(labels, allow_pickle=False)
    except UNREADABLE as error:
        if str(error).startswith("arrays:"):
            raise
        reason = " ".join(str(error).split()) or type(error).__name__
        raise ValueError(f"arrays: {file} cannot be read: {reason}") from error
    if "labels" not in arrays:
        raise ValueError(
            f"arrays: {file.name} has no `labels` (it has {', '.join(arrays)}); "
            "name a .npy of them with the option labels."
        )
    return arrays


def _payload(arrays: Arrays, file: Path) -> tuple[str, int]:
    """Which array holds the items, and how many there are; shapes and types are checked here."""
    found = [name for name in PAYLOADS if name in arrays]
    if len(found) != 1:
        raise ValueError(
            f"arrays: {file.name} must hold one of {', '.join(PAYLOADS)}, "
            f"got {', '.join(found) or ', '.join(arrays)}."
        )
    name, items = found[0], arrays[found[0]]
    if name == "images" and (items.dtype != np.uint8 or items.ndim not in (3, 4)):
        raise ValueError(
            f"arrays: images must be uint8 (N, H, W) or (N, H, W, C), got {items.dtype} "
            f"{items.shape}."
        )
    if name == "features" and (items.ndim != 2 or items.dtype.kind not in "fiu"):
        raise ValueError(
            f"arrays: features must be numbers (N, D), got {items.dtype} {items.shape}."
        )
    count = len(items) if items.ndim else 0
    if name in ENCODED:
        count = _check_offsets(arrays.get("offsets"), name, items, file)
    if not count:
        raise ValueError(f"arrays: {file.name} must hold at least one item, got none in `{name}`.")
    scale = arrays.get("scale") if name == "features" else None
    if scale is not None and (scale.shape != items.shape[1:] or scale.dtype.kind not in "fiu"):
        raise ValueError(
            f"arrays: `scale` of {file.name} must be {items.shape[1]:,} numbers, one for each "
            f"dimension of the features, got {scale.dtype} {scale.shape}."
        )
    labels = arrays["labels"]
    if labels.ndim != 1 or labels.dtype.kind not in "iu" or len(labels) != count:
        raise ValueError(
            f"arrays: labels must be {count:,} integers, got {labels.dtype} {labels.shape}."
        )
    return name, count


def _check_offsets(offsets: NDArray[Any] | None, name: str, items: NDArray[Any], file: Path) -> int:
    """How many encoded pictures the offsets tell apart."""
    rule = (
        f"arrays: `{name}` of {file.name} needs `offsets` (N + 1,) that rise from 0 to its length"
    )
    if items.dtype.itemsize != 1 or items.ndim != 1:
        raise ValueError(
            f"arrays: `{name}` of {file.name} must be one run of bytes, got {items.dtype} "
            f"{items.shape}."
        )
    if offsets is None:
        raise ValueError(f"{rule}, but there are none.")
    if offsets.ndim != 1 or not len(offsets) or offsets.dtype.kind not in "iu":
        raise ValueError(f"{rule}, got {offsets.dtype} {offsets.shape}.")
    places = offsets.astype(np.int64)
    if places[0] != 0 or places[-1] > len(items) or (np.diff(places) < 0).any():
        raise ValueError(f"{rule} ({len(items):,}), got {places[0]:,} to {places[-1]:,}.")
    return len(offsets) - 1


def _listing(arrays: Arrays, n_items: int, file: Path, query: str, min_images: int) -> Listing:
    values, ids, counts = np.unique(arrays["labels"], return_inverse=True, return_counts=True)
    n_classes = len(values)
    if counts.min() < min_images:
        raise ValueError(
            f"arrays: every class needs at least {min_images} items, but class "
            f"{values[counts.argmin()]} has {counts.min()}; remove it or set min_images."
        )
    if "class_split" in arrays:
        in_test = _sized(arrays, "class_split", n_classes)[ids] != 0
    elif "split" in arrays:
        in_test = _sized(arrays, "split", n_items) != 0
    else:
        in_test = 2 * ids >= n_classes
    titles = [str(v) for v in values]
    if "class_names" in arrays:
        titles = [str(name) for name in _sized(arrays, "class_names", n_classes)]
    is_query = None
    if query:
        key, _, value = query.partition("=")
        if key not in arrays or not value:
            raise ValueError(
                f"arrays: query must be KEY=VALUE with a KEY of {file.name} "
                f"({', '.join(arrays)}), got {query!r}."
            )
        is_query = _sized(arrays, key, n_items).astype(str) == value.strip()
        if not is_query.any() or is_query.all():
            raise ValueError(
                f"arrays: query {query!r} makes {is_query.sum():,} of {n_items:,} items."
            )
    return Listing(file.parent, [], ids.astype(np.int64), in_test, titles, is_query)


def _plain_rows(
    arrays: Arrays,
    payload: str,
    order: NDArray[np.int64],
    settings: dict[str, Any],
    cache_dir: Path,
    progress: Progress | None,
) -> CachedRows:
    """Pixels or features copied to the cache, training half first."""
    items = arrays[payload]
    if payload == "images":
        shape = items.shape[1:] if items.ndim == 4 else (*items.shape[1:], 1)
        spec = RowSpec(tuple(int(n) for n in shape), "uint8")
    else:
        spec = RowSpec((int(items.shape[1]),), "float32")
    scale = arrays.get("scale") if payload == "features" else None

    def fill(start: int, stop: int) -> Rows:
        rows = np.asarray(items[order[start:stop]])
        if scale is not None:
            with np.errstate(over="ignore"):
                rows = rows.astype(np.float32) * scale.astype(np.float32)
        # Cast here and not in the cache: what is infinite in float32 must be seen.
        with np.errstate(over="ignore"):
            rows = rows.reshape(stop - start, *spec.shape).astype(spec.dtype, copy=False)
        if payload == "features" and not np.isfinite(rows).all():
            raise ValueError(
                "arrays: features must be finite in float32, got NaN, infinity or beyond 3.4e38."
            )
        return Rows({payload: rows})

    return cached_rows(
        cache_dir,
        name="arrays",
        settings={"version": VERSION, **settings},
        specs={payload: spec},
        n_rows=len(order),
        fill=fill,
        chunk_rows=1024,
        progress=progress,
    )


def _first_side(arrays: Arrays, payload: str) -> int:
    from PIL import Image

    offsets = arrays["offsets"]
    try:
        with Image.open(BytesIO(arrays[payload][offsets[0] : offsets[1]].tobytes())) as image:
            return min(image.size)
    except OSError:
        raise ValueError("arrays: the first picture cannot be read; set the option size.") from None


def _sized(arrays: Arrays, name: str, length: int) -> NDArray[Any]:
    array = arrays[name]
    if array.shape != (length,):
        raise ValueError(f"arrays: `{name}` must have {length:,} values, got shape {array.shape}.")
    return array


def _digest(arrays: Arrays, payload: str) -> str:
    """Of the contents that matter; a copy of a file elsewhere is the same data."""
    return _hash(*[arrays[n] for n in (payload, "offsets", "scale") if n in arrays])


def _hash(*arrays: NDArray[Any]) -> str:
    digest = hashlib.sha256()
    for array in arrays:
        digest.update(f"{array.dtype}{array.shape}".encode())
        for start in range(0, len(array), 4096):
            digest.update(np.ascontiguousarray(array[start : start + 4096]).tobytes())
    return digest.hexdigest()[:16]
