"""Which training classes train and which validate?"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

Indices = NDArray[np.int64]
FOLDS = (1, 2, 4)


def folds(labels: ArrayLike, n_folds: int) -> list[tuple[Indices, Indices]]:
    """Item indices (train, validation) of each fold; no class is on both sides of a fold.

    The sorted class ids are cut into contiguous runs, as in "A Metric Learning Reality Check"
    (ECCV 2020): with 4 folds each quarter of the classes validates once, with 2 each half. One fold
    is the first of four: the last quarter validates and three quarters train. The last run
    validates first, so fold 0 of 4 equals the only fold of 1.

    Args:
        labels: Class id of every item of the training half.
        n_folds: 1, 2 or 4.
    """
    if n_folds not in FOLDS:
        raise ValueError(f"`folds` must be 1, 2 or 4, got {n_folds}.")
    labels = np.asarray(labels, dtype=np.int64)
    classes = np.unique(labels)
    n_runs = 2 if n_folds == 2 else 4
    if len(classes) < 2 * n_runs:
        raise ValueError(
            f"{n_folds} fold(s) need at least {2 * n_runs} training classes, got {len(classes)}."
        )
    runs = np.array_split(classes, n_runs)
    result = []
    for fold in range(n_folds):
        validates = np.isin(labels, runs[-1 - fold])
        result.append((np.flatnonzero(~validates), np.flatnonzero(validates)))
    return result
