"""What every data set gives: two class-disjoint halves in arrays."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Part:
    """One side of a split.

    Args:
        items: Pixels (N, height, width, channels) uint8, or features (N, dim) float32. May be a
            memory map; never written to.
        labels: Class ids (N,), int64, unique over both parts of a data set.
        is_query: For query/gallery protocols, True for queries and False for gallery items;
            None when every item is a query against all others.
        index: Which rows of `items` are meant, in order; None is all of them. So a fold of a
            memory map is no copy of it. Read items through `read`.
        aspects: Width / height of the picture that each row of `items` was squashed from, float32;
            None when items are to be seen as they are. Read through `read_aspects`.
    """

    items: NDArray[np.uint8] | NDArray[np.float32]
    labels: NDArray[np.int64]
    is_query: NDArray[np.bool_] | None = None
    index: NDArray[np.int64] | None = None
    aspects: NDArray[np.float32] | None = None

    def read(self, rows: NDArray[np.int64] | slice | int) -> NDArray[Any]:
        """Some items, by their place in this part."""
        found: NDArray[Any] = self.items[rows if self.index is None else self.index[rows]]
        return found

    def read_aspects(self, rows: NDArray[np.int64] | slice) -> NDArray[np.float32] | None:
        """The aspects of the items that `read` gives."""
        if self.aspects is None:
            return None
        return self.aspects[rows if self.index is None else self.index[rows]]

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def kind(self) -> Literal["images", "features"]:
        """What the items are."""
        return "images" if self.items.ndim == 4 else "features"


@dataclass(frozen=True)
class Dataset:
    """Training classes and test classes; no class is in both.

    Args:
        name: As in the study file.
        train: Items of the training classes; validation folds are cut from these.
        test: Items of the test classes; only `study confirm` reads them.
        class_names: Name of class id i.
        fingerprint: Changes when the files, the reading settings or the split change.
        notes: What the reader wants users to know (skipped images, counts that differ).
        lists: Files that name all images which a note names only some of.
    """

    name: str
    train: Part
    test: Part
    class_names: tuple[str, ...]
    fingerprint: str
    notes: tuple[str, ...] = field(default=())
    lists: tuple[Path, ...] = field(default=())
