"""No class, and no image, may be on two sides of a split."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainables.data.splits import ALLOWED_FOLD_COUNTS, split_class_folds

pytestmark = pytest.mark.split


@given(
    sizes=st.lists(st.integers(1, 6), min_size=8, max_size=60),
    n_folds=st.sampled_from(ALLOWED_FOLD_COUNTS),
    seed=st.integers(0, 99),
    offset=st.sampled_from([0, -5, 2**40]),
)
def test_sides_share_no_class_and_no_image(
    sizes: list[int], n_folds: int, seed: int, offset: int
) -> None:
    labels = np.repeat(np.arange(len(sizes)) * 3 + offset, sizes)
    labels = np.random.default_rng(seed).permutation(labels)
    validated: list[int] = []
    result = split_class_folds(labels, n_folds)
    assert len(result) == n_folds
    for train, validation in result:
        assert not set(train) & set(validation)
        assert sorted([*train, *validation]) == list(range(len(labels)))
        train_classes, held_out = set(labels[train]), set(labels[validation])
        assert not train_classes & held_out
        assert len(train_classes) >= 2
        assert len(held_out) >= 2
        # Contiguous: no training class lies between two validation classes.
        inside = [c for c in train_classes if min(held_out) < c < max(held_out)]
        assert not inside
        validated += held_out
    assert len(validated) == len(set(validated))
    if n_folds > 1:
        assert set(validated) == set(labels)


def test_the_only_fold_is_the_first_of_four_and_validates_the_last_quarter() -> None:
    labels = np.repeat(np.arange(100), 3)
    (train, validation), first = split_class_folds(labels, 1)[0], split_class_folds(labels, 4)[0]
    assert set(labels[validation]) == set(range(75, 100))
    assert np.array_equal(train, first[0])
    assert np.array_equal(validation, first[1])


@pytest.mark.parametrize("n_folds", [0, 3, 5])
def test_other_numbers_of_folds_are_refused(n_folds: int) -> None:
    with pytest.raises(ValueError, match=f"must be 1, 2 or 4, got {n_folds}"):
        split_class_folds(np.arange(100), n_folds)


def test_too_few_classes_are_refused() -> None:
    with pytest.raises(ValueError, match="folds: 4 needs at least 8 training classes, got 7"):
        split_class_folds(np.repeat(np.arange(7), 4), 4)
