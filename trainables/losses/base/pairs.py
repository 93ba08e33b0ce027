"""Pairs of a batch: masks by kind, cosines and distances."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from trainables.losses.kernels.blocks import unit_rows, widest_dtype
from trainables.losses.kernels.own_entries import can_read_values
from trainables.utils.precision import strict_float32


class PairMasks(NamedTuple):
    """Masks over (batch, batch): same class, without the sample itself, and different class."""

    same: Tensor
    other: Tensor


def make_pair_masks(labels: Tensor) -> PairMasks:
    """Return the masks of all ordered pairs of the batch."""
    same = labels[:, None] == labels[None]
    other = ~same
    same.fill_diagonal_(False)
    return PairMasks(same, other)


def normalise_embeddings(embeddings: Tensor) -> Tensor:
    """Return rows of length one in at least float32; a zero row stays zero."""
    return unit_rows(embeddings.to(widest_dtype(embeddings)))


def pairwise_cosines(embeddings: Tensor) -> Tensor:
    """Return the cosine of every pair, (batch, batch)."""
    return _gram_matrix(normalise_embeddings(embeddings))


def _gram_matrix(x: Tensor) -> Tensor:
    with strict_float32(x.device):
        return x @ x.T


# Below this squared distance 2 - 2 cos loses half its digits; such pairs are computed by
# subtraction.
_MAX_CLOSE_SQUARED_DISTANCE = 1e-2


def pairwise_distances(embeddings: Tensor) -> Tensor:
    """Return the Euclidean distance of every pair of unit vectors, (batch, batch).

    The distance of equal vectors, and of a vector to itself, is exactly 0 with gradient 0, since a
    distance is not differentiable there.
    """
    x = normalise_embeddings(embeddings)
    if not can_read_values(x):
        with strict_float32(x.device):
            distances: Tensor = _DistancesFunction.apply(x)  # type: ignore[no-untyped-call]
        return distances
    squared = 2.0 - 2.0 * _gram_matrix(x)
    close = (squared < _MAX_CLOSE_SQUARED_DISTANCE).fill_diagonal_(False)
    apart = (squared > 0).fill_diagonal_(False) & ~close
    far = squared.masked_fill(~apart, 1.0).sqrt() * apart
    rows = close.any(dim=1).nonzero()[:, 0]
    if not len(rows):
        return far
    # cdist sums differences as it computes them; stored, they would be (pairs, dim) numbers.
    with strict_float32(x.device):
        near = torch.cdist(x[rows], x, compute_mode="donot_use_mm_for_euclid_dist")
    return far.index_add(0, rows, near * close[rows])


class _DistancesFunction(torch.autograd.Function):
    """Distances of all pairs by subtraction, in shapes that do not depend on the values.

    The derivative that torch has for `cdist` stores (batch, batch, dim) numbers on a GPU. Here it
    is two sums whose difference is small for close pairs, so it is computed in float64.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        distances = torch.cdist(x, x, compute_mode="donot_use_mm_for_euclid_dist")
        ctx.save_for_backward(x, distances)
        return distances

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        x, distances = ctx.saved_tensors
        weights = ((grads[0] + grads[0].T) / distances).masked_fill_(distances == 0, 0.0).double()
        wide = x.double()
        total: Tensor = weights.sum(dim=1, keepdim=True) * wide
        return total.addmm_(weights, wide, alpha=-1.0).to(x.dtype)
