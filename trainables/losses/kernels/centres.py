"""Similarity of samples to classes with several proxies.

It is the similarity to the nearest proxy (sub-centres, Deng et al., ECCV 2020), or the mean over
all proxies with weights softmax_k(s_k / temperature) (SoftTriple, Qian et al., ICCV 2019). The
layout of the similarities is that of the proxies, (classes, K, batch): one matrix product computes
a block of classes, and reductions over K run over adjacent rows of the batch.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from trainables.losses.kernels.blocks import LOG2_E, ScratchBuffers, floored_exp2_
from trainables.losses.kernels.mixture import InterpolatedBatch


class PooledSimilarities(NamedTuple):
    """Similarities to classes, (batch, classes), and the intermediate results for backward.

    `classes` are multiplied by the factor of `pool_similarities`. `proxies` are the similarities to
    proxies, (classes, K, batch), times `log2_inverse_temperature(temperature)`. Soft weights are
    2^(proxies - shift) * inverse_sum with (classes, batch) tensors; `shift` is None if none is
    needed.
    """

    classes: Tensor
    proxies: Tensor
    inverse_sum: Tensor | None = None
    shift: Tensor | None = None


# Up to this scale of the cosines exp needs no shift: in float32 it stays in range, even multiplied
# by gradients that are relative to an exponential themselves (1e18 at most).
_SAFE_EXPONENT = 30.0

# Up to this number of proxies, sums over them are unrolled.
_MAX_UNROLLED_PROXIES = 4


def pool_similarities(
    samples: InterpolatedBatch,
    p: Tensor,
    inverse_p: Tensor,
    temperature: float | None,
    factor: float | Tensor,
    buffers: ScratchBuffers,
) -> PooledSimilarities:
    """Return the similarities of samples to classes with proxies `p`, (classes, K, dim).

    Args:
        samples: The batch.
        p: Proxies of a block of classes.
        inverse_p: 1 / norms of the proxies, (classes, K).
        temperature: Softness of the weights; None takes the nearest proxy.
        factor: Multiplies the similarities to classes.
        buffers: Scratch memory.
    """
    proxies = p.new_empty(*p.shape[:2], samples.n_rows)
    factors = inverse_p.flatten() * log2_inverse_temperature(temperature)
    samples.fill_similarities_(proxies.flatten(0, 1).T, p.flatten(0, 1), factors)
    if temperature is None:
        return PooledSimilarities(proxies.amax(dim=1).mul_(factor).T, proxies)
    safe = temperature * _SAFE_EXPONENT >= 1.0
    shift = None if safe else proxies.amax(dim=1)
    shares = _unnormalised_weights(proxies, shift, buffers)
    inverse_sum = _sum_over_proxies(shares).reciprocal_()
    classes = (
        _sum_over_proxies(shares.mul_(proxies))
        .mul_(inverse_sum)
        .mul_(factor / log2_inverse_temperature(temperature))
    )
    return PooledSimilarities(classes.T, proxies, inverse_sum, shift)


def log2_inverse_temperature(temperature: float | None) -> float:
    """Return the unit of similarities to proxies: 1 / temperature to the base 2."""
    return 1.0 if temperature is None else LOG2_E / temperature


def proxy_gradients(
    grad: Tensor,
    pooled: PooledSimilarities,
    temperature: float | None,
    factor: float | Tensor,
    buffers: ScratchBuffers,
) -> Tensor:
    """Return the gradient of the similarities to proxies from that of the pooled similarities.

    `factor` is that of `pool_similarities`. The result is valid until the next call.
    """
    proxies, grad = pooled.proxies, grad.T
    out = buffers.buffer_like("gradients", proxies)
    if temperature is None or pooled.inverse_sum is None:
        # Of equally near proxies the first gets the gradient, so that the weights sum to one.
        nearest = proxies.argmax(dim=1, keepdim=True)
        return out.zero_().scatter_(1, nearest, grad[:, None])
    # w_k (1 + (s_k - S) / T) grad, as share_k (a + b s_k) with a and b independent of k
    b = torch.mul(grad, pooled.inverse_sum, out=buffers.buffer_like("slope", grad))
    a = buffers.buffer_like("offset", grad)
    if isinstance(factor, Tensor):
        torch.mul(b, pooled.classes.T, out=a).mul_(-1.0 / (temperature * factor)).add_(b)
    else:
        torch.addcmul(b, b, pooled.classes.T, value=-1.0 / (temperature * factor), out=a)
    torch.addcmul(a[:, None], b[:, None], proxies, value=1.0 / LOG2_E, out=out)
    return out.mul_(_unnormalised_weights(proxies, pooled.shift, buffers))


def _unnormalised_weights(proxies: Tensor, shift: Tensor | None, buffers: ScratchBuffers) -> Tensor:
    out = buffers.buffer_like("shares", proxies)
    if shift is None:
        return torch.exp2(proxies, out=out)
    return floored_exp2_(torch.sub(proxies, shift[:, None], out=out))


def _sum_over_proxies(planes: Tensor) -> Tensor:
    """Sum over the proxies of a class; for few proxies torch's own loop takes twice the time."""
    if planes.shape[1] > _MAX_UNROLLED_PROXIES:
        return planes.sum(dim=1)
    total = planes[:, 0] + planes[:, 1]
    for k in range(2, planes.shape[1]):
        total += planes[:, k]
    return total
