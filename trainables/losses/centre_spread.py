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


def spread_sum(products: Tensor) -> Tensor:
    """Sum of the distances over all classes and pairs t < s, from `inner_products`."""
    cosines, _ = _cosines(products)
    distances = _distances(cosines)
    distances.diagonal(dim1=1, dim2=2).zero_()
    return distances.sum() / 2.0


def add_spread_gradient(
    out: Tensor, centres: Tensor, products: Tensor, factor: Tensor, less: Tensor
) -> None:
    """Add `factor` times the gradient of `spread_sum` to `out`, and subtract less * centres.

    `out` and `centres` are (classes, K, dim), `less` is (classes, K): what a caller has to take
    off along each centre anyway costs nothing as part of the same product.
    """
    cosines, inverse = _cosines(products)
    slopes = _distances(cosines).reciprocal_().neg_()
    slopes.diagonal(dim1=1, dim2=2).zero_()
    # A normalised centre moves only sideways: subtract its share along itself.
    along = (slopes * cosines).sum(dim=2)
    slopes.diagonal(dim1=1, dim2=2).sub_(along)
    slopes.mul_(inverse[:, :, None]).mul_(inverse[:, None, :]).mul_(factor)
    slopes.diagonal(dim1=1, dim2=2).sub_(less)
    out.baddbmm_(slopes, centres)


def _cosines(products: Tensor) -> tuple[Tensor, Tensor]:
    squares = products.diagonal(dim1=1, dim2=2)
    present = squares > 0
    inverse = torch.where(present, torch.where(present, squares, 1.0).rsqrt(), 0.0)
    return products * inverse[:, :, None] * inverse[:, None, :], inverse


def _distances(cosines: Tensor) -> Tensor:
    return (2.0 - 2.0 * cosines).clamp_(min=0.0).add_(GUARD).sqrt_()
