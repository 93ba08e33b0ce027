"""Files of arrays: opened without pickles, with checked shapes and types."""

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

from trainables.data.decode import IMAGE_FORMATS
from trainables.data.readers.npz_member import (
    READ_CHUNK_BYTES,
    NpzMember,
    is_lazy_loadable,
    read_npy_header,
)
from trainables.utils import s3

ENCODED_PAYLOADS = ("webp", "jpeg", "png", "pictures")
PAYLOAD_NAMES = ("images", "features", *ENCODED_PAYLOADS)
READ_ERRORS = (OSError, ValueError, EOFError, KeyError, RuntimeError, BadZipFile, zlib.error)

NamedArrays = dict[str, Any]
"""Arrays by name; the one of `PAYLOAD_NAMES` may be an `NpzMember`."""


def holds_features(path: str) -> bool:
    """Whether a local file or S3 object contains features instead of images.

    Only headers are read. False for a file that cannot be read; loading it reports the reason.
    """
    try:
        with _open_binary(path) as file:
            if path.endswith(".npz"):
                with _load_npz(file, path) as content:
                    return "features" in content.files
            return len(read_npy_header(file)[0]) == 2
    except READ_ERRORS:
        return False


def _open_binary(path: str) -> BinaryIO:
    return s3.open_s3_object(path) if s3.is_s3_uri(path) else Path(path).expanduser().open("rb")


def _load_npz(file: Path | BinaryIO, name: str) -> NpzFile:
    content = np.load(file, allow_pickle=False)
    if not isinstance(content, NpzFile):
        raise ValueError(f"arrays: {name} must contain named arrays, as numpy.savez writes them")
    return content


def _load_npy(file: Path, mmap_mode: Literal["r"] | None = None) -> NDArray[Any]:
    content = np.load(file, allow_pickle=False, mmap_mode=mmap_mode)
    if not isinstance(content, np.ndarray):
        raise ValueError(f"arrays: {file.name} must contain one array, as numpy.save writes it")
    return content


def _load_npz_member(file: Path, content: NpzFile, name: str) -> Any:
    """Return an array of a .npz file; the large one is loaded when it is needed."""
    lazy = name in PAYLOAD_NAMES and is_lazy_loadable(file, name)
    return NpzMember(file, name) if lazy else content[name]


def load_arrays(file: Path, labels: Path | None) -> NamedArrays:
    """Return all arrays of a .npz file, or of a .npy file and its .npy file of labels."""
    for needed in (file, labels):
        if needed is not None and not needed.is_file():
            raise ValueError(f"arrays: the file {needed} does not exist")
    try:
        if file.suffix == ".npz":
            with _load_npz(file, file.name) as content:
                arrays = {name: _load_npz_member(file, content, name) for name in content.files}
        elif file.suffix == ".npy":
            items = _load_npy(file, mmap_mode="r")
            arrays = {"features" if items.ndim == 2 else "images": items}
        else:
            raise ValueError(f"arrays: the file must be .npz or .npy, got {file.name!r}")
        if labels is not None:
            arrays["labels"] = _load_npy(labels)
    except READ_ERRORS as error:
        if str(error).startswith("arrays:"):
            raise
        reason = " ".join(str(error).split()) or type(error).__name__
        raise ValueError(f"arrays: {file} cannot be read: {reason}") from error
    if "labels" not in arrays:
        raise ValueError(
            f"arrays: {file.name} has no `labels` (it has {', '.join(arrays)}); "
            "set the option labels to a .npy file of class ids"
        )
    return arrays


def find_payload(arrays: NamedArrays, file: Path) -> tuple[str, int]:
    """Return the name of the array of items and their number, after checking shapes and types."""
    payloads = [name for name in PAYLOAD_NAMES if name in arrays]
    if len(payloads) != 1:
        raise ValueError(
            f"arrays: {file.name} must contain one of {', '.join(PAYLOAD_NAMES)}, "
            f"got {', '.join(payloads) or ', '.join(arrays)}"
        )
    name, items = payloads[0], arrays[payloads[0]]
    if name == "images" and (items.dtype != np.uint8 or items.ndim not in (3, 4)):
        raise ValueError(
            f"arrays: images must be uint8 (N, H, W) or (N, H, W, C), got {items.dtype} "
            f"{items.shape}"
        )
    if name == "images" and items.ndim == 4 and items.shape[3] > 4 and items.shape[1] in (1, 3, 4):
        raise ValueError(
            f"arrays: images must be (N, H, W, C), but {items.shape} looks like (N, C, H, W): "
            "channels must come last; store images.transpose(0, 2, 3, 1)"
        )
    if name == "features" and (items.ndim != 2 or items.dtype.kind not in "fiu"):
        raise ValueError(
            f"arrays: features must be numbers (N, D), got {items.dtype} {items.shape}"
        )
    if items.ndim > 1 and not np.prod(items.shape[1:]):
        raise ValueError(f"arrays: `{name}` of {file.name} must not be empty, got {items.shape}")
    count = len(items) if items.ndim else 0
    if name in ENCODED_PAYLOADS:
        count = _count_encoded_images(arrays.get("offsets"), name, items, file)
    if not count:
        raise ValueError(
            f"arrays: {file.name} must contain at least one item, got none in `{name}`"
        )
    scale = arrays.get("scale") if name == "features" else None
    if scale is not None and (scale.shape != items.shape[1:] or scale.dtype.kind not in "fiu"):
        raise ValueError(
            f"arrays: `scale` of {file.name} must be {items.shape[1]:,} numbers, one for each "
            f"dimension of the features, got {scale.dtype} {scale.shape}"
        )
    labels = arrays["labels"]
    if labels.ndim != 1 or labels.dtype.kind not in "iu" or len(labels) != count:
        raise ValueError(
            f"arrays: labels must be {count:,} integers, got {labels.dtype} {labels.shape}"
        )
    return name, count


def _count_encoded_images(
    offsets: NDArray[Any] | None, name: str, items: NDArray[Any], file: Path
) -> int:
    """Return the number of encoded images between the offsets."""
    rule = (
        f"arrays: `{name}` of {file.name} needs `offsets` (N + 1,) that rise from 0 to its length"
    )
    if items.dtype.itemsize != 1 or items.ndim != 1:
        raise ValueError(
            f"arrays: `{name}` of {file.name} must be one array of bytes, got {items.dtype} "
            f"{items.shape}"
        )
    if offsets is None:
        raise ValueError(f"{rule}, but has none")
    if offsets.ndim != 1 or not len(offsets) or offsets.dtype.kind not in "iu":
        raise ValueError(f"{rule}, got {offsets.dtype} {offsets.shape}")
    places = offsets.astype(np.int64)
    if places[0] != 0 or places[-1] > len(items) or (np.diff(places) < 0).any():
        raise ValueError(f"{rule} ({len(items):,}), got {places[0]:,} to {places[-1]:,}")
    return len(offsets) - 1


def first_image_side(arrays: NamedArrays, payload: str) -> int:
    """Return the shorter side of the first encoded image that can be opened."""
    from PIL import Image

    for encoded in _iter_encoded_images(arrays[payload], arrays["offsets"].tolist()):
        try:
            with Image.open(BytesIO(encoded), formats=IMAGE_FORMATS) as image:
                return min(image.size)
        except (OSError, Image.DecompressionBombError):
            continue  # decoding all images reports the reason
    raise ValueError(f"arrays: none of the {len(arrays['offsets']) - 1:,} images can be read")


def _iter_encoded_images(items: Any, offsets: list[int]) -> Iterator[bytes]:
    if isinstance(items, NpzMember):
        return items.iter_byte_runs(offsets)
    return (items[start:stop].tobytes() for start, stop in pairwise(offsets))


def get_sized_array(arrays: NamedArrays, name: str, length: int) -> NDArray[Any]:
    """Return an array after checking that it has one value for each item or class."""
    array: NDArray[Any] = arrays[name]
    if array.shape != (length,):
        raise ValueError(f"arrays: `{name}` must have {length:,} values, got shape {array.shape}")
    return array


def decode_texts(array: NDArray[Any]) -> NDArray[np.str_]:
    """Return values as text; bytes are decoded as UTF-8."""
    if array.dtype.kind == "S":
        return np.char.decode(array, "utf-8", "replace")
    return array.astype(str)


def read_test_mask(arrays: NamedArrays, name: str, length: int) -> NDArray[np.bool_]:
    """Return which items or classes belong to the test half: 1 is test, 0 is train."""
    array = get_sized_array(arrays, name, length)
    invalid = [value for value in np.unique(array).tolist() if value not in (0, 1)]
    if invalid:
        raise ValueError(f"arrays: `{name}` must be 0 (train) or 1 (test), got {invalid[0]!r}")
    in_test: NDArray[np.bool_] = array != 0
    return in_test


def hash_payload(arrays: NamedArrays, payload: str) -> str:
    """Return a hash of the items; a copy of a file has the same hash."""
    items, others = arrays[payload], [arrays[n] for n in ("offsets", "scale") if n in arrays]
    if isinstance(items, NpzMember):
        return _hash_into_digest(items.content_digest.copy(), others)
    return hash_arrays(items, *others)


def hash_arrays(*arrays: NDArray[Any]) -> str:
    """Return a hash of types, shapes and values."""
    return _hash_into_digest(hashlib.sha256(), arrays)


def _hash_into_digest(digest: Any, arrays: Iterable[NDArray[Any]]) -> str:
    for array in arrays:
        digest.update(f"{array.dtype}{array.shape}".encode())
        rows = max(1, READ_CHUNK_BYTES // max(1, array[:1].nbytes))
        for start in range(0, len(array), rows):
            digest.update(np.ascontiguousarray(array[start : start + rows]).tobytes())
    return str(digest.hexdigest()[:16])
