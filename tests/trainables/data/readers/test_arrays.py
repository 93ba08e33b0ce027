"""Data set of arrays: images, encoded images and features, with splits and queries."""

from __future__ import annotations

import io
import struct
import tracemalloc
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from trainables.data.registry import DATASETS, load_dataset

pytestmark = pytest.mark.split


def encode_image(pixels: Image.Image, image_format: str = "PNG") -> bytes:
    """Return the bytes of an image file; WebP is lossless."""
    buffer = io.BytesIO()
    options = {"lossless": True} if image_format == "WEBP" else {}
    pixels.save(buffer, format=image_format, **options)
    return buffer.getvalue()


def join_files(files: list[bytes]) -> dict[str, Any]:
    """Return encoded images as one array of bytes and their offsets."""
    content = np.frombuffer(b"".join(files), np.uint8)
    return {"content": content, "offsets": np.cumsum([0, *map(len, files)])}


def test_images_in_npz_and_in_npy(tmp_path: Path) -> None:
    labels = np.repeat([70, 3, 2**40, 5], 3)
    images = np.arange(12, dtype=np.uint8)[:, None, None] * np.ones((1, 6, 6), dtype=np.uint8)
    np.savez(tmp_path / "a.npz", images=images, labels=labels)
    dataset = load_dataset("arrays", cache_dir=tmp_path / "c", path=str(tmp_path / "a.npz"))
    assert dataset.class_names == ("3", "5", "70", str(2**40))
    assert dataset.train.items.shape == (6, 6, 6, 1)
    assert dataset.train.items[:, 0, 0, 0].tolist() == [3, 4, 5, 9, 10, 11]
    assert dataset.test.items[:, 0, 0, 0].tolist() == [0, 1, 2, 6, 7, 8]
    np.save(tmp_path / "i.npy", images[..., None])
    np.save(tmp_path / "l.npy", labels)
    same = load_dataset(
        "arrays", cache_dir=tmp_path / "c", path=str(tmp_path / "i.npy"),
        labels=str(tmp_path / "l.npy"),
    )  # fmt: skip
    assert np.array_equal(same.test.items, dataset.test.items)


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
@pytest.mark.parametrize("payload", ["images", "png"])
def test_opening_cached_arrays_loads_none_of_them(tmp_path: Path, save: Any, payload: str) -> None:
    rng = np.random.default_rng(0)
    content: dict[str, Any] = {"images": rng.integers(0, 255, (32, 512, 512), dtype=np.uint8)}
    if payload == "png":
        files = join_files([encode_image(Image.fromarray(p)) for p in content.pop("images")])
        content = {"png": files["content"], "offsets": files["offsets"]}
    save(tmp_path / "a.npz", labels=np.repeat(np.arange(8), 4), **content)
    options: dict[str, Any] = {"cache_dir": tmp_path / "c", "path": str(tmp_path / "a.npz")}
    before = load_dataset("arrays", **options)
    tracemalloc.start()
    again = load_dataset("arrays", **options)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert again.fingerprint == before.fingerprint
    # Three chunks of the cache are checked, through the memory map and without copies.
    assert peak < content[payload].nbytes / 2


def test_features_with_scale_split_and_queries(tmp_path: Path) -> None:
    labels = np.repeat(np.arange(4), 4)
    features = np.arange(32, dtype=np.uint8).reshape(16, 2)
    np.savez(
        tmp_path / "f.npz", features=features, scale=np.array([0.5, 2.0]), labels=labels,
        class_split=np.array([1, 0, 1, 0]), class_names=np.array(list("abcd")),
        photo=np.tile([0, 1, 2, 2], 4),
    )  # fmt: skip
    dataset = load_dataset(
        "arrays", cache_dir=tmp_path / "c", path=str(tmp_path / "f.npz"), query="photo=2"
    )
    assert set(dataset.train.labels) == {1, 3}
    assert dataset.train.items.dtype == np.float32
    assert dataset.train.items[0].tolist() == [8 * 0.5, 9 * 2.0]
    assert dataset.test.is_query is not None
    assert dataset.test.is_query.tolist() == [False, False, True, True] * 2
    assert dataset.train.is_query is not None
    assert dataset.class_names == ("a", "b", "c", "d")


def test_names_in_bytes_are_utf8(tmp_path: Path) -> None:
    names = [text.encode() for text in ("a", "grün", "c", "d")]
    angles = np.tile([b"front", "Rücken".encode()], 4)
    features = np.random.default_rng(0).normal(size=(8, 2))
    labels = np.repeat(np.arange(4), 2)
    path = tmp_path / "a.npz"
    np.savez(path, labels=labels, features=features, class_names=names, angle=angles)
    dataset = load_dataset("arrays", cache_dir=tmp_path, path=str(path), query="angle=Rücken")
    assert dataset.class_names == ("a", "grün", "c", "d")
    assert dataset.test.is_query is not None
    assert dataset.test.is_query.tolist() == [False, True, False, True]


def test_encoded_images(tmp_path: Path) -> None:
    labels = np.repeat(np.arange(4), 2)
    files = [
        encode_image(Image.new("RGB", (20, 20), (int(label) * 60, 0, 0)), "WEBP")
        for label in labels
    ]
    files[3] = files[3][:20]
    joined = join_files(files)
    np.savez(tmp_path / "w.npz", webp=joined["content"], offsets=joined["offsets"], labels=labels)
    options: dict[str, Any] = {"cache_dir": tmp_path / "c", "path": str(tmp_path / "w.npz")}
    with pytest.raises(ValueError, match=r"1 of 8 images cannot be read \(item 3: "):
        load_dataset("arrays", **options)
    dataset = load_dataset("arrays", on_bad_image="skip", **options)
    assert dataset.train.items[:, 0, 0, 0].tolist() == [0, 0, 60]
    assert dataset.test.items[:, 0, 0, 0].tolist() == [120, 120, 180, 180]
    assert dataset.test.items.shape == (4, 20, 20, 3)


def test_the_size_is_that_of_the_first_image_that_can_be_opened(tmp_path: Path) -> None:
    files = [encode_image(Image.new("RGB", (24, 20), (30 * i, 0, 0))) for i in range(8)]
    files[0] = b""
    header = b"IHDR" + struct.pack(">IIBBBBB", 60000, 60000, 8, 2, 0, 0, 0)
    checksum = struct.pack(">I", zlib.crc32(header))
    # A decompression bomb.
    files[1] = b"\x89PNG\r\n\x1a\n" + struct.pack(">I", 13) + header + checksum
    joined, file = join_files(files), tmp_path / "p.npz"
    labels = np.array([0, 0, 0, 1, 2, 2, 3, 3])
    np.savez(file, png=joined["content"], offsets=joined["offsets"], labels=labels)
    options: dict[str, Any] = {"cache_dir": tmp_path / "c", "path": str(file), "min_images": 1}
    with pytest.raises(ValueError, match=r"2 of 8 images cannot be read \(item 0: .* item 1: "):
        load_dataset("arrays", **options)
    dataset = load_dataset("arrays", on_bad_image="skip", **options)
    assert dataset.train.items.shape == (2, 20, 20, 3)


def test_every_option_has_a_description() -> None:
    info = DATASETS["arrays"]
    assert info.builder is not None
    assert info.reader is None
    assert info.options["size"].default == 0
    assert all(option.doc for option in info.options.values())


VALID: dict[str, Any] = {
    "images": np.zeros((8, 4, 4), np.uint8),
    "labels": np.repeat(np.arange(4), 2),
}


@pytest.mark.parametrize(
    ("change", "options", "message"),
    [
        ({"labels": np.array([0, 0, 0, 1, 2, 2, 3, 3])}, {}, "at least 2 items, but class 1 has 1"),
        ({"class_split": np.zeros(3)}, {}, "`class_split` must have 4 values"),
        ({"class_split": np.zeros(4)}, {}, "the test half needs at least 2 classes"),
        ({"split": np.tile([0, 1], 4)}, {}, "train and test must share no class"),
        ({"split": np.repeat([0, 1, 2, 2], 2)}, {}, "`split` must be 0 .* or 1 .*, got 2"),
        ({"class_split": np.array(list("ttee"))}, {}, "`class_split` must be 0 .*, got 'e'"),
        ({}, {"query": "nothing=1"}, "query must be KEY=VALUE"),
        ({}, {"query": "labels=99"}, "query 'labels=99' .* 0 of 8"),
        ({"images": None, "features": np.full((8, 2), np.nan)}, {}, "features must be finite"),
        ({"images": None, "features": np.full((8, 2), 1e39)}, {}, "finite in float32"),
    ],
)
def test_invalid_arrays_are_refused(
    tmp_path: Path, change: dict[str, Any], options: dict[str, Any], message: str
) -> None:
    content = {k: v for k, v in {**VALID, **change}.items() if v is not None}
    np.savez(tmp_path / "a.npz", **content)
    with pytest.raises(ValueError, match=message):
        load_dataset("arrays", cache_dir=tmp_path / "c", path=str(tmp_path / "a.npz"), **options)
