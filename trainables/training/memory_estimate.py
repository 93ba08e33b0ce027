"""Estimate of the device memory that a training step needs, from a few images on any device."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from trainables.training.micro_batches import pause_running_statistics
from trainables.training.replica import ModelReplica
from trainables.utils.precision_names import Precision

N_PROBED_IMAGES = 2
COPIES_PER_WEIGHT = 4
"""A weight, its gradient and two moments."""


@dataclass(frozen=True)
class MemoryEstimate:
    """Memory of a training step, without data that are resident on the device.

    Args:
        state_bytes: Weights, gradients and moments of network and loss.
        bytes_per_image: Activations that the backward pass needs, for each image of a rank.
    """

    state_bytes: int
    bytes_per_image: float


def estimate_memory(replica: ModelReplica, precision: Precision) -> MemoryEstimate:
    """Estimate the memory of a replica's training step in some precision.

    Activations are counted while a few images pass through the network in float32; a GPU keeps
    them in half the bytes in bf16. What kernels need in addition for a short time is not counted.
    """
    model = replica.model
    weights = [*model.parameters(), *replica.loss.parameters()]
    known = {weight.untyped_storage().data_ptr() for weight in weights}
    saved: dict[int, int] = {}

    def record(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in known:
            saved[storage.data_ptr()] = storage.nbytes()
        kept.append(tensor)  # so that no other tensor gets the same address
        return tensor

    kept: list[Tensor] = []
    before = model.precision
    model.train()
    model.precision = "fp32"
    try:
        with (
            pause_running_statistics(model),
            torch.autograd.graph.saved_tensors_hooks(record, lambda tensor: tensor),
        ):
            model(replica.read_inputs(np.arange(N_PROBED_IMAGES)))
    finally:
        model.precision = before
    state = COPIES_PER_WEIGHT * sum(weight.nbytes for weight in weights)
    bytes_per_image = sum(saved.values()) / N_PROBED_IMAGES
    return MemoryEstimate(state, bytes_per_image / 2 if precision == "bf16" else bytes_per_image)
