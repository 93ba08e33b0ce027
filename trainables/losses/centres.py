"""How similar is a sample to a class that has several proxies?

The nearest proxy decides (sub-centres, Deng et al., ECCV 2020), or all do with weights
softmax_k(s_k / temperature) (SoftTriple, Qian et al., ICCV 2019). Similarities lie in K planes,
(K, batch, classes): the k-th proxies of a block of classes are a matrix of its own to a matrix
product, and everything over K is a plain elementwise pass over planes that are in the cache.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from trainables.losses.blocks import LOG2_E, floored_exp2_


class Pooled(NamedTuple):
    """Similarities to classes, (batch, classes), and what backward needs of the way there.

    `planes` are similarities to proxies, if the choice is soft times `unit(temperature)`; then
    the weights are 2^(plane - shift) * inverse_sum (no shift where none is needed).
    """

    classes: Tensor
    planes: Tensor
    inverse_sum: Tensor | None = None
    shift: Tensor | None = None


# A cosine times this neither overflows nor underflows under exp, in float32: no shift is needed.
_SAFE_EXPONENT = 60.0


def pool(x: Tensor, p: Tensor, inverse_p: Tensor, temperature: float | None) -> Pooled:
    """Similarities of (batch, dim) to (classes, K, dim), whose 1 / norms are (classes, K)."""
    planes = x.new_empty(p.shape[1], len(x), len(p))
    factors = (inverse_p * unit(temperature)).T.contiguous()
    soft = None if temperature is None else _SoftChoice(planes[0])
    safe = temperature is not None and temperature * _SAFE_EXPONENT >= 1.0
    for k, plane in enumerate(planes):
        torch.mm(x, p[:, k].T, out=plane).mul_(factors[k])
        if soft is not None and safe:
            soft.add(plane, None)  # while the plane is in the cache
    if soft is None or temperature is None:
        return Pooled(planes.amax(dim=0), planes)
    shift = None if safe else planes.amax(dim=0)
    if shift is not None:
        for plane in planes:
            soft.add(plane, shift)
    inverse_sum = soft.sum.reciprocal_()
    classes = soft.weighted.mul_(inverse_sum).mul_(1.0 / unit(temperature))
    return Pooled(classes, planes, inverse_sum, shift)


def unit(temperature: float | None) -> float:
    """What planes hold similarities times of: one over the temperature, to the base 2."""
    return 1.0 if temperature is None else LOG2_E / temperature


class _SoftChoice:
    """Sums over K of shares, and of shares times similarities."""

    def __init__(self, like: Tensor) -> None:
        self.sum, self.weighted = torch.zeros_like(like), torch.zeros_like(like)
        self._share = torch.empty_like(like)

    def add(self, plane: Tensor, shift: Tensor | None) -> None:
        share = _share(plane, shift, self._share)
        self.sum.add_(share)
        self.weighted.addcmul_(share, plane)


def _share(plane: Tensor, shift: Tensor | None, out: Tensor) -> Tensor:
    if shift is None:
        return torch.exp2(plane, out=out)
    return floored_exp2_(torch.sub(plane, shift, out=out))


def plane_gradients(grad: Tensor, pooled: Pooled, temperature: float | None) -> Iterator[Tensor]:
    """Gradient of each plane's similarities from that of the pooled ones; valid until the next."""
    planes, room = pooled.planes, torch.empty_like(grad)
    if temperature is None or pooled.inverse_sum is None:
        # Equal nearest proxies: the first takes all, so that the weights always sum to one.
        nearest = planes.argmax(dim=0)
        for k in range(len(planes)):
            yield torch.mul(grad, nearest == k, out=room)
        return
    # w_k (1 + (s_k - S) / T) grad, as share_k (a + b plane_k) with a and b free of k
    b = grad * pooled.inverse_sum
    a = torch.addcmul(b, b, pooled.classes, value=-1.0 / temperature)
    b.mul_(1.0 / LOG2_E)
    share = torch.empty_like(grad)
    for plane in planes:
        _share(plane, pooled.shift, share)
        yield torch.addcmul(a, b, plane, out=room).mul_(share)
