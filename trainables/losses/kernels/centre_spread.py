"""Spread of the centres of each class: the regulariser of SoftTriple.

R = sum_c sum_{t<s} sqrt(2 + 1e-5 - 2 w_t . w_s) / (C K (K - 1)) with unit centres w. Classes are
independent, so it takes K x K numbers per class, never (C K) x (C K), and is computed on the blocks
of the class kernels while these are cached. Forward and backward need only the inner products of
the centres of a class: their diagonal has the squared norms, and backward folds the normalisation
into the K x K matrix that it multiplies with the centres.
"""

from __future__ import annotations

import torch
from torch import Tensor

# The authors' guard for coinciding centres, where the square root is not differentiable.
SQUARED_DISTANCE_GUARD = 1e-5


def inner_products(centres: Tensor) -> Tensor:
    """Return the inner products of the centres: (classes, K, dim) -> (classes, K, K)."""
    return torch.bmm(centres, centres.transpose(1, 2))


def sum_spread(products: Tensor, inverse: Tensor, unused: Tensor | None = None) -> Tensor:
    """Return the sum of distances over all classes and pairs t < s.

    Args:
        products: Result of `inner_products`.
        inverse: 1 / norms of the centres, (classes, K).
        unused: Mask of classes that are left out.
    """
    distances = _squared_distances(_centre_cosines(products, inverse)).sqrt_()
    distances.diagonal(dim1=1, dim2=2).zero_()
    if unused is not None:
        distances.masked_fill_(unused[:, None, None], 0.0)
    return distances.sum() / 2.0


def add_spread_gradient(
    out: Tensor, centres: Tensor, products: Tensor, inverse: Tensor, factor: Tensor, less: Tensor
) -> None:
    """Add `factor` times the gradient of `sum_spread` to `out`, and subtract less * centres.

    `out` and `centres` are (classes, K, dim), `less` is (classes, K): the component along each
    centre that a caller has to subtract costs nothing as part of the same product. `factor` is one
    number, or one of each class, (classes, 1, 1).
    """
    cosines = _centre_cosines(products, inverse)
    slopes = _squared_distances(cosines).rsqrt_().neg_()
    slopes.diagonal(dim1=1, dim2=2).zero_()
    # Normalisation removes the component of the gradient along the centre.
    along = cosines.mul_(slopes).sum(dim=2)
    slopes.diagonal(dim1=1, dim2=2).sub_(along)
    slopes.mul_(inverse[:, :, None] * factor).mul_(inverse[:, None, :])
    slopes.diagonal(dim1=1, dim2=2).sub_(less)
    out.baddbmm_(slopes, centres)


def _centre_cosines(products: Tensor, inverse: Tensor) -> Tensor:
    return (products * inverse[:, :, None]).mul_(inverse[:, None, :])


def _squared_distances(cosines: Tensor) -> Tensor:
    return (cosines * -2.0).add_(2.0 + SQUARED_DISTANCE_GUARD).clamp_(min=SQUARED_DISTANCE_GUARD)
