"""Which parameter learns how fast?

Forgetting to optimise the proxies is the field's recurring silent bug, so here it cannot happen:
every parameter is in exactly one group or the trial does not start, and a loss whose parameters
did not move in the first epoch fails.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.optim import AdamW

from trainables.model import EmbeddingModel
from trainables.settings import Settings


def build_optimizer(model: EmbeddingModel, loss: nn.Module, settings: Settings) -> AdamW:
    """AdamW with the groups `backbone`, `head`, `proxies` and `scalars`.

    Each has its own learning rate. Scalars are a loss's learned numbers (a temperature, a
    boundary): they have no direction, so that a proxy's step would throw them, and no reason to be
    drawn to zero. They take the head's rate and no weight decay, as NormFace's scale.

    Raises:
        RuntimeError: A parameter of the model or of the loss is in no group, or in two.
    """
    backbone = [] if model.backbone is None else _trainable(model.backbone.parameters())
    of_loss = _trainable(loss.parameters())
    groups = {
        "backbone": (backbone, settings.backbone_lr),
        "head": (_trainable(model.head.parameters()), settings.head_lr),
        "proxies": ([p for p in of_loss if p.ndim > 1], settings.proxy_lr),
        "scalars": ([p for p in of_loss if p.ndim <= 1], settings.head_lr),
    }
    optimizer = AdamW(
        [
            {
                "params": params,
                "lr": lr,
                "base_lr": lr,
                "name": name,
                "weight_decay": 0.0 if name == "scalars" else settings.weight_decay,
            }
            for name, (params, lr) in groups.items()
            if params
        ],
        eps=settings.adam_eps,
    )
    check_groups(optimizer, model, loss)
    return optimizer


def check_groups(optimizer: AdamW, *modules: nn.Module) -> None:
    """Raise unless every trainable parameter of the modules is in exactly one group."""
    owners: dict[int, int] = {}
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            owners[id(parameter)] = owners.get(id(parameter), 0) + 1
    for module in modules:
        for name, parameter in module.named_parameters():
            count = owners.get(id(parameter), 0)
            if parameter.requires_grad and count != 1:
                raise RuntimeError(
                    f"{type(module).__name__}.{name} is in {count} optimiser groups, not in one."
                )


def set_learning_rates(optimizer: AdamW, *, epoch: int, settings: Settings) -> None:
    """The learning rates of epoch `epoch` (from 0): decay, and a still backbone in the warm-up."""
    factor = decay_factor(epoch, settings)
    for group in optimizer.param_groups:
        warming = group["name"] == "backbone" and epoch < settings.warmup_epochs
        group["lr"] = 0.0 if warming else group["base_lr"] * factor


def decay_factor(epoch: int, settings: Settings) -> float:
    """What the learning rates of epoch `epoch` (from 0) are multiplied by."""
    done = epoch / settings.epochs
    if settings.lr_decay == "cosine":
        return 0.5 * (1.0 + math.cos(math.pi * done))
    if settings.lr_decay == "step":
        return 0.01 if done >= 0.75 else 0.1 if done >= 0.5 else 1.0
    return 1.0


class MovementCheck:
    """Did every parameter of the loss move?

    Keeps a small sample of each parameter from before the first epoch. One whose group in the
    optimiser has a rate of zero is meant to stand still.
    """

    _ROWS = 1024

    def __init__(self, loss: nn.Module, optimizer: AdamW | None = None) -> None:
        groups = [] if optimizer is None else optimizer.param_groups
        still = {id(p) for group in groups if group["base_lr"] == 0 for p in group["params"]}
        self._before = {
            name: p.detach()[: self._ROWS].clone() if p.ndim else p.detach().clone()
            for name, p in loss.named_parameters()
            if p.requires_grad and id(p) not in still
        }

    def check(self, loss: nn.Module) -> None:
        """Raise RuntimeError naming a parameter that is bit for bit what it was."""
        for name, parameter in loss.named_parameters():
            before = self._before.get(name)
            if before is None:
                continue
            after = parameter.detach()[: self._ROWS] if parameter.ndim else parameter.detach()
            # A rank may own no class at all.
            if before.numel() and torch.equal(before, after):
                raise RuntimeError(f"The loss parameter `{name}` did not move in a whole epoch.")


def clip_gradients(parameters: Iterable[Tensor], limit: float) -> None:
    """Clip each gradient value to [-limit, limit]; 0 leaves gradients alone."""
    if limit > 0:
        torch.nn.utils.clip_grad_value_(parameters, limit)


def _trainable(parameters: Iterable[nn.Parameter]) -> list[nn.Parameter]:
    return [p for p in parameters if p.requires_grad]
