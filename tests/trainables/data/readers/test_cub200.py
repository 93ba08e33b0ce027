"""Reader of CUB-200-2011, on a small tree in the official layout."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.painted_images import paint_image
from tests.support.reader_contract import ReaderContract
from trainables.data.listing import ImageListing
from trainables.data.readers.cub200 import read_cub200
from trainables.data.registry import load_dataset

pytestmark = pytest.mark.split


def write_cub(root: Path) -> Path:
    """Write six classes of three images each and the official lists."""
    folder = root / "CUB_200_2011"
    images: list[str] = []
    labels: list[str] = []
    for label in (1, 2, 100, 101, 102, 200):
        title = f"{label:03d}.Bird_{label}"
        for i in range(3):
            paint_image(folder / "images" / title / f"{i}.jpg", label)
            images.append(f"{len(images) + 1} {title}/{i}.jpg")
            labels.append(f"{len(images)} {label}")
    classes = [f"{c} {c:03d}.Bird_{c}" for c in range(1, 201)]
    for name, lines in (
        ("images.txt", images),
        ("image_class_labels.txt", labels),
        ("classes.txt", classes),
    ):
        (folder / name).write_text("\n".join(lines) + "\n")
    return root


class TestCub200(ReaderContract):
    dataset = "cub200"

    def write_release(self, root: Path) -> Path:
        return write_cub(root)


def test_the_first_hundred_classes_train(tmp_path: Path) -> None:
    root = write_cub(tmp_path / "data")
    for path in (root, root / "CUB_200_2011"):
        listing = read_cub200(path=str(path))
        assert set(listing.labels[~listing.in_test]) == {0, 1, 99}
        assert set(listing.labels[listing.in_test]) == {100, 101, 199}
        assert listing.class_names[99] == "100.Bird_100"


def test_the_archive_folder_and_its_parent_share_a_cache_entry(tmp_path: Path) -> None:
    root = write_cub(tmp_path / "data")
    for path in (root, root / "CUB_200_2011"):
        dataset = load_dataset("cub200", cache_dir=tmp_path / "cache", path=str(path), size=24)
        assert dataset.train.items.shape == (9, 24, 24, 3)
        assert dataset.notes == (
            "cub200: 9 train images, published 5,864: 5,855 missing",
            "cub200: 9 test images, published 5,924: 5,915 missing",
        )
    assert len([p for p in (tmp_path / "cache").iterdir() if p.is_dir()]) == 1


def read_with(folder: Path, name: str, old: str, new: str) -> ImageListing:
    """Read the folder with a changed list file, which is restored afterwards."""
    file = folder / name
    content = file.read_text()
    file.write_text(content.replace(old, new, 1))
    try:
        return read_cub200(path=str(folder))
    finally:
        file.write_text(content)


@pytest.mark.parametrize("value", ["two", "1.5", "0"])
def test_class_numbers_are_integers_from_1(tmp_path: Path, value: str) -> None:
    folder = write_cub(tmp_path) / "CUB_200_2011"
    with pytest.raises(ValueError, match=rf"image_class_labels\.txt .* got '{value}' for image 1$"):
        read_with(folder, "image_class_labels.txt", "1 1\n", f"1 {value}\n")


def test_every_image_needs_a_class(tmp_path: Path) -> None:
    folder = write_cub(tmp_path) / "CUB_200_2011"
    with pytest.raises(ValueError, match=r"no class for image 17 and 0 more of images\.txt"):
        read_with(folder, "image_class_labels.txt", "17 200\n", "")


@pytest.mark.parametrize("line", ["x 001.Bird_1/0.jpg", "1"])
def test_a_malformed_line_is_named_with_its_number(tmp_path: Path, line: str) -> None:
    folder = write_cub(tmp_path) / "CUB_200_2011"
    with pytest.raises(ValueError, match=r"cub200: images\.txt, line 1: expected 'id value'"):
        read_with(folder, "images.txt", "1 001.Bird_1/0.jpg", line)


def test_list_files_are_utf8(tmp_path: Path) -> None:
    folder = write_cub(tmp_path) / "CUB_200_2011"
    (folder / "classes.txt").write_bytes("1 Gr\xfcnfink\n".encode("latin-1"))
    with pytest.raises(ValueError, match=r"cub200: .*classes\.txt must be UTF-8 text, but byte 4"):
        read_cub200(path=str(folder))
