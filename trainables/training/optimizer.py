"""Optimiser: parameter groups, learning-rate schedule, and checks that every parameter trains.

Proxies that are never optimised are a common silent bug in metric learning. Two checks prevent it:
a trial does not start unless every parameter is in exactly one group, and it fails if a parameter
of the loss did not change in the first epoch.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.optim import AdamW

from trainables.config import TrainingSettings
from trainables.models.embedding import EmbeddingModel


def build_optimizer(model: EmbeddingModel, loss: nn.Module, settings: TrainingSettings) -> AdamW:
    """Build AdamW with the groups `backbone`, `head`, `proxies` and `scalars`.

    Each group has its own learning rate. Scalars are learned numbers of a loss (a temperature, a
    boundary). A proxy's learning rate is too large for them and weight decay would pull them to
    zero, so they use the head's learning rate and no weight decay, like NormFace's scale.

    Raises:
        RuntimeError: If a parameter of the model or of the loss is in no group, or in two.
    """
    backbone = [] if model.backbone is None else _trainable_parameters(model.backbone.parameters())
    loss_parameters = _trainable_parameters(loss.parameters())
    groups = {
        "backbone": (backbone, settings.backbone_lr),
        "head": (_trainable_parameters(model.head.parameters()), settings.head_lr),
        "proxies": ([p for p in loss_parameters if p.ndim > 1], settings.proxy_lr),
        "scalars": ([p for p in loss_parameters if p.ndim <= 1], settings.head_lr),
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
        # One kernel for all parameters of a group; on CPUs torch's default is as fast.
        fused=True if model.head.weight.device.type != "cpu" else None,
    )
    check_param_groups(optimizer, model, loss)
    return optimizer


def check_param_groups(optimizer: AdamW, *modules: nn.Module) -> None:
    """Check that every trainable parameter of the modules is in exactly one group.

    Raises:
        RuntimeError: If one is in no group, or in several.
    """
    owners: dict[int, int] = {}
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            owners[id(parameter)] = owners.get(id(parameter), 0) + 1
    for module in modules:
        for name, parameter in module.named_parameters():
            count = owners.get(id(parameter), 0)
            if parameter.requires_grad and count != 1:
                raise RuntimeError(
                    f"{type(module).__name__}.{name} is in {count} optimiser groups instead of one"
                )


def set_learning_rates(optimizer: AdamW, *, epoch: int, settings: TrainingSettings) -> None:
    """Set the learning rates of epoch `epoch` (from 0), including decay and warm-up."""
    factor = lr_decay_factor(epoch, settings)
    for group in optimizer.param_groups:
        warming = group["name"] == "backbone" and epoch < settings.warmup_epochs
        group["lr"] = 0.0 if warming else group["base_lr"] * factor


def lr_decay_factor(epoch: int, settings: TrainingSettings) -> float:
    """Return the factor of the learning rates in epoch `epoch` (from 0)."""
    progress = epoch / settings.epochs
    if settings.lr_decay == "cosine":
        return 0.5 * (1.0 + math.cos(math.pi * progress))
    if settings.lr_decay == "step":
        return 0.01 if progress >= 0.75 else 0.1 if progress >= 0.5 else 1.0
    return 1.0


class MovementCheck:
    """Check that every parameter of the loss changes in the first epoch.

    It keeps a small sample of each parameter from before the epoch. Parameters whose optimiser
    group has a learning rate of zero are not checked.

    Args:
        loss: The loss.
        optimizer: The optimiser of its parameters; None to check all parameters.
    """

    _MAX_SAMPLE_ROWS = 1024

    def __init__(self, loss: nn.Module, optimizer: AdamW | None = None) -> None:
        groups = [] if optimizer is None else optimizer.param_groups
        fixed = {id(p) for group in groups if group["base_lr"] == 0 for p in group["params"]}
        self._initial_values = {
            name: p.detach()[: self._MAX_SAMPLE_ROWS].clone() if p.ndim else p.detach().clone()
            for name, p in loss.named_parameters()
            if p.requires_grad and id(p) not in fixed
        }

    def check_all_moved(self, loss: nn.Module) -> None:
        """Raise RuntimeError with the name of a parameter that is bitwise unchanged."""
        for name, parameter in loss.named_parameters():
            before = self._initial_values.get(name)
            if before is None:
                continue
            after = (
                parameter.detach()[: self._MAX_SAMPLE_ROWS]
                if parameter.ndim
                else parameter.detach()
            )
            # A rank may hold no classes, and then its part of the parameter is empty.
            if before.numel() and torch.equal(before, after):
                raise RuntimeError(f"loss parameter `{name}` did not change in a complete epoch")


def clip_gradients(parameters: Iterable[Tensor], limit: float) -> None:
    """Clip each gradient value to [-limit, limit]; a limit of 0 disables clipping."""
    if limit > 0:
        tensors = list(parameters)
        on_accelerator = bool(tensors) and tensors[0].device.type != "cpu"
        torch.nn.utils.clip_grad_value_(tensors, limit, foreach=on_accelerator or None)


def _trainable_parameters(parameters: Iterable[nn.Parameter]) -> list[nn.Parameter]:
    return [p for p in parameters if p.requires_grad]
