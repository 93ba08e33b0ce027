"""Reader of Stanford Online Products, on a small tree in the official layout."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.painted_images import paint_image
from tests.support.reader_contract import ReaderContract
from trainables.data.readers.sop import read_sop
from trainables.data.registry import load_dataset

pytestmark = pytest.mark.split

HEADER = "image_id class_id super_class_id path"


def write_sop(root: Path) -> Path:
    """Write five products of two images each and the official lists."""
    folder, number = root / "Stanford_Online_Products", 0
    for file, products in (("Ebay_train.txt", (1, 2, 3)), ("Ebay_test.txt", (11319, 11320))):
        lines = [HEADER]
        for product in products:
            for i in range(2):
                number += 1
                name = f"bicycle_final/{product}_{i}.JPG"
                paint_image(folder / name, product)
                lines.append(f"{number} {product} 1 {name}")
        # As Windows editors write them: with a byte order mark and CR LF.
        text = "\n".join(lines) + "\n"
        (folder / file).write_text(text, encoding="utf-8-sig", newline="\r\n")
    return root


class TestSop(ReaderContract):
    dataset = "sop"

    def write_release(self, root: Path) -> Path:
        return write_sop(root)


def test_classes_are_numbered_as_the_lists_name_them(tmp_path: Path) -> None:
    listing = read_sop(path=str(write_sop(tmp_path)))
    assert listing.class_names == ["1", "2", "3", "11319", "11320"]
    assert listing.labels.tolist() == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]
    assert listing.in_test.tolist() == [False] * 6 + [True] * 4
    assert listing.names[6] == "bicycle_final/11319_0.JPG"


def test_differences_from_the_published_counts_are_reported(tmp_path: Path) -> None:
    write_sop(tmp_path)
    dataset = load_dataset("sop", cache_dir=tmp_path / "cache", path=str(tmp_path), size=16)
    assert dataset.notes == (
        "sop: 6 train images, published 59,551: 59,545 missing",
        "sop: 4 test images, published 60,502: 60,498 missing",
    )


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("1 2 3", r"Ebay_test\.txt, line 2: expected 4 columns, got '1 2 3'"),
        ("", "lists no images"),
    ],
)
def test_a_malformed_list_is_named(tmp_path: Path, line: str, message: str) -> None:
    folder = write_sop(tmp_path) / "Stanford_Online_Products"
    (folder / "Ebay_test.txt").write_text(f"{HEADER}\n{line}\n")
    with pytest.raises(ValueError, match=message):
        read_sop(path=str(tmp_path))
