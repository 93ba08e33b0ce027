"""How closely do similarities gather around their two means?

A retrieval score says whether pairs of one class lie above pairs of two; the spread of both kinds
says how uniformly they do. Circle loss is said to leave less of it than AM-softmax (Sun et al.,
CVPR 2020, section 4.6), so it is measured on the classes that were not trained on.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

LIMIT = 2000


def similarity_concentration(
    vectors: NDArray[np.float32], labels: NDArray[Any], *, limit: int = LIMIT
) -> float:
    """One less the spread of cosine similarities within and between classes; higher is tighter.

    The spread is the root of the sum of both variances. Of many items every n-th is taken, so that
    the time is bounded and nothing is random.

    >>> similarity_concentration(np.eye(4, dtype=np.float32)[[0, 0, 1, 1]], np.array([0, 0, 1, 1]))
    1.0

    Returns:
        NaN where there are no pairs of one of the two kinds.
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
