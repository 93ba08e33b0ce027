"""How far apart are the centres of each class? (the regulariser of SoftTriple)

R = sum_c sum_{t<s} sqrt(2 + 1e-5 - 2 w_t . w_s) / (C K (K - 1)) with unit centres w. Classes do not
meet in it, so it is computed class by class in blocks: K x K per class, never (C K) x (C K). The
backward folds the normalisation into that K x K matrix and needs no normalised copy of the centres.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from trainables.losses.blocks import compute_dtype, inverse_norms

# The authors' guard for coinciding centres, where the square root has no slope.
GUARD = 1e-5
_BLOCK_ELEMENTS = 2**17


def centre_spread(centres: Tensor) -> Tensor:
    """R of (classes, K, dim) centres, K >= 2."""
    with torch.autocast(centres.device.type, enabled=False):
        value: Tensor = _CentreSpread.apply(centres)  # type: ignore[no-untyped-call]
    return value


class _CentreSpread(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, centres: Tensor) -> Tensor:
        ctx.save_for_backward(centres)
        total = centres.new_zeros((), dtype=compute_dtype(centres))
        for _, w in _blocks(centres):
            gram, _ = _gram(w)
            total += torch.triu(_distances(gram), diagonal=1).sum()
        return total / _pairs(centres)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        (centres,) = ctx.saved_tensors
        result = torch.empty_like(centres)
        factor = grads[0] / _pairs(centres)
        with torch.autocast(centres.device.type, enabled=False):
            for start, w in _blocks(centres):
                gram, inverse = _gram(w)
                slopes = -_distances(gram).reciprocal_()
                slopes.diagonal(dim1=1, dim2=2).zero_()
                # A normalised centre moves only sideways: subtract its share along itself.
                along = (slopes * gram).sum(dim=2)
                slopes.diagonal(dim1=1, dim2=2).sub_(along)
                slopes.mul_(inverse[:, :, None]).mul_(inverse[:, None, :]).mul_(factor)
                result[start : start + len(w)] = torch.bmm(slopes, w)
        return result


def _blocks(centres: Tensor) -> Iterator[tuple[int, Tensor]]:
    width = max(1, _BLOCK_ELEMENTS // (centres.shape[1] * centres.shape[2]))
    dtype = compute_dtype(centres)
    for start in range(0, len(centres), width):
        yield start, centres[start : start + width].to(dtype)


def _pairs(centres: Tensor) -> int:
    return centres.shape[0] * centres.shape[1] * (centres.shape[1] - 1)


def _gram(w: Tensor) -> tuple[Tensor, Tensor]:
    inverse = inverse_norms(w)
    gram = torch.bmm(w, w.transpose(1, 2))
    return gram.mul_(inverse[:, :, None]).mul_(inverse[:, None, :]), inverse


def _distances(gram: Tensor) -> Tensor:
    return (2.0 - 2.0 * gram).clamp_(min=0.0).add_(GUARD).sqrt_()
