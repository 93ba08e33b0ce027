"""Reader of DeepFashion In-Shop, on small trees in both official layouts."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.painted_images import paint_image
from tests.support.reader_contract import ReaderContract
from trainables.data.readers.inshop import read_inshop
from trainables.data.registry import load_dataset

pytestmark = pytest.mark.split

PARTITIONS = {
    1: ["train"] * 3,
    2: ["train"] * 2,
    3: ["query", "gallery", "gallery"],
    4: ["gallery", "query"],
}


def write_inshop(root: Path, *, newer: bool = False) -> Path:
    """Write four items; the newer release has the list in Eval/ and the images in Img/."""
    images = root / "Img" if newer else root
    lines = []
    for item, partitions in PARTITIONS.items():
        for i, partition in enumerate(partitions):
            name = f"img/WOMEN/Dresses/id_{item:08d}/{i:02d}_1_front.jpg"
            paint_image(images / name, item)
            lines.append(f"{name}   id_{item:08d}   {partition}")
    lines.reverse()  # the order of the file must not matter
    folder = root / "Eval" if newer else root
    folder.mkdir(exist_ok=True)
    header = f"{len(lines)}\nimage_name item_id evaluation_status\n"
    (folder / "list_eval_partition.txt").write_text(header + "\n".join(lines) + "\n")
    return root


class TestInshop(ReaderContract):
    dataset = "inshop"

    def write_release(self, root: Path) -> Path:
        return write_inshop(root)


class TestNewerInshop(ReaderContract):
    dataset = "inshop"

    def write_release(self, root: Path) -> Path:
        return write_inshop(root, newer=True)


@pytest.mark.parametrize("newer", [False, True])
def test_test_items_are_queries_or_gallery(tmp_path: Path, newer: bool) -> None:
    path = str(write_inshop(tmp_path, newer=newer))
    dataset = load_dataset("inshop", cache_dir=tmp_path / "cache", path=path, size=16)
    assert len(dataset.train) == 5
    assert dataset.train.is_query is None
    assert dataset.test.is_query is not None
    assert dataset.test.is_query.sum() == 2
    *counts, duplicates = dataset.notes
    assert counts == [
        "inshop: 5 train images, published 25,882: 25,877 missing",
        "inshop: 2 query images, published 14,218: 14,216 missing",
        "inshop: 3 gallery images, published 12,612: 12,609 missing",
    ]
    # All images of an item are painted alike, so both queries are also in the gallery.
    for name in ("id_00000004/01_1_front.jpg", "id_00000003/00_1_front.jpg"):
        assert name in duplicates


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("img/a.jpg id_1 test", r"list_eval_partition\.txt, line 3: .*train\|query\|gallery"),
        ("img/a.jpg id_1", "line 3"),
        ("", "lists no images"),
    ],
)
def test_a_malformed_list_is_named(tmp_path: Path, line: str, message: str) -> None:
    header = "1\nimage_name item_id evaluation_status\n"
    (tmp_path / "list_eval_partition.txt").write_text(f"{header}{line}\n")
    with pytest.raises(ValueError, match=message):
        read_inshop(path=str(tmp_path))
