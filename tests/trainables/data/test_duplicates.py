"""Duplicates: no image is on two sides of any split, whatever its file name."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from trainables.data import Dataset
from trainables.data.dataset import DatasetPart
from trainables.data.duplicates import (
    find_cross_split_duplicates,
    find_queries_in_gallery,
    hash_rows,
)
from trainables.data.registry import DATASETS, load_dataset
from trainables.training.tasks import build_fold_tasks

pytestmark = pytest.mark.split

SIDES = (("validation", 1), ("validation", 2), ("validation", 4), ("test", 1))


def contents(part: DatasetPart) -> set[bytes]:
    return {np.asarray(item).tobytes() for item in part.read_items(slice(None))}


def check_sides(dataset: Dataset) -> None:
    for split, n_folds in SIDES:
        for task in build_fold_tasks(dataset, split, n_folds):
            assert not set(task.train.labels) & set(task.evaluation.labels)
            assert not contents(task.train) & contents(task.evaluation)


@pytest.mark.slow
@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    kinds=st.integers(2, 60),  # number of different contents: few make many copies
    seed=st.integers(0, 10**6),
    payload=st.sampled_from(["images", "features"]),
    asks=st.booleans(),
)
def test_no_class_and_no_item_is_on_two_sides(
    kinds: int, seed: int, payload: str, asks: bool, tmp_path: Path
) -> None:
    rng = np.random.default_rng(seed)
    labels = np.repeat(np.arange(24), 6)
    content = rng.integers(0, kinds, len(labels)).astype(np.uint8)
    # Each class has two items of its own, so that none is left without.
    content[::6], content[1::6] = 100 + np.arange(24), 130 + np.arange(24)
    items: Any = np.broadcast_to(content[:, None, None], (len(labels), 4, 4)).astype(np.uint8)
    if payload == "features":
        items = items.reshape(len(labels), -1).astype(np.float32)
    shuffled = rng.permutation(len(labels))
    file = tmp_path / f"{seed}-{kinds}-{payload}.npz"
    ask = rng.integers(0, 2, len(labels))
    np.savez(file, labels=labels[shuffled], ask=ask, **{payload: items[shuffled]})
    dataset = load_dataset(
        "arrays",
        cache_dir=tmp_path / "cache",
        path=str(file),
        on_duplicate="drop",
        query="ask=1" if asks else "",
    )
    check_sides(dataset)
    # Test classes are complete, and no more training items than necessary are excluded.
    assert len(dataset.test) == 72
    train, held = contents(dataset.train), contents(dataset.test)
    given = {items[i].tobytes() for i in range(72)}
    assert train == {one for one in given if one not in held}


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    """Folder of sixteen classes with copies across and within halves and within a class."""
    root = tmp_path / "own"
    for label in range(16):
        for i in range(3):
            path = root / f"class{label:02d}" / f"{i}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            pixels = np.random.default_rng([label, i]).integers(0, 255, (32, 32, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(path)
    shutil.copy(root / "class00" / "0.png", root / "class14" / "again.png")  # training, test
    # The same pixels in another file format are the same image.
    Image.open(root / "class01" / "1.png").save(root / "class02" / "other.bmp")
    shutil.copy(root / "class12" / "0.png", root / "class13" / "also test.png")
    shutil.copy(root / "class03" / "0.png", root / "class03" / "same class.png")
    return root


def test_copies_are_refused_with_their_paths(copied: Path, tmp_path: Path) -> None:
    with pytest.raises(
        ValueError, match="training images that are also in another class: 2"
    ) as caught:
        load_dataset("folder", cache_dir=tmp_path / "c", path=str(copied), size=32)
    message = str(caught.value)
    assert "class00/0.png is also class14/again.png" in message
    assert "class02/other.bmp is also class01/1.png" in message
    assert "on_duplicate: drop" in message
    assert "\n" not in message


def test_copies_are_dropped_from_training_and_reported(copied: Path, tmp_path: Path) -> None:
    arguments: dict[str, Any] = {"cache_dir": tmp_path / "c", "path": str(copied), "size": 32}
    with pytest.raises(ValueError, match="on_duplicate"):
        load_dataset("folder", **arguments)
    entries = len([p for p in (tmp_path / "c").iterdir() if p.is_dir()])
    for _ in range(2):
        dataset = load_dataset("folder", **arguments, on_duplicate="drop")
        check_sides(dataset)
        assert len(dataset.train) == 8 * 3 - 1 + 1  # class00/0 gone, class03 has its own copy
        assert len(dataset.test) == 8 * 3 + 2
        assert len(dataset.notes) == 1
        assert "class00/0.png is also class14/again.png" in dataset.notes[0]
    # Another policy does not decode the images again.
    assert len([p for p in (tmp_path / "c").iterdir() if p.is_dir()]) == entries == 1


def test_dropped_copies_are_not_missing_from_the_published_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    info = replace(DATASETS["sop"], counts={"train": 6, "test": 6})
    monkeypatch.setitem(DATASETS, "sop", info)
    lines = {"train": ["image_id class_id super_class_id path"], "test": ["image_id"]}
    for label in range(6):
        for i in range(2):
            name = f"{label}_{i}.png"
            seed = [0, 0] if (label, i) == (4, 1) else [label, i]  # also in training
            pixels = np.random.default_rng(seed).integers(0, 255, (16, 16, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(tmp_path / name)
            lines["train" if label < 3 else "test"].append(f"{i} {label} 1 {name}")
    for side, rows in lines.items():
        (tmp_path / f"Ebay_{side}.txt").write_text("\n".join(rows))
    arguments: dict[str, Any] = {"cache_dir": tmp_path / "c", "path": str(tmp_path), "size": 16}
    with pytest.raises(ValueError, match=r"0_0\.png is also 4_1\.png"):
        load_dataset("sop", **arguments)
    dataset = load_dataset("sop", **arguments, on_duplicate="drop")
    assert (len(dataset.train), len(dataset.test)) == (5, 6)
    (note,) = dataset.notes
    assert "another class: 1 (0_0.png is also 4_1.png)" in note


def test_unknown_policies_are_named(copied: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"on_duplicate of data set 'folder': 'dorp'.*'drop'"):
        load_dataset("folder", cache_dir=tmp_path / "c", path=str(copied), on_duplicate="dorp")


def test_copies_in_the_first_training_class_stay() -> None:
    hashes = hash_rows(np.array([[1], [1], [2], [1], [2], [3]], dtype=np.uint8))
    labels = np.array([0, 0, 1, 2, 3, 4])
    in_test = np.array([False, False, False, False, True, True])
    rows = np.arange(6)
    assert find_cross_split_duplicates(rows, hashes, labels, in_test) == {3: 0, 2: 4}
    assert find_cross_split_duplicates(rows[1:], hashes, labels, in_test) == {3: 1, 2: 4}
    assert find_cross_split_duplicates(np.array([2, 5]), hashes, labels, in_test) == {}


def test_queries_in_the_gallery_are_found_by_contents() -> None:
    hashes = hash_rows(np.array([[1], [2], [1], [3], [2]], dtype=np.uint8))
    is_query = np.array([True, True, False, True, True])
    assert find_queries_in_gallery(hashes, is_query).tolist() == [0]


def test_drawn_characters_are_all_different(data_cache: Path) -> None:
    check_sides(load_dataset("glyphs", cache_dir=data_cache, classes=200, samples=6))
