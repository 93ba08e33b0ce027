"""Running loss of an epoch and the check that training has not diverged.

On an accelerator, reading a number makes the host wait for the device. The sums therefore stay on
the device and are read a few times in an epoch. On a CPU every step is checked.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from trainables.distributed.world import World
from trainables.training.errors import DivergedError


class LossMonitor:
    """Mean loss over steps, and whether all losses and embeddings were finite.

    Args:
        world: The ranks that train together.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        self._is_host = world.device.type == "cpu"
        self._n_steps = 0
        # NaN and infinity stay in a sum, whatever is added to it.
        self._loss_sum = torch.zeros((), dtype=torch.float64, device=world.device)
        self._embedding_sum = torch.zeros((), dtype=torch.float64, device=world.device)

    def add_step(self, value: Tensor, embeddings: Tensor) -> None:
        """Add the loss and the embeddings of a step.

        Raises:
            DivergedError: On a CPU, if one of them is NaN or infinite; on all ranks at once.
        """
        self._n_steps += 1
        self._loss_sum.add_(value)
        # A mining loss finds no pairs among NaNs and returns zero, so check the embeddings too.
        self._embedding_sum.add_(embeddings.sum())
        if self._is_host:
            self.check_finite()

    def check_finite(self) -> None:
        """Raise DivergedError, on all ranks at once, if a loss or an embedding was not finite."""
        sums = torch.stack([self._loss_sum, self._embedding_sum])
        diverged = (~torch.isfinite(sums).all()).double()
        self._world.all_reduce_max_(diverged)
        if float(diverged) > 0:
            raise DivergedError(
                f"training diverged: the loss is {self._mean_loss()} or an embedding is NaN or "
                "infinite"
            )

    def compute_mean(self) -> float:
        """Return the mean loss.

        Raises:
            DivergedError: If a loss or an embedding was not finite; on all ranks at once.
        """
        self.check_finite()
        return self._mean_loss()

    def _mean_loss(self) -> float:
        return float(self._loss_sum) / self._n_steps if self._n_steps else math.nan
