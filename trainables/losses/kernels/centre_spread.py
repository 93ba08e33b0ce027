"""How far apart are the centres of each class? (the regulariser of SoftTriple)

R = sum_c sum_{t<s} sqrt(2 + 1e-5 - 2 w_t . w_s) / (C K (K - 1)) with unit centres w. Classes do not
meet in it, so it takes K x K numbers per class, never (C K) x (C K), and is computed on the blocks
of the class core while these are in the cache. Both directions need only the inner products of a
class's centres: their diagonal holds the norms, and the backward folds the normalisation into the
K x K matrix that it multiplies with the centres.
"""

from __future__ import annotations

import torch
from torch import Tensor

# The authors' guard for coinciding centres, where the square root has no slope.
GUARD = 1e-5


def inner_products(centres: Tensor) -> Tensor:
    """(classes, K, dim) -> (classes, K, K)."""
    return torch.bmm(centres, centres.transpose(1, 2))


def spread_sum(products: Tensor, inverse: Tensor) -> Tensor:
    """Sum of the distances over all classes and pairs t < s, from `inner_products`.

    `inverse` are 1 / norms of the centres, (classes, K).
    """
    distances = _squared_distances(_cosines(products, inverse)).sqrt_()
    distances.diagonal(dim1=1, dim2=2).zero_()
    return distances.sum() / 2.0


def add_spread_gradient(
    out: Tensor, centres: Tensor, products: Tensor, inverse: Tensor, factor: Tensor, less: Tensor
) -> None:
    """Add `factor` times the gradient of `spread_sum` to `out`, and subtract less * centres.

    `out` and `centres` are (classes, K, dim), `less` is (classes, K): what a caller has to take
    off along each centre anyway costs nothing as part of the same product.
    """
    cosines = _cosines(products, inverse)
    slopes = _squared_distances(cosines).rsqrt_().neg_()
    slopes.diagonal(dim1=1, dim2=2).zero_()
    # A normalised centre moves only sideways: subtract its share along itself.
    along = cosines.mul_(slopes).sum(dim=2)
    slopes.diagonal(dim1=1, dim2=2).sub_(along)
    slopes.mul_(inverse[:, :, None] * factor).mul_(inverse[:, None, :])
    slopes.diagonal(dim1=1, dim2=2).sub_(less)
    out.baddbmm_(slopes, centres)


def _cosines(products: Tensor, inverse: Tensor) -> Tensor:
    return (products * inverse[:, :, None]).mul_(inverse[:, None, :])


def _squared_distances(cosines: Tensor) -> Tensor:
    return (cosines * -2.0).add_(2.0 + GUARD).clamp_(min=GUARD)
