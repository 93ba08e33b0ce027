"""Losses by name: `build_loss("proxy_anchor", n_classes=..., dim=..., ...)`.

A loss is a module called as `loss(embeddings, labels) -> scalar`; it normalises the embeddings if
its paper does. Learned proxies are its parameter `proxies`. Each module has one loss, `base` the
parts that losses share, `kernels` the block-wise computations, which a new loss need not know.
"""

from __future__ import annotations

from torch import nn

from trainables.losses.base.hyperparameters import ParamInfo
from trainables.losses.base.proxy_loss import ProxyLoss
from trainables.losses.registry import (
    LOSSES,
    LossInfo,
    build_loss,
    loss_info,
    loss_params,
    supports_negative_share,
    uses_raw_embeddings,
)

__all__ = [
    "LOSSES",
    "LossInfo",
    "ParamInfo",
    "build_loss",
    "loss_info",
    "loss_params",
    "reseed_loss",
    "set_progress",
    "sharded_parameters",
    "supports_negative_share",
    "uses_raw_embeddings",
]


def reseed_loss(loss: nn.Module, seed: int) -> None:
    """Seed the random choices of the loss; a loss without randomness is left unchanged.

    Every rank calls this with the same seed.
    """
    for module in loss.modules():
        if callable(method := getattr(module, "reseed", None)):
            method(seed)


def sharded_parameters(loss: nn.Module) -> dict[str, int]:
    """Return the parameters that are sharded over ranks: name and number of rows over all ranks."""
    if isinstance(loss, ProxyLoss) and loss.world.size > 1:
        return {"proxies": loss.n_classes}
    return {}


def set_progress(loss: nn.Module, fraction: float) -> None:
    """Set the completed fraction of the training, which annealed temperatures depend on."""
    for module in loss.modules():
        if callable(method := getattr(module, "set_progress", None)):
            method(fraction)
