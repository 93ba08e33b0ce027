"""How similar is a sample to a class that has several proxies?

The nearest proxy decides (sub-centres, Deng et al., ECCV 2020), or all do with weights
softmax_k(s_k / temperature) (SoftTriple, Qian et al., ICCV 2019). Similarities lie proxy-major,
(K, batch, classes), so that everything over K is a plain elementwise pass.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from trainables.losses.blocks import floored_exp_


class Pooled(NamedTuple):
    """Similarities to classes, (batch, classes), and what backward needs of the way there.

    `shares` are unnormalised weights of the proxies and `inverse_sum` one over their sum; both are
    None unless the choice is soft.
    """

    classes: Tensor
    shares: Tensor | None = None
    inverse_sum: Tensor | None = None


# A cosine times this neither overflows nor underflows under exp, in float32: no shift is needed.
_SAFE_EXPONENT = 60.0


def pool(similarities: Tensor, temperature: float | None) -> Pooled:
    """(K, batch, classes) -> (batch, classes); one proxy per class passes through unchanged."""
    if similarities.dim() == 2:
        return Pooled(similarities)
    if temperature is None:
        return Pooled(similarities.amax(dim=0))
    inverse = 1.0 / temperature
    if inverse <= _SAFE_EXPONENT:
        shares = (similarities * inverse).exp_()
    else:
        shift = similarities.amax(dim=0).mul_(-inverse)
        shares = floored_exp_(torch.add(shift, similarities, alpha=inverse))
    inverse_sum = shares.sum(dim=0).reciprocal_()
    classes = (shares * similarities).sum(dim=0).mul_(inverse_sum)
    return Pooled(classes, shares, inverse_sum)


def pool_backward(
    grad: Tensor, pooled: Pooled, similarities: Tensor, temperature: float | None
) -> Tensor:
    """Gradient of the similarities from that of the pooled ones; uses up the shares."""
    if pooled.shares is None or pooled.inverse_sum is None or temperature is None:
        # Equal nearest proxies: the first takes all, so that the weights always sum to one.
        nearest = similarities.argmax(dim=0, keepdim=True)
        return torch.zeros_like(similarities).scatter_(0, nearest, grad[None])
    # w_k (1 + (s_k - S) / T) grad, as shares_k (a + b s_k) with a and b free of k
    b = grad * pooled.inverse_sum
    a = torch.addcmul(b, b, pooled.classes, value=-1.0 / temperature)
    b.mul_(1.0 / temperature)
    return torch.addcmul(a, b, similarities).mul_(pooled.shares)
