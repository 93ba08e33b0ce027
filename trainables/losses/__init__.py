"""The losses of the papers, by name: `build_loss("proxy_anchor", n_classes=..., dim=..., ...)`.

A loss is a module called as `loss(embeddings, labels) -> scalar`; it normalises the embeddings
itself where its paper does. Learned proxies are its parameter `proxies`. All its parameters belong
to the proxies' group of the optimiser.
"""

from __future__ import annotations

from torch import nn

from trainables.losses.knobs import KnobInfo
from trainables.losses.proxy_loss import ProxyLoss
from trainables.losses.registry import (
    LOSSES,
    LossInfo,
    build_loss,
    counts_lengths,
    loss_info,
    loss_knobs,
    samples_classes,
)

__all__ = [
    "LOSSES",
    "KnobInfo",
    "LossInfo",
    "build_loss",
    "counts_lengths",
    "loss_info",
    "loss_knobs",
    "reseed",
    "samples_classes",
    "set_progress",
    "sharded_parameters",
]


def reseed(loss: nn.Module, seed: int) -> None:
    """Make every random choice of the loss from here on a function of the seed.

    Losses without randomness are left alone. Every rank calls this with the same seed.
    """
    for module in loss.modules():
        if callable(method := getattr(module, "reseed", None)):
            method(seed)


def sharded_parameters(loss: nn.Module) -> dict[str, int]:
    """Parameters of which each rank holds a share, by name, and their rows over all ranks."""
    if isinstance(loss, ProxyLoss) and loss.world.size > 1:
        return {"proxies": loss.n_classes}
    return {}


def set_progress(loss: nn.Module, fraction: float) -> None:
    """Tell the loss which fraction of the training is over (annealed temperatures)."""
    for module in loss.modules():
        if callable(method := getattr(module, "set_progress", None)):
            method(fraction)
