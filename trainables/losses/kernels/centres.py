"""How similar is a sample to a class that has several proxies?

The nearest proxy decides (sub-centres, Deng et al., ECCV 2020), or all do with weights
softmax_k(s_k / temperature) (SoftTriple, Qian et al., ICCV 2019). Similarities lie as the proxies
do, (classes, K, batch): one matrix product makes those of a block of classes, and what is over K
is over rows of a batch, side by side in the cache.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from trainables.losses.blocks import LOG2_E, Rooms, floored_exp2_
from trainables.losses.samples import Mixture


class Pooled(NamedTuple):
    """Similarities to classes, (batch, classes), and what backward needs of the way there.

    `classes` are times the factor given to `pool`, `proxies` are similarities to proxies,
    (classes, K, batch), times `unit(temperature)`. Where the choice is soft the weights are
    2^(proxies - shift) * inverse_sum (no shift where none is needed), both (classes, batch).
    """

    classes: Tensor
    proxies: Tensor
    inverse_sum: Tensor | None = None
    shift: Tensor | None = None


# A cosine times this needs no shift under exp: in float32 it stays in range, also as a factor of
# gradients that are themselves relative to an exponential (1e18 at most).
_SAFE_EXPONENT = 30.0

# Up to here proxies are added up one by one.
_FEW = 4


def pool(
    samples: Mixture,
    p: Tensor,
    inverse_p: Tensor,
    temperature: float | None,
    factor: float,
    rooms: Rooms,
) -> Pooled:
    """Similarities of samples to (classes, K, dim), whose 1 / norms are (classes, K).

    Those to classes are held times the factor.
    """
    proxies = p.new_empty(*p.shape[:2], samples.rows)
    factors = inverse_p.flatten() * unit(temperature)
    samples.similarities_(proxies.flatten(0, 1).T, p.flatten(0, 1), factors)
    if temperature is None:
        return Pooled(proxies.amax(dim=1).mul_(factor).T, proxies)
    safe = temperature * _SAFE_EXPONENT >= 1.0
    shift = None if safe else proxies.amax(dim=1)
    shares = _shares(proxies, shift, rooms)
    inverse_sum = _sum(shares).reciprocal_()
    classes = _sum(shares.mul_(proxies)).mul_(inverse_sum).mul_(factor / unit(temperature))
    return Pooled(classes.T, proxies, inverse_sum, shift)


def unit(temperature: float | None) -> float:
    """What similarities to proxies are held times of: one over the temperature, to the base 2."""
    return 1.0 if temperature is None else LOG2_E / temperature


def proxy_gradients(
    grad: Tensor, pooled: Pooled, temperature: float | None, factor: float, rooms: Rooms
) -> Tensor:
    """Gradient of the similarities to proxies, shaped as these, from that of the pooled ones.

    `factor` is as `pool` had it. Valid until the next call.
    """
    proxies, grad = pooled.proxies, grad.T
    out = rooms.like("gradients", proxies)
    if temperature is None or pooled.inverse_sum is None:
        # Equal nearest proxies: the first takes all, so that the weights always sum to one.
        nearest = proxies.argmax(dim=1, keepdim=True)
        return out.zero_().scatter_(1, nearest, grad[:, None])
    # w_k (1 + (s_k - S) / T) grad, as share_k (a + b s_k) with a and b free of k
    b = torch.mul(grad, pooled.inverse_sum, out=rooms.like("slope", grad))
    a = rooms.like("offset", grad)
    torch.addcmul(b, b, pooled.classes.T, value=-1.0 / (temperature * factor), out=a)
    torch.addcmul(a[:, None], b[:, None], proxies, value=1.0 / LOG2_E, out=out)
    return out.mul_(_shares(proxies, pooled.shift, rooms))


def _shares(proxies: Tensor, shift: Tensor | None, rooms: Rooms) -> Tensor:
    out = rooms.like("shares", proxies)
    if shift is None:
        return torch.exp2(proxies, out=out)
    return floored_exp2_(torch.sub(proxies, shift[:, None], out=out))


def _sum(planes: Tensor) -> Tensor:
    """Over the proxies of a class; torch's own loop over few of them takes twice the time."""
    if planes.shape[1] > _FEW:
        return planes.sum(dim=1)
    total = planes[:, 0] + planes[:, 1]
    for k in range(2, planes.shape[1]):
        total += planes[:, k]
    return total
