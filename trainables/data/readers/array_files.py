"""What does a file of arrays hold? Opened without pickles, its shapes and types checked."""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Iterable, Iterator
from io import BytesIO
from itertools import pairwise
from pathlib import Path
from typing import Any, BinaryIO, Literal
from zipfile import BadZipFile

import numpy as np
from numpy.lib.npyio import NpzFile
from numpy.typing import NDArray

from trainables import objects
from trainables.data.pictures import FORMATS
from trainables.data.stored import PART, Stored, can_wait, header_of

ENCODED = ("webp", "jpeg", "png", "pictures")
PAYLOADS = ("images", "features", *ENCODED)
UNREADABLE = (OSError, ValueError, EOFError, KeyError, RuntimeError, BadZipFile, zlib.error)

Arrays = dict[str, Any]
"""Arrays by name; one of `PAYLOADS` may be `Stored`."""


def holds_features(path: str) -> bool:
    """Whether a file, here or on S3, holds features instead of images; its numbers are not read.

    False for a file that cannot be read: reading it will say why.
    """
    try:
        with _opened(path) as file:
            if path.endswith(".npz"):
                with _npz(file, path) as content:
                    return "features" in content.files
            return len(header_of(file)[0]) == 2
    except UNREADABLE:
        return False


def _opened(path: str) -> BinaryIO:
    return objects.opened(path) if objects.is_object(path) else Path(path).expanduser().open("rb")


def _npz(file: Path | BinaryIO, name: str) -> NpzFile:
    content = np.load(file, allow_pickle=False)
    if not isinstance(content, NpzFile):
        raise ValueError(f"arrays: {name} must hold arrays by name, as numpy.savez writes them.")
    return content


def _npy(file: Path, mmap_mode: Literal["r"] | None = None) -> NDArray[Any]:
    content = np.load(file, allow_pickle=False, mmap_mode=mmap_mode)
    if not isinstance(content, np.ndarray):
        raise ValueError(f"arrays: {file.name} must hold one array, as numpy.save writes it.")
    return content


def _member(file: Path, content: NpzFile, name: str) -> Any:
    """An array of a .npz; the large one is left where it is until it is needed."""
    waits = name in PAYLOADS and can_wait(file, name)
    return Stored(file, name) if waits else content[name]


def load_arrays(file: Path, labels: Path | None) -> Arrays:
    """All arrays of a .npz, or of a .npy and its .npy of labels."""
    for needed in (file, labels):
        if needed is not None and not needed.is_file():
            raise ValueError(f"arrays: the file {needed} does not exist.")
    try:
        if file.suffix == ".npz":
            with _npz(file, file.name) as content:
                arrays = {name: _member(file, content, name) for name in content.files}
        elif file.suffix == ".npy":
            items = _npy(file, mmap_mode="r")
            arrays = {"features" if items.ndim == 2 else "images": items}
        else:
            raise ValueError(f"arrays: the file must be .npz or .npy, got {file.name!r}.")
        if labels is not None:
            arrays["labels"] = _npy(labels)
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


def payload_of(arrays: Arrays, file: Path) -> tuple[str, int]:
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
    if name == "images" and items.ndim == 4 and items.shape[3] > 4 and items.shape[1] in (1, 3, 4):
        raise ValueError(
            f"arrays: images must be (N, H, W, C), but {items.shape} looks like (N, C, H, W): "
            "channels must come last; store images.transpose(0, 2, 3, 1)."
        )
    if name == "features" and (items.ndim != 2 or items.dtype.kind not in "fiu"):
        raise ValueError(
            f"arrays: features must be numbers (N, D), got {items.dtype} {items.shape}."
        )
    if items.ndim > 1 and not np.prod(items.shape[1:]):
        raise ValueError(f"arrays: `{name}` of {file.name} holds nothing, got {items.shape}.")
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


def first_side(arrays: Arrays, payload: str) -> int:
    """The shorter side of the first encoded picture that can be opened."""
    from PIL import Image

    for picture in _encoded(arrays[payload], arrays["offsets"].tolist()):
        try:
            with Image.open(BytesIO(picture), formats=FORMATS) as image:
                return min(image.size)
        except (OSError, Image.DecompressionBombError):
            continue  # reading all of them will say why
    raise ValueError(f"arrays: none of the {len(arrays['offsets']) - 1:,} pictures can be read.")


def _encoded(items: Any, offsets: list[int]) -> Iterator[bytes]:
    if isinstance(items, Stored):
        return items.runs(offsets)
    return (items[start:stop].tobytes() for start, stop in pairwise(offsets))


def sized(arrays: Arrays, name: str, length: int) -> NDArray[Any]:
    """An array that must have one value for each item or class."""
    array: NDArray[Any] = arrays[name]
    if array.shape != (length,):
        raise ValueError(f"arrays: `{name}` must have {length:,} values, got shape {array.shape}.")
    return array


def texts(array: NDArray[Any]) -> NDArray[np.str_]:
    """Values as text; bytes are taken as UTF-8."""
    if array.dtype.kind == "S":
        return np.char.decode(array, "utf-8", "replace")
    return array.astype(str)


def halves(arrays: Arrays, name: str, length: int) -> NDArray[np.bool_]:
    """Which items or classes are of the test half: those that are 1 and not 0."""
    array = sized(arrays, name, length)
    odd = [value for value in np.unique(array).tolist() if value not in (0, 1)]
    if odd:
        raise ValueError(f"arrays: `{name}` must be 0 (train) or 1 (test), got {odd[0]!r}.")
    in_test: NDArray[np.bool_] = array != 0
    return in_test


def contents_digest(arrays: Arrays, payload: str) -> str:
    """Of the contents that matter; a copy of a file elsewhere is the same data."""
    items, others = arrays[payload], [arrays[n] for n in ("offsets", "scale") if n in arrays]
    if isinstance(items, Stored):
        return _hashed(items.contents.copy(), others)
    return hash_of(items, *others)


def hash_of(*arrays: NDArray[Any]) -> str:
    """Of types, shapes and values."""
    return _hashed(hashlib.sha256(), arrays)


def _hashed(digest: Any, arrays: Iterable[NDArray[Any]]) -> str:
    for array in arrays:
        digest.update(f"{array.dtype}{array.shape}".encode())
        rows = max(1, PART // max(1, array[:1].nbytes))
        for start in range(0, len(array), rows):
            digest.update(np.ascontiguousarray(array[start : start + rows]).tobytes())
    return str(digest.hexdigest()[:16])
