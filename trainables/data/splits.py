"""Validation folds: splits of the training classes."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

IndexArray = NDArray[np.int64]
ALLOWED_FOLD_COUNTS = (1, 2, 4)


def split_class_folds(labels: ArrayLike, n_folds: int) -> list[tuple[IndexArray, IndexArray]]:
    """Return item indices (train, validation) of each fold; its sides share no class.

    The sorted class ids are divided into contiguous runs, as in "A Metric Learning Reality Check"
    (ECCV 2020): with 4 folds each quarter of the classes validates once, with 2 folds each half.
    The last run validates first. A single fold is the first of four: the last quarter validates and
    three quarters train.

    Args:
        labels: Class id of every item of the training half.
        n_folds: 1, 2 or 4.
    """
    if n_folds not in ALLOWED_FOLD_COUNTS:
        raise ValueError(f"`folds` must be 1, 2 or 4, got {n_folds}")
    labels = np.asarray(labels, dtype=np.int64)
    classes = np.unique(labels)
    n_runs = 2 if n_folds == 2 else 4
    if len(classes) < 2 * n_runs:
        raise ValueError(
            f"folds: {n_folds} needs at least {2 * n_runs} training classes, got {len(classes)}"
        )
    runs = np.array_split(classes, n_runs)
    result = []
    for fold in range(n_folds):
        validates = np.isin(labels, runs[-1 - fold])
        result.append((np.flatnonzero(~validates), np.flatnonzero(validates)))
    return result
