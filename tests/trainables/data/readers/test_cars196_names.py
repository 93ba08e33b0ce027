"""Class names of Cars196: complete, and found whatever the punctuation of a folder is."""

from __future__ import annotations

import pytest

from trainables.data.readers.cars196_names import CLASS_NAMES, find_class_id

pytestmark = pytest.mark.split


def test_there_are_196_classes_with_sorted_makes() -> None:
    assert len(set(CLASS_NAMES)) == 196
    # Makes are in order: only therefore do sorted folders give the papers' halves.
    assert sorted(CLASS_NAMES)[:98] == sorted(CLASS_NAMES[:98])


@pytest.mark.parametrize("change", [str, str.lower, lambda name: name.replace("/", "-")])
def test_every_class_is_found_by_its_folder(change: type[str]) -> None:
    assert [find_class_id(change(name)) for name in CLASS_NAMES] == list(range(196))


@pytest.mark.parametrize("name", ["Trabant 601 1964", "", "AM General Hummer SUV"])
def test_other_names_are_not_a_class(name: str) -> None:
    assert find_class_id(name) is None
