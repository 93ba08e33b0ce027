"""Value and gradients of a loss, and its memory budget."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from trainables.losses import reseed_loss
from trainables.losses.kernels.blocks import MemoryBudget


def compute_loss_and_gradients(loss: nn.Module, x: Tensor, y: Tensor) -> list[Tensor]:
    """Return the loss and its gradients: of the embeddings, then of every parameter.

    The random choices of the loss are the same in every call.
    """
    reseed_loss(loss, 3)
    x = x.detach().requires_grad_()
    value = loss(x, y)
    return [value.detach(), *torch.autograd.grad(value, [x, *loss.parameters()])]


def set_memory_budget(loss: nn.Module, budget: MemoryBudget) -> None:
    """Replace the memory budget of every module of the loss that has one."""
    for module in loss.modules():
        if hasattr(module, "budget"):
            setattr(module, "budget", budget)  # noqa: B010 - mypy sees attributes as tensors
