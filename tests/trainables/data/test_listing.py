"""Image listings: their halves, and the files of a release."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from trainables.data.listing import (
    ImageListing,
    find_data_folder,
    find_required_file,
    read_list_lines,
)

pytestmark = pytest.mark.split


def make_listing(labels: list[int], in_test: list[int]) -> ImageListing:
    return ImageListing(
        root=Path(),
        names=[f"{i}.jpg" for i in range(len(labels))],
        labels=np.array(labels, dtype=np.int64),
        in_test=np.array(in_test, dtype=np.bool_),
        class_names=["ant", "bee", "cat", "dog"],
    )


def test_halves_with_two_classes_each_are_accepted() -> None:
    make_listing([0, 0, 1, 2, 3], [0, 0, 0, 1, 1]).check_halves()


def test_a_class_in_both_halves_is_named() -> None:
    with pytest.raises(ValueError, match="share no class, but both contain 'bee'"):
        make_listing([0, 1, 1, 2], [0, 0, 1, 1]).check_halves()


@pytest.mark.parametrize(
    ("in_test", "message"),
    [
        ([0, 1, 1, 1], "the training half needs at least 2 classes .* got only 'ant'"),
        ([0, 0, 0, 1], "the test half needs at least 2 classes .* got only 'dog'"),
        ([0, 0, 0, 0], "the test half needs at least 2 classes .* got none"),
    ],
)
def test_a_half_with_fewer_classes_is_refused(in_test: list[int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make_listing([0, 1, 2, 3], in_test).check_halves()


def test_the_check_can_be_limited_to_some_images() -> None:
    listing = make_listing([0, 1, 2, 3], [0, 0, 1, 1])
    with pytest.raises(ValueError, match="got only 'bee'"):
        listing.check_halves(np.array([1, 2, 3]))


def test_masks_of_some_images() -> None:
    listing = make_listing([0, 1, 2, 3], [0, 0, 1, 1])
    in_test, is_query = listing.select_masks(np.array([3, 0]))
    assert in_test.tolist() == [True, False]
    assert is_query is None


def test_the_archive_folder_is_preferred_to_its_parent(tmp_path: Path) -> None:
    assert find_data_folder("sop", str(tmp_path), "Products") == tmp_path
    (tmp_path / "Products").mkdir()
    assert find_data_folder("sop", str(tmp_path), "Products") == tmp_path / "Products"
    with pytest.raises(ValueError, match=r"^sop: the folder .*gone does not exist"):
        find_data_folder("sop", str(tmp_path / "gone"))


def test_the_home_folder_is_expanded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert find_data_folder("sop", "~") == tmp_path


def test_the_first_of_several_files_is_found(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"^sop: .* must contain a\.txt or b/a\.txt"):
        find_required_file("sop", tmp_path, "a.txt", "b/a.txt")
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "a.txt").write_text("")
    assert find_required_file("sop", tmp_path, "a.txt", "b/a.txt") == tmp_path / "b" / "a.txt"


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig"])
def test_lists_are_utf8_with_or_without_a_mark(tmp_path: Path, encoding: str) -> None:
    (tmp_path / "l.txt").write_text("grün\r\nblau\n", encoding=encoding)
    assert read_list_lines("sop", tmp_path / "l.txt") == ["grün", "blau"]


def test_a_list_in_another_encoding_is_refused(tmp_path: Path) -> None:
    (tmp_path / "l.txt").write_bytes("grün".encode("latin-1"))
    with pytest.raises(ValueError, match=r"^sop: .*l\.txt must be UTF-8 text, but byte 2"):
        read_list_lines("sop", tmp_path / "l.txt")
