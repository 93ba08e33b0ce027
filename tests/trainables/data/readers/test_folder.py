"""Reader of a folder of images: one folder per class, or train/ and test/."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.painted_images import check_painted_halves, paint_image
from tests.support.reader_contract import ReaderContract
from trainables.data.readers.folder import list_class_folders, list_files_by_kind, read_folder
from trainables.data.registry import load_dataset

pytestmark = pytest.mark.split


class TestFolder(ReaderContract):
    dataset = "folder"

    def write_release(self, root: Path) -> Path:
        for label in range(6):
            for i in range(2):
                paint_image(root / f"class{label}" / f"{i}.jpg", label)
        return root


class TestFolderWithHalves(ReaderContract):
    dataset = "folder"

    def write_release(self, root: Path) -> Path:
        for side, labels in (("train", (5, 6)), ("test", (1, 2))):
            for label in labels:
                for i in range(2):
                    paint_image(root / side / f"c{label}" / "deeper" / f"{i}.png", label)
        return root


def test_classes_are_halved_by_name(class_folders: Path, tmp_path: Path) -> None:
    dataset = load_dataset("folder", cache_dir=tmp_path / "c", path=str(class_folders), size=16)
    check_painted_halves(dataset)
    assert dataset.class_names == tuple(f"class{i}" for i in range(8))
    assert set(dataset.train.labels) == {0, 1, 2, 3}
    assert dataset.notes == ()


def test_train_and_test_folders_are_the_halves(tmp_path: Path) -> None:
    root = TestFolderWithHalves().write_release(tmp_path / "own")
    dataset = load_dataset("folder", cache_dir=tmp_path / "c", path=str(root), size=16)
    check_painted_halves(dataset)
    assert [dataset.class_names[i] for i in sorted(set(dataset.test.labels))] == ["c1", "c2"]
    paint_image(root / "test" / "c5" / "x.png", 5)
    with pytest.raises(ValueError, match="must share no class, but both have 'c5'"):
        load_dataset("folder", cache_dir=tmp_path / "c", path=str(root), size=16)


def test_split_selects_the_meaning_of_train_and_test(tmp_path: Path) -> None:
    root = TestFolderWithHalves().write_release(tmp_path / "own")
    listing = read_folder(path=str(root), split="classes", min_images=1)
    assert listing.class_names == ["test", "train"]
    (root / "test").rename(root / "val")
    with pytest.raises(ValueError, match=r"split: folders needs .*/train and .*/test"):
        read_folder(path=str(root), split="folders", min_images=1)


def test_hidden_folders_are_not_read_at_any_depth(class_folders: Path, tmp_path: Path) -> None:
    options: dict[str, Any] = {"path": str(class_folders), "size": 16}
    before = load_dataset("folder", cache_dir=tmp_path / "c", **options)
    for label in range(8):
        image = class_folders / f"class{label}" / "0.jpg"
        for hidden in (".thumbs", "more/.cache/deep"):
            copy = image.parent / hidden / "t.jpg"
            copy.parent.mkdir(parents=True)
            copy.write_bytes(image.read_bytes())
        (image.parent / ".thumbs" / "list.txt").write_text("")
    after = load_dataset("folder", cache_dir=tmp_path / "c", **options)
    assert (len(after.train), len(after.test)) == (len(before.train), len(before.test))
    assert after.notes == before.notes


def test_files_that_are_not_read_are_reported(class_folders: Path, tmp_path: Path) -> None:
    others = ("class1/new.heic", "class2/deeper/list.txt", ".hidden/x.txt", "about.txt", "lost.JPG")
    for name in others:
        (class_folders / name).parent.mkdir(exist_ok=True)
        (class_folders / name).write_text("not an image")
    dataset = load_dataset("folder", cache_dir=tmp_path / "c", path=str(class_folders), size=16)
    unknown, stray = dataset.notes
    assert unknown.startswith("folder: 2 files in class folders")
    assert unknown.endswith("not read (class1/new.heic; class2/deeper/list.txt)")
    assert stray.startswith("folder: 1 images")
    assert stray.endswith("not read (lost.JPG)")
    for i in range(8):
        side = "train" if i < 4 else "test" if i < 7 else "val"
        (class_folders / side).mkdir(exist_ok=True)
        (class_folders / f"class{i}").rename(class_folders / side / f"class{i}")
    dataset = load_dataset("folder", cache_dir=tmp_path / "c", path=str(class_folders), size=16)
    assert (len(dataset.train), len(dataset.test)) == (12, 9)
    assert dataset.notes[0].startswith("folder: not read")
    assert dataset.notes[0].endswith(": val")


def test_many_unread_files_are_counted(class_folders: Path) -> None:
    for i in range(7):
        (class_folders / "class0" / f"{i}.txt").write_text("")
    (note,) = read_folder(path=str(class_folders), split="auto", min_images=2).notes
    assert "folder: 7 files" in note
    assert note.endswith("class0/4.txt; and 2 more)")


def test_a_half_of_one_class_is_named(tmp_path: Path) -> None:
    for name in ("train/a/0.png", "train/b/0.png", "val/c/0.png", "val/d/0.png"):
        paint_image(tmp_path / "own" / name, 1)
    with pytest.raises(ValueError, match=r"the training half needs .* got only 'train'"):
        load_dataset("folder", cache_dir=tmp_path / "c", path=str(tmp_path / "own"))


def test_dangling_links_are_missing_images(class_folders: Path, tmp_path: Path) -> None:
    (class_folders / "class1" / "gone.jpg").symlink_to(tmp_path / "not downloaded.jpg")
    (class_folders / "class2" / "linked.jpg").symlink_to(class_folders / "class2" / "0.jpg")
    (tmp_path / "elsewhere").mkdir()
    (class_folders / "class3" / "more").symlink_to(tmp_path / "elsewhere")
    options: dict[str, Any] = {"path": str(class_folders), "size": 16}
    with pytest.raises(ValueError, match=r"1 of 26 .*class1/gone.jpg: the file does not exist"):
        load_dataset("folder", cache_dir=tmp_path / "c", **options)
    dataset = load_dataset("folder", cache_dir=tmp_path / "c", on_bad_image="skip", **options)
    assert (len(dataset.train), len(dataset.test)) == (13, 12)
    unread, skipped = dataset.notes
    assert "not read (class3/more)" in unread
    assert "class1/gone.jpg" in skipped


def test_a_class_with_one_image_is_refused(class_folders: Path) -> None:
    for i in (1, 2):
        (class_folders / "class3" / f"{i}.jpg").unlink()
    with pytest.raises(ValueError, match=r"at least 2 images, but .*class3 has 1; .*min_images"):
        read_folder(path=str(class_folders), split="auto", min_images=2)
    assert len(read_folder(path=str(class_folders), split="auto", min_images=1).names) == 22


def test_files_are_sorted_and_told_apart_by_their_suffix(tmp_path: Path) -> None:
    for name in ("b/2.PNG", "b/1.jpeg", "a/x.txt", "a/deep/y.webp", ".hidden/z.jpg"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"")
    images, others = list_files_by_kind(tmp_path)
    assert [p.relative_to(tmp_path).as_posix() for p in images] == [
        "a/deep/y.webp", "b/1.jpeg", "b/2.PNG",
    ]  # fmt: skip
    assert [p.name for p in others] == ["x.txt"]
    assert [p.name for p in list_class_folders(tmp_path)] == ["a", "b"]
