"""Which pairs does a batch hold, and how far apart are they?"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from trainables.losses.blocks import compute_dtype, full_precision, inverse_norms


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
    x = embeddings.to(compute_dtype(embeddings))
    return x * inverse_norms(x)[:, None]


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
    if close.any():
        first, second = torch.nonzero(close, as_tuple=True)
        exact = (x[first] - x[second]).square().sum(dim=1)
        squared = squared.index_put((first, second), exact)
    apart = (squared > 0).fill_diagonal_(False)
    return squared.masked_fill(~apart, 1.0).sqrt() * apart
