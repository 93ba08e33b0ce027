"""Decoded listings: bad images, names outside the folder, and fingerprints."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from tests.support.gradient_images import make_level_transform, write_gradient_folders
from tests.support.painted_images import paint_image
from trainables.data import Dataset
from trainables.data.decode_listing import check_decoding_options, decode_listing
from trainables.data.listing import ImageListing
from trainables.data.registry import load_dataset

pytestmark = pytest.mark.split


def spoil_images(root: Path) -> None:
    """Add an empty, a truncated and a grey image."""
    (root / "class1" / "empty.jpg").write_bytes(b"")
    data = (root / "class1" / "0.jpg").read_bytes()
    (root / "class6" / "cut.jpg").write_bytes(data[: len(data) // 2])
    Image.new("L", (40, 40), 90).save(root / "class2" / "grey.jpg")


def test_bad_images_are_refused_with_their_paths(class_folders: Path, tmp_path: Path) -> None:
    spoil_images(class_folders)
    with pytest.raises(ValueError, match="2 of 27 images cannot be read") as caught:
        load_dataset("folder", cache_dir=tmp_path / "c", path=str(class_folders), size=16)
    message = str(caught.value)
    assert "class1/empty.jpg: the file is empty" in message
    assert "class6/cut.jpg: " in message
    assert "on_bad_image: skip" in message
    assert "\n" not in message


def test_bad_images_are_skipped_and_reported(class_folders: Path, tmp_path: Path) -> None:
    spoil_images(class_folders)
    dataset = load_dataset(
        "folder", cache_dir=tmp_path / "c", path=str(class_folders), size=16, on_bad_image="skip"
    )
    assert (len(dataset.train), len(dataset.test)) == (13, 12)
    assert (np.bincount(dataset.train.labels) == [3, 3, 4, 3]).all()
    skipped, converted = dataset.notes
    assert "2 of 27 images" in skipped
    assert "class1/empty.jpg" in skipped
    assert converted.startswith("folder: grey images converted")
    assert converted.endswith(": 1 (class2/grey.jpg)")


def test_an_image_on_a_failing_disk_is_named_and_not_marked_as_bad(
    class_folders: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    unreadable = class_folders / "class2" / "1.jpg"
    open_image = Image.open

    def fail_once(source: Any, **more: Any) -> Any:
        if source == unreadable:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return open_image(source, **more)

    options: dict[str, Any] = {"cache_dir": tmp_path / "c", "path": str(class_folders), "size": 16}
    monkeypatch.setattr(Image, "open", fail_once)
    with pytest.raises(OSError, match=f"Input/output error: '{unreadable}'") as caught:
        load_dataset("folder", **options, on_bad_image="skip")
    assert caught.value.errno == errno.EIO
    monkeypatch.undo()
    dataset = load_dataset("folder", **options, on_bad_image="skip")
    assert len(dataset.train) + len(dataset.test) == 24


def make_listing(root: Path, names: list[str], **more: Any) -> ImageListing:
    """Return a listing of four classes in the order of the names."""
    labels = np.arange(len(names), dtype=np.int64) * 4 // len(names)
    return ImageListing(root, names, labels, labels >= 2, ["a", "b", "c", "d"], **more)


def decode(listing: ImageListing, cache_dir: Path, **more: Any) -> Dataset:
    options: dict[str, Any] = {
        "size": 16, "fit": "crop", "on_bad_image": "refuse", "on_duplicate": "refuse", **more,
    }  # fmt: skip
    return decode_listing("own", listing, cache_dir=cache_dir, progress=None, **options)


@pytest.mark.parametrize("name", ["../secret.jpg", "/etc/passwd", "a/../../b.jpg"])
def test_listed_names_stay_inside_the_folder(tmp_path: Path, name: str) -> None:
    listing = make_listing(tmp_path, ["0.jpg", name, "2.jpg", "3.jpg"])
    with pytest.raises(ValueError, match=rf"own: .* outside the folder: {name}"):
        decode(listing, tmp_path / "c")


def test_a_listing_without_images_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=f"own: no images found in {tmp_path}"):
        decode(make_listing(tmp_path, []), tmp_path / "c")


def test_the_training_half_comes_first_whatever_the_order(tmp_path: Path) -> None:
    for i in range(4):
        paint_image(tmp_path / f"{i}.png", i)
    listing = make_listing(tmp_path, [f"{i}.png" for i in range(4)])
    mixed = np.array([2, 0, 3, 1])
    shuffled = ImageListing(
        tmp_path,
        [listing.names[i] for i in mixed],
        listing.labels[mixed],
        listing.in_test[mixed],
        listing.class_names,
        is_query=np.array([True, False, False, False]),
        notes=["first note"],
    )
    dataset = decode(shuffled, tmp_path / "c", counts={"query": 3})
    assert dataset.train.labels.tolist() == [0, 1]
    assert dataset.test.labels.tolist() == [2, 3]
    assert dataset.test.is_query is not None
    assert dataset.test.is_query.tolist() == [True, False]
    assert dataset.notes == ("first note", "own: 1 query images, published 3: 2 missing")
    colour = np.random.default_rng(3).integers(0, 255, size=3)
    assert (dataset.test.items[1] == colour).all()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"size": 7}, "`8 <= size <= 4096` must hold, got 7"),
        ({"size": 4097}, "got 4097"),
        ({"fit": "stretch"}, "fit of data set 'own': 'stretch'"),
        ({"on_bad_image": "ignore"}, "on_bad_image of data set 'own': 'ignore'"),
        ({"on_duplicate": "dorp"}, "on_duplicate of data set 'own': 'dorp'.*'drop'"),
    ],
)
def test_invalid_options_are_refused(change: dict[str, Any], message: str) -> None:
    options = {"size": 16, "fit": "crop", "on_bad_image": "refuse", "on_duplicate": "drop"}
    check_decoding_options("own", **options)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=message):
        check_decoding_options("own", **{**options, **change})


def test_a_replaced_image_is_noticed(class_folders: Path, tmp_path: Path) -> None:
    options: dict[str, Any] = {"cache_dir": tmp_path / "c", "path": str(class_folders), "size": 16}
    before = load_dataset("folder", **options)
    Image.new("RGB", (40, 32), "white").save(class_folders / "class0" / "0.jpg")
    after = load_dataset("folder", **options)
    assert after.fingerprint != before.fingerprint
    assert after.train.items[0].min() == 255


def test_a_copy_elsewhere_has_the_same_fingerprint(class_folders: Path, tmp_path: Path) -> None:
    shutil.copytree(class_folders, tmp_path / "copy")
    fingerprints = {
        load_dataset("folder", cache_dir=tmp_path / "c", path=str(p), size=16).fingerprint
        for p in (class_folders, tmp_path / "copy")
    }
    assert len(fingerprints) == 1


def read_arrays(tmp_path: Path, n_train: int, query: str = "", **more: Any) -> Dataset:
    """Read twelve classes of four items, the first `n_train` of them for training."""
    rng = np.random.default_rng(0)
    np.savez(
        tmp_path / "a.npz",
        labels=np.repeat(np.arange(12), 4),
        class_split=np.arange(12) >= n_train,
        side=np.tile([0, 1, 0, 1], 12),
        top=np.tile([0, 0, 0, 1], 12),
        **(more or {"features": rng.normal(size=(48, 8))}),
    )
    path = str(tmp_path / "a.npz")
    return load_dataset("arrays", cache_dir=tmp_path / "c", path=path, query=query)


@pytest.mark.parametrize("kind", ["features", "images"])
def test_a_class_that_changes_sides_changes_the_fingerprint(tmp_path: Path, kind: str) -> None:
    rng = np.random.default_rng(1)
    shape = (48, 8) if kind == "features" else (48, 6, 6, 3)
    items: dict[str, Any] = {kind: rng.integers(0, 255, shape, dtype=np.uint8)}
    six, again, eight = (read_arrays(tmp_path, n, **items) for n in (6, 6, 8))
    assert six.fingerprint == again.fingerprint
    assert six.fingerprint != eight.fingerprint


def test_other_queries_change_the_fingerprint(tmp_path: Path) -> None:
    fingerprints = {read_arrays(tmp_path, 6, q).fingerprint for q in ("", "side=1", "top=1")}
    assert len(fingerprints) == 3


def test_a_folder_that_changes_sides_changes_the_fingerprint(
    class_folders: Path, tmp_path: Path
) -> None:
    root = tmp_path / "halves"
    for label in range(8):
        side = root / ("train" if label < 4 else "test")
        side.mkdir(parents=True, exist_ok=True)
        (class_folders / f"class{label}").rename(side / f"class{label}")
    options: dict[str, Any] = {"cache_dir": tmp_path / "c", "path": str(root), "size": 16}
    before = load_dataset("folder", **options)
    # The last training class becomes the first test class: images and numbers stay in order.
    (root / "train" / "class3").rename(root / "test" / "class3")
    after = load_dataset("folder", **options)
    assert (len(before.train), len(after.train)) == (12, 9)
    assert before.fingerprint != after.fingerprint


def test_training_crops_reach_the_edges_of_wide_images(tmp_path: Path) -> None:
    root = write_gradient_folders(tmp_path / "p")
    reached = {}
    for fit in ("crop", "whole"):
        cache = tmp_path / fit
        part = load_dataset("folder", cache_dir=cache, path=str(root), size=64, fit=fit).train
        rows = np.arange(len(part)).repeat(20)
        seen = make_level_transform("papers", 32).augment_images(
            part.read_items(rows), torch.Generator().manual_seed(0), aspects=part.read_aspects(rows)
        )
        reached[fit] = float(seen[:, 0].min()), float(seen[:, 0].max())
        names = {path.name for path in cache.rglob("*.npy")}
        assert names == {"images.npy", "digests.npy"} | (
            {"aspects.npy"} if fit == "whole" else set()
        )
    low, high = reached["crop"]
    assert low > 255 / 8 - 3  # a quarter of a 4:3 image lies outside its centre square
    assert high < 255 * 7 / 8 + 3
    low, high = reached["whole"]
    assert low < 10
    assert high > 245


def test_fingerprints_of_whole_and_squash_differ(tmp_path: Path) -> None:
    options: dict[str, Any] = {
        "cache_dir": tmp_path / "c",
        "path": str(write_gradient_folders(tmp_path / "p")),
    }
    both = [load_dataset("folder", size=32, fit=fit, **options) for fit in ("squash", "whole")]
    assert np.array_equal(both[0].train.items, both[1].train.items)
    assert both[0].fingerprint != both[1].fingerprint
    assert both[0].train.aspects is None
