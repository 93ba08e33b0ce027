"""Similarity concentration: the spread of cosines within and between classes.

A retrieval score tells whether pairs of one class lie above pairs of two classes; the spread of
both kinds tells how uniformly they do. Circle loss is said to leave a smaller spread than
AM-softmax (Sun et al., CVPR 2020, section 4.6), so it is measured on classes that were not trained
on.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

MAX_COMPARED_ITEMS = 2000


def similarity_concentration(
    vectors: NDArray[np.float32], labels: NDArray[Any], *, limit: int = MAX_COMPARED_ITEMS
) -> float:
    """Return one minus the spread of cosines within and between classes; higher is tighter.

    The spread is the square root of the sum of both variances.

    >>> similarity_concentration(np.eye(4, dtype=np.float32)[[0, 0, 1, 1]], np.array([0, 0, 1, 1]))
    1.0

    Args:
        vectors: Embeddings (N, D).
        labels: Class of each.
        limit: Number of items above which only every n-th is used, so that the time is bounded and
            nothing is random.

    Returns:
        NaN if there are no pairs of one of the two kinds.
    """
    step = -(-len(vectors) // limit)
    chosen, kinds = vectors[::step].astype(np.float64), np.asarray(labels)[::step]
    lengths = np.linalg.norm(chosen, axis=1, keepdims=True)
    unit = chosen / np.maximum(lengths, np.finfo(np.float64).tiny)
    above = np.triu_indices(len(unit), k=1)
    similarities = (unit @ unit.T)[above]
    same = (kinds[:, None] == kinds[None, :])[above]
    if same.all() or not same.any():
        return float("nan")
    spread = np.sqrt(similarities[same].var() + similarities[~same].var())
    return float(1.0 - spread)
