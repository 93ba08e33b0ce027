"""Which pairs does a batch hold, and how far apart are they?"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from trainables.losses.blocks import compute_dtype, full_precision, unit_rows


class Pairs(NamedTuple):
    """Masks over (batch, batch): same class without the sample itself, and different class."""

    same: Tensor
    other: Tensor


def pairs_of(labels: Tensor) -> Pairs:
    """All ordered pairs of the batch, by kind."""
    same = labels[:, None] == labels[None]
    other = ~same
    same.fill_diagonal_(False)
    return Pairs(same, other)


def unit(embeddings: Tensor) -> Tensor:
    """Rows of length one, in at least float32; a zero row stays zero."""
    return unit_rows(embeddings.to(compute_dtype(embeddings)))


def cosines(embeddings: Tensor) -> Tensor:
    """Cosine of every pair, (batch, batch)."""
    return _products(unit(embeddings))


def _products(x: Tensor) -> Tensor:
    # Under autocast the product would be in half precision.
    with full_precision(x):
        return x @ x.T


# Below this squared distance 2 - 2 cos has lost half its digits: such pairs are subtracted.
_CLOSE = 1e-2


def distances(embeddings: Tensor) -> Tensor:
    """Euclidean distance of every pair of unit vectors, (batch, batch).

    Equal vectors, and every vector and itself, are at distance exactly 0 with gradient 0 (a
    distance has no slope there).
    """
    x = unit(embeddings)
    squared = 2.0 - 2.0 * _products(x)
    close = (squared < _CLOSE).fill_diagonal_(False)
    apart = (squared > 0).fill_diagonal_(False) & ~close
    far = squared.masked_fill(~apart, 1.0).sqrt() * apart
    rows = close.any(dim=1).nonzero()[:, 0]
    if not len(rows):
        return far
    # Differences are summed as they are made: gathered, they would be (pairs, dim) numbers.
    with full_precision(x):
        near = torch.cdist(x[rows], x, compute_mode="donot_use_mm_for_euclid_dist")
    return far.index_add(0, rows, near * close[rows])
