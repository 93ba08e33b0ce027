"""Batches: balanced, without repeats, and the same for the same seed."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainables.data.batch_sampler import sample_epoch_batches

pytestmark = pytest.mark.split


@given(
    sizes=st.lists(st.integers(1, 12), min_size=6, max_size=30),
    images_per_class=st.integers(1, 5),
    batch_size=st.integers(2, 12),
    seed=st.integers(0, 2**31),
)
def test_balanced_batches(
    sizes: list[int], images_per_class: int, batch_size: int, seed: int
) -> None:
    labels = np.random.default_rng(seed).permutation(np.repeat(np.arange(len(sizes)), sizes))
    needed = -(-batch_size // images_per_class)
    if needed > len(sizes) or batch_size > len(labels):
        with pytest.raises(ValueError, match="needs"):
            sample_epoch_batches(
                labels, batch_size=batch_size, images_per_class=images_per_class, seed=seed
            )
        return
    batches = sample_epoch_batches(
        labels, batch_size=batch_size, images_per_class=images_per_class, seed=seed
    )
    assert len(batches) == len(labels) // batch_size
    for batch in batches:
        assert len(set(batch)) == len(batch) <= batch_size
        counts = np.bincount(labels[batch], minlength=len(sizes))
        assert counts.max() <= images_per_class
        # A class contributes the full number or all it has; only the last may contribute fewer.
        short = [c for c in np.flatnonzero(counts) if counts[c] < min(images_per_class, sizes[c])]
        assert len(short) <= 1
        if len(batch) < batch_size:
            assert (counts > 0).all()


def test_every_class_and_every_image_takes_its_turn() -> None:
    labels = np.repeat(np.arange(12), 8)
    batches = sample_epoch_batches(labels, batch_size=24, images_per_class=4, seed=(3, 0))
    assert sorted(np.concatenate(batches)) == list(range(96))
    for batch in batches:
        assert (np.bincount(labels[batch], minlength=12)[labels[batch]] == 4).all()


def test_same_seed_same_batches_and_other_epoch_other_batches() -> None:
    labels = np.repeat(np.arange(30), 7)

    def flat(images_per_class: int, seed: tuple[int, int]) -> list[int]:
        batches = sample_epoch_batches(
            labels, batch_size=20, images_per_class=images_per_class, seed=seed
        )
        return [int(i) for i in np.concatenate(batches)]

    for images_per_class in (0, 4):
        assert flat(images_per_class, (1, 2)) == flat(images_per_class, (1, 2))
        assert flat(images_per_class, (1, 2)) != flat(images_per_class, (1, 3))
        assert flat(images_per_class, (1, 2)) != flat(images_per_class, (2, 2))


def test_plain_shuffle_uses_images_once_and_drops_the_rest() -> None:
    labels = np.zeros(25, dtype=np.int64)
    batches = sample_epoch_batches(labels, batch_size=8, images_per_class=0, seed=0)
    assert [len(b) for b in batches] == [8, 8, 8]
    assert len(set(np.concatenate(batches))) == 24


@pytest.mark.parametrize(
    ("batch_size", "images_per_class", "message"),
    [
        (0, 4, "`batch_size >= 1`"),
        (8, -1, "`images_per_class >= 0`"),
        (64, 4, "a batch of 64 needs 64 images, got 40"),
        (40, 4, "needs 10 classes, got 5"),
    ],
)
def test_impossible_batches_are_refused(
    batch_size: int, images_per_class: int, message: str
) -> None:
    labels = np.repeat(np.arange(5), 8)
    with pytest.raises(ValueError, match=message):
        sample_epoch_batches(
            labels, batch_size=batch_size, images_per_class=images_per_class, seed=0
        )
