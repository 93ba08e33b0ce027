"""Messages about images: complete lists in files, names that are not UTF-8, and counts."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from trainables.data.notes import describe_count_differences, escape_surrogates
from trainables.data.registry import load_dataset

pytestmark = pytest.mark.split


def test_a_file_lists_every_bad_image(class_folders: Path, tmp_path: Path) -> None:
    bad = [f"class{c}/bad{i}.jpg" for c in range(4) for i in range(3)]
    grey = [f"class5/grey{i}.jpg" for i in range(7)]
    for name in bad:
        (class_folders / name).write_bytes(b"")
    for name in grey:
        Image.new("L", (40, 40), 90).save(class_folders / name)
    options: dict[str, Any] = {"cache_dir": tmp_path / "c", "path": str(class_folders), "size": 16}
    with pytest.raises(ValueError, match="12 of 43 images cannot be read") as caught:
        load_dataset("folder", **options)
    named = re.search(r"and 7 more, all in (\S+\.txt)\);", str(caught.value))
    assert named
    lines = Path(named[1]).read_text(encoding="utf-8").splitlines()
    assert lines == [f"{name}: the file is empty" for name in bad]
    for _ in range(2):
        dataset = load_dataset("folder", **options, on_bad_image="skip")
        unreadable, converted = dataset.note_files
        assert str(unreadable) == named[1]
        assert converted.read_text(encoding="utf-8").splitlines() == grey
        for file, note in zip(dataset.note_files, dataset.notes, strict=True):
            assert f"more, all in {file})" in note


def test_a_read_only_cache_makes_the_message_list_every_bad_image(
    class_folders: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for i in range(8):
        (class_folders / "class1" / f"bad{i}.jpg").write_bytes(b"")

    def refuse(*_: Any) -> None:
        raise PermissionError("read-only")

    monkeypatch.setattr(Path, "write_bytes", refuse)
    with pytest.raises(ValueError, match="8 of 32 images cannot be read") as caught:
        load_dataset("folder", cache_dir=tmp_path / "c", path=str(class_folders), size=16)
    assert all(f"class1/bad{i}.jpg: the file is empty" in str(caught.value) for i in range(8))


def test_names_that_are_not_utf8_can_be_printed(class_folders: Path, tmp_path: Path) -> None:
    (class_folders / "class0" / os.fsdecode(b"gr\xfcn.jpg")).write_bytes(b"")
    (class_folders / "class1").rename(class_folders / os.fsdecode(b"class\xfc"))
    options: dict[str, Any] = {"cache_dir": tmp_path / "c", "path": str(class_folders), "size": 16}
    with pytest.raises(ValueError, match=r"class0/gr\\xfcn\.jpg: the file is empty"):
        load_dataset("folder", **options)
    dataset = load_dataset("folder", **options, on_bad_image="skip")
    assert "class\\xfc" in dataset.class_names
    assert all(text.encode() for text in (*dataset.class_names, *dataset.notes))


def test_valid_names_are_not_changed() -> None:
    assert escape_surrogates("grün/图.jpg") == "grün/图.jpg"


def test_queries_that_are_in_the_gallery_are_reported(tmp_path: Path) -> None:
    labels = np.repeat(np.arange(8), 4)
    images = np.arange(32, dtype=np.uint8)[:, None, None] + np.zeros((8, 8), np.uint8)
    images[18] = images[17]  # in test class 4, item 17 is a query and 18 is in the gallery
    np.savez(tmp_path / "a.npz", images=images, labels=labels, ask=np.tile([1, 1, 0, 0], 8))
    dataset = load_dataset(
        "arrays", cache_dir=tmp_path / "c", path=str(tmp_path / "a.npz"), query="ask=1"
    )
    (note,) = dataset.notes
    assert note.startswith("arrays: queries that are also in the gallery")
    assert note.endswith(": 1 (item 17)")


def test_counts_are_compared_with_the_published_ones() -> None:
    in_test = np.array([False] * 3 + [True] * 5)
    is_query = np.array([False] * 6 + [True] * 2)
    counts = {"train": 4, "test": 5, "query": 1, "gallery": 3}
    assert describe_count_differences("own", in_test, is_query, counts) == [
        "own: 3 train images, published 4: 1 missing",
        "own: 2 query images, published 1: 1 too many",
    ]
    assert describe_count_differences("own", in_test, None, {"train": 3, "test": 5}) == []
