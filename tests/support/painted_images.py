"""Small image files whose colour identifies their class."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image

from trainables.data import Dataset

MAX_COLOUR_SPREAD = 6
"""Levels by which JPEG may change the colour of an image."""


def paint_image(path: Path, label: int = 0, size: tuple[int, int] = (40, 32)) -> Path:
    """Write an image of one colour that depends on the label, and return its path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    colour = np.random.default_rng(label).integers(0, 255, size=3)
    pixels = np.broadcast_to(colour, (size[1], size[0], 3)).astype(np.uint8)
    Image.fromarray(pixels).save(path)
    return path


def check_painted_halves(dataset: Dataset) -> None:
    """Check that the halves are disjoint and that labels and painted pixels belong together."""
    train, test = dataset.train, dataset.test
    assert not set(train.labels) & set(test.labels)
    assert train.labels.dtype == test.labels.dtype == np.int64
    assert len(train.items) == len(train.labels)
    assert len(test.items) == len(test.labels)
    assert max(train.labels.max(), test.labels.max()) < len(dataset.class_names)
    for part in (train, test):
        for label in set(part.labels):
            colours = part.items[part.labels == label].reshape(-1, part.items.shape[-1])
            assert np.ptp(colours.astype(int), axis=0).max() <= MAX_COLOUR_SPREAD
