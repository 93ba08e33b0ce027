"""Data sets: two class-disjoint halves, as arrays."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class DatasetPart:
    """Items of one side of a split, with their classes.

    Args:
        items: Pixels (N, height, width, channels) uint8, or features (N, dim) float32. May be a
            read-only memory map.
        labels: Class ids (N,), int64, unique over both parts of a data set.
        is_query: For query/gallery protocols, True for queries and False for gallery items;
            None if every item is a query against all others.
        index: Rows of `items` that belong to this part, in order; None for all of them. A fold of a
            memory map therefore needs no copy. Read items with `read_items`.
        aspects: Width / height of the image that each row of `items` was squashed from, float32;
            None if items are not distorted. Read them with `read_aspects`.
    """

    items: NDArray[np.uint8] | NDArray[np.float32]
    labels: NDArray[np.int64]
    is_query: NDArray[np.bool_] | None = None
    index: NDArray[np.int64] | None = None
    aspects: NDArray[np.float32] | None = None

    def read_items(self, rows: NDArray[np.int64] | slice | int) -> NDArray[Any]:
        """Return some items, by their position in this part."""
        items: NDArray[Any] = self.items[rows if self.index is None else self.index[rows]]
        return items

    def read_aspects(self, rows: NDArray[np.int64] | slice) -> NDArray[np.float32] | None:
        """Return the aspects of the items that `read_items` returns for the same rows."""
        if self.aspects is None:
            return None
        return self.aspects[rows if self.index is None else self.index[rows]]

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def kind(self) -> Literal["images", "features"]:
        """Kind of the items: pixels have four axes, features two."""
        return "images" if self.items.ndim == 4 else "features"


@dataclass(frozen=True)
class Dataset:
    """A data set with disjoint training and test classes.

    Args:
        name: Name in the study file.
        train: Items of the training classes; validation folds are taken from these.
        test: Items of the test classes; only `study confirm` reads them.
        class_names: Name of each class id.
        fingerprint: Hash that changes when the files, the reader's options or the split change.
        notes: Messages for users (excluded images, differing counts).
        note_files: Files that list all images of a note that names only some.
    """

    name: str
    train: DatasetPart
    test: DatasetPart
    class_names: tuple[str, ...]
    fingerprint: str
    notes: tuple[str, ...] = field(default=())
    note_files: tuple[Path, ...] = field(default=())
