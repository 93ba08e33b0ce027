"""Files of arrays: checked shapes and types, damaged files, and no pickles."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from trainables.data.readers.array_files import (
    find_payload,
    first_image_side,
    hash_arrays,
    hash_payload,
    holds_features,
    load_arrays,
)
from trainables.data.registry import load_dataset

pytestmark = pytest.mark.split

VALID: dict[str, Any] = {
    "images": np.zeros((8, 4, 4), np.uint8),
    "labels": np.repeat(np.arange(4), 2),
}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"labels": None}, "has no `labels`"),
        ({"labels": np.arange(3)}, "labels must be 8 integers"),
        ({"labels": np.zeros(8)}, "labels must be 8 integers, got float64"),
        ({"images": np.zeros((8, 4, 4), np.float32)}, "images must be uint8"),
        ({"images": np.zeros((8, 3, 9, 9), np.uint8)}, r"store images.transpose\(0, 2, 3, 1\)"),
        ({"images": np.zeros((8, 1, 6, 5), np.uint8)}, "channels must come last"),
        ({"images": None}, "must contain one of images, features"),
        ({"features": np.zeros((8, 2))}, "must contain one of"),
        (
            {"images": None, "features": np.ones((8, 2)), "scale": np.ones(3)},
            "`scale` of a.npz must be 2 numbers",
        ),
        ({"images": np.zeros((0, 4, 4), np.uint8), "labels": np.arange(0)}, "got none"),
        ({"images": np.zeros((8, 0, 4), np.uint8)}, r"must not be empty, got \(8, 0, 4\)"),
        ({"images": None, "features": np.zeros((8, 0))}, r"must not be empty, got \(8, 0\)"),
        (
            {"images": None, "png": np.zeros(8, np.uint8), "offsets": np.arange(9)},
            "none of the 8 images can be read",
        ),
        (
            {"images": None, "png": np.zeros(9, np.uint8), "offsets": np.arange(0)},
            r"`png` of a.npz needs `offsets` \(N \+ 1,\)",
        ),
        (
            {"images": None, "png": np.zeros(9, np.uint8), "offsets": np.array([0, 7, 3, 9])},
            "rise from 0 to its length",
        ),
    ],
)
def test_invalid_shapes_and_types_are_refused(
    tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    file = tmp_path / "a.npz"
    np.savez(file, **{k: v for k, v in {**VALID, **change}.items() if v is not None})
    with pytest.raises(ValueError, match=message) as caught:
        load_dataset("arrays", cache_dir=tmp_path / "c", path=str(file))
    assert "\n" not in str(caught.value)


def test_the_payload_is_found_by_its_name(tmp_path: Path) -> None:
    file = tmp_path / "a.npz"
    np.savez(file, **VALID)
    assert find_payload(load_arrays(file, None), file) == ("images", 8)
    np.save(tmp_path / "x.npy", np.ones((8, 3)))
    np.save(tmp_path / "l.npy", VALID["labels"])
    arrays = load_arrays(tmp_path / "x.npy", tmp_path / "l.npy")
    assert find_payload(arrays, tmp_path / "x.npy") == ("features", 8)


def test_other_suffixes_and_missing_files_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("1,2")
    with pytest.raises(ValueError, match=r"must be \.npz or \.npy, got 'a\.csv'"):
        load_arrays(tmp_path / "a.csv", None)
    with pytest.raises(ValueError, match=r"the file .*gone\.npz does not exist"):
        load_arrays(tmp_path / "gone.npz", None)


def test_encoded_images_that_cannot_be_opened_have_no_side() -> None:
    arrays = {"png": np.frombuffer(b"nothing", np.uint8), "offsets": np.array([0, 3, 7])}
    with pytest.raises(ValueError, match="none of the 2 images can be read"):
        first_image_side(arrays, "png")


def test_hashes_depend_on_values_shapes_and_types() -> None:
    one = np.arange(6)
    hashes = {hash_arrays(a) for a in (one, one.reshape(2, 3), one.astype(np.int32), one + 1)}
    assert len(hashes) == 4
    assert hash_arrays(one) == hash_arrays(np.arange(12)[::2] // 2)


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_a_lazy_array_has_the_hash_of_its_values(tmp_path: Path, save: Any) -> None:
    images = np.random.default_rng(0).integers(0, 255, (8, 5, 5), dtype=np.uint8)
    save(tmp_path / "a.npz", images=images, labels=VALID["labels"])
    lazy = load_arrays(tmp_path / "a.npz", None)
    assert hash_payload(lazy, "images") == hash_payload({"images": images}, "images")


@pytest.mark.parametrize("share", [0.5, 0.98])
def test_a_truncated_file_is_one_clear_line(tmp_path: Path, share: float) -> None:
    complete, cut = tmp_path / "complete.npz", tmp_path / "cut.npz"
    np.savez_compressed(complete, images=VALID["images"], labels=VALID["labels"])
    content = complete.read_bytes()
    cut.write_bytes(content[: int(len(content) * share)])
    assert not holds_features(str(cut))
    with pytest.raises(ValueError, match=r"arrays: .*cut.npz cannot be read: ") as caught:
        load_arrays(cut, None)
    assert "\n" not in str(caught.value)


def test_a_damaged_file_is_one_clear_line(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    labels = np.repeat(np.arange(4), 2)
    np.savez_compressed(
        path, images=np.arange(8 * 256, dtype=np.uint8).reshape(8, 16, 16), labels=labels
    )
    content = bytearray(path.read_bytes())
    content[60:90] = b"\xff" * 30
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"a.npz cannot be read: ") as caught:
        load_arrays(path, None)
    assert "\n" not in str(caught.value)


def test_an_array_that_lacks_values_is_one_clear_line(tmp_path: Path) -> None:
    for name in ("images", "labels"):
        np.save(tmp_path / f"{name}.npy", VALID[name])
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
        archive.write(tmp_path / "labels.npy", "labels.npy")
        archive.writestr("images.npy", (tmp_path / "images.npy").read_bytes()[:-16])
    with pytest.raises(ValueError, match=r"a.npz cannot be read: `images` lacks 16 bytes of uint8"):
        load_arrays(tmp_path / "a.npz", None)


def test_files_of_the_other_kind_are_one_clear_line(tmp_path: Path) -> None:
    items, labels = np.arange(16.0).reshape(8, 2), np.repeat(np.arange(4), 2)
    np.save(tmp_path / "x.npy", items)
    np.savez(tmp_path / "all.npz", features=items, labels=labels)
    with pytest.raises(ValueError, match=r"arrays: all.npz must contain one array, .*numpy.save "):
        load_arrays(tmp_path / "x.npy", tmp_path / "all.npz")
    (tmp_path / "x.npy").rename(tmp_path / "renamed.npz")
    assert not holds_features(str(tmp_path / "renamed.npz"))
    with pytest.raises(ValueError, match=r"renamed.npz must contain named arrays, .*numpy.savez "):
        load_arrays(tmp_path / "renamed.npz", None)
    (tmp_path / "all.npz").rename(tmp_path / "all.npy")
    with pytest.raises(ValueError, match=r"all.npy must contain one array"):
        load_arrays(tmp_path / "all.npy", None)


def test_pickles_are_not_loaded(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", images=np.array([print], dtype=object), labels=np.zeros(1, int))
    with pytest.raises(ValueError, match="cannot be read"):
        load_arrays(tmp_path / "a.npz", None)


def test_features_are_recognised_from_headers(tmp_path: Path) -> None:
    np.savez(tmp_path / "f.npz", features=np.ones((2, 3)), labels=np.arange(2))
    np.savez(tmp_path / "i.npz", **VALID)
    np.save(tmp_path / "f.npy", np.ones((2, 3)))
    np.save(tmp_path / "i.npy", VALID["images"])
    for path in sorted(tmp_path.iterdir()):
        assert holds_features(str(path)) == (path.stem == "f"), path.name
    assert not holds_features(str(tmp_path / "none.npz"))
