"""Similarity concentration: the spread of cosines within and between classes.

A retrieval score tells whether pairs of one class lie above pairs of two classes; the spread of
both kinds tells how uniformly they do. Circle loss is said to leave a smaller spread than
AM-softmax (Sun et al., CVPR 2020, section 4.6), so it is measured on classes that were not trained
on.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

MAX_COMPARED_ITEMS = 2000


def concentration_step(n_items: int, *, limit: int = MAX_COMPARED_ITEMS) -> int:
    """Return n if every n-th of the items is compared."""
    return -(-n_items // limit)


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
    step = concentration_step(len(vectors), limit=limit)
    kinds = np.asarray(labels)[::step]
    order = np.argsort(kinds, kind="stable")
    chosen = vectors[::step].astype(np.float64)[order]
    lengths = np.linalg.norm(chosen, axis=1, keepdims=True)
    unit = chosen / np.maximum(lengths, np.finfo(np.float64).tiny)
    starts = np.flatnonzero(np.diff(kinds[order], prepend=kinds[order][:1] - 1))
    stops = np.append(starts[1:], len(unit))
    similarities = unit @ unit.T
    # Items are ordered by class, so the pairs of one class are blocks along the diagonal.
    blocks = [similarities[a:b, a:b] for a, b in zip(starts, stops, strict=True)]
    same = np.concatenate([block[np.triu_indices(len(block), k=1)] for block in blocks])
    n_other = len(unit) * (len(unit) - 1) // 2 - len(same)
    if not len(same) or not n_other:
        return float("nan")
    same_variance = float(same.var())
    for block in blocks:
        block.fill(0.0)
    # Every pair of two classes is in the matrix twice.
    mean = float(similarities.sum()) / (2 * n_other)
    similarities -= mean
    for block in blocks:
        block.fill(0.0)
    other_variance = float(np.vdot(similarities, similarities)) / (2 * n_other)
    return 1.0 - math.sqrt(same_variance + other_variance)
