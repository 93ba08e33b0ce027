"""How similar is a sample to a class that has several proxies?

The nearest proxy decides (sub-centres, Deng et al., ECCV 2020), or all do with weights
softmax_k(s_k / temperature) (SoftTriple, Qian et al., ICCV 2019, eq. 4). Similarities lie
proxy-major, (K, batch, classes), so that everything over K is a plain elementwise pass.
"""

from __future__ import annotations

import torch
from torch import Tensor


def pool(similarities: Tensor, temperature: float | None) -> Tensor:
    """(K, batch, classes) -> (batch, classes); one proxy per class passes through unchanged."""
    if similarities.dim() == 2:
        return similarities
    if temperature is None:
        return similarities.amax(dim=0)
    weights = _weights(similarities, temperature)
    return weights.mul_(similarities).sum(dim=0)


def pool_backward(
    grad: Tensor, classes: Tensor, similarities: Tensor, temperature: float | None
) -> Tensor:
    """Gradient of the similarities from that of the pooled ones."""
    if temperature is None:
        # Equal nearest proxies: the first takes all, so that the weights always sum to one.
        nearest = similarities.argmax(dim=0, keepdim=True)
        return torch.zeros_like(similarities).scatter_(0, nearest, grad[None])
    weights = _weights(similarities, temperature)
    pull = (similarities - classes).div_(temperature).add_(1.0)
    return weights.mul_(pull).mul_(grad)


def _weights(similarities: Tensor, temperature: float) -> Tensor:
    weights = (similarities - similarities.amax(dim=0)).div_(temperature).exp_()
    return weights.div_(weights.sum(dim=0))
