"""Micro-batches: the exact gradient of a batch whose activations do not fit into memory.

A step has two passes. The first embeds all micro-batches without a graph. The loss of the whole
batch then gives the gradient of every embedding. The second pass embeds each micro-batch again,
with a graph, and continues the gradient into the network (gradient caching, Gao et al., 2021,
arXiv:2101.06983). Random layers draw the same numbers in both passes.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, cast

import torch
from torch import Tensor, nn

from trainables.config import TrainingSettings
from trainables.models.backbone import BATCH_NORM_TYPES

EmbedFunction = Callable[[Tensor], Tensor]
ContextFactory = Callable[[], contextlib.AbstractContextManager[None]]


class MemoryPlan:
    """How the activations of a step are kept within the memory of the device.

    Args:
        model: The network; a `backbone` of it may support activation checkpointing.
        settings: `micro_batch`, `per_micro_batch_norm` and `batch_size` are used.
        n_ranks: Number of ranks that share a batch.

    Raises:
        ValueError: If micro-batches are requested and would change the training.
    """

    def __init__(self, model: nn.Module, settings: TrainingSettings, n_ranks: int = 1) -> None:
        self._model = model
        self._has_live_norm = has_live_batch_norm(model)
        # Batch norms of ranks exchange their statistics, so ranks must have equally many parts.
        is_allowed = settings.per_micro_batch_norm and n_ranks == 1
        self._may_split = is_allowed or not self._has_live_norm
        self.micro_batch: int | None = None
        """Images of a micro-batch; None for the whole share of a rank."""
        self._share = -(-settings.batch_size // n_ranks)
        self.checkpoints_activations = False
        if settings.micro_batch != "auto":
            if settings.micro_batch < self._share and not self._may_split:
                raise ValueError(
                    "micro_batch changes the training of a network with batch norm, whose "
                    f"statistics would be those of {settings.micro_batch} images; set "
                    "bn_freeze to stats or all, or per_micro_batch_norm: true to allow it (with "
                    "one rank per trial)"
                )
            if self._may_split:
                self.micro_batch = settings.micro_batch

    def split(self, inputs: Tensor) -> tuple[Tensor, ...]:
        """Return the micro-batches of a rank's inputs."""
        self._share = len(inputs)
        if self.micro_batch is None or len(inputs) <= self.micro_batch:
            return (inputs,)
        return torch.split(inputs, self.micro_batch)

    def reduce(self) -> str:
        """Reduce the memory of a step; return what was done, empty if nothing is left to do."""
        size = min(self.micro_batch or self._share, self._share)
        if size <= 1 or not self._may_split:
            return self.checkpoint_activations()
        self.micro_batch = -(-size // 2)
        return f"micro-batches of {self.micro_batch} images"

    def checkpoint_activations(self) -> str:
        """Keep the activations of a few layers only; return what was done, empty if impossible."""
        if self.checkpoints_activations or not enable_activation_checkpoints(self._model):
            return ""
        self.checkpoints_activations = True
        return "activation checkpointing"

    def running_statistics(self) -> contextlib.AbstractContextManager[None]:
        """Return the context of a backward pass.

        Activation checkpointing repeats parts of the forward pass there, and the repetition must
        not update the statistics of batch norms a second time.
        """
        if self.checkpoints_activations and self._has_live_norm:
            return pause_running_statistics(self._model)
        return contextlib.nullcontext()


def embed_without_graph(
    embed: EmbedFunction, chunks: tuple[Tensor, ...], model: nn.Module
) -> tuple[Tensor, list[RandomState]]:
    """Embed micro-batches without a graph.

    Returns:
        All embeddings, and the state of the random generators before each micro-batch.
    """
    pieces, states = [], []
    with torch.no_grad(), pause_running_statistics(model):
        for chunk in chunks:
            states.append(RandomState(chunk.device))
            pieces.append(embed(chunk))
    return torch.cat(pieces), states


def backpropagate_chunks(
    embed: EmbedFunction,
    chunks: tuple[Tensor, ...],
    states: list[RandomState],
    gradient: Tensor,
    accumulate: ContextFactory = contextlib.nullcontext,
    during_backward: ContextFactory = contextlib.nullcontext,
) -> None:
    """Embed micro-batches with a graph and add the gradients to those of the parameters.

    Args:
        embed: Function of a micro-batch.
        chunks: The micro-batches.
        states: States of the random generators that `embed_without_graph` returned.
        gradient: Gradient of all embeddings.
        accumulate: Returns the context of all backward passes but the last.
        during_backward: Returns the context of each backward pass.
    """
    parts = torch.split(gradient, [len(chunk) for chunk in chunks])
    after = RandomState(gradient.device)
    for i, (chunk, state, part) in enumerate(zip(chunks, states, parts, strict=True)):
        state.restore()
        embedded = embed(chunk)
        is_last = i == len(chunks) - 1
        with contextlib.nullcontext() if is_last else accumulate(), during_backward():
            embedded.backward(part)  # type: ignore[no-untyped-call]
    after.restore()


class RandomState:
    """State of the global random generators of the CPU and of a device."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._cpu = torch.get_rng_state()
        self._on_device = None
        if device.type == "cuda":
            self._on_device = torch.cuda.get_rng_state(device)

    def restore(self) -> None:
        """Set the generators to this state."""
        torch.set_rng_state(self._cpu)
        if self._on_device is not None:
            torch.cuda.set_rng_state(self._on_device, self._device)


def has_live_batch_norm(model: nn.Module) -> bool:
    """Whether a batch norm of the network computes the statistics of each batch in training."""
    was_training = model.training
    model.train()
    live = any(m.training for m in model.modules() if isinstance(m, BATCH_NORM_TYPES))
    model.train(was_training)
    return live


def enable_activation_checkpoints(model: nn.Module) -> bool:
    """Enable timm's activation checkpointing; return whether the backbone supports it."""
    network = getattr(getattr(model, "backbone", None), "model", None)
    if not hasattr(network, "set_grad_checkpointing"):
        return False
    try:
        cast(Any, network).set_grad_checkpointing(True)
    except AssertionError:  # how timm says that a model does not support it
        return False
    return True


@contextlib.contextmanager
def pause_running_statistics(model: nn.Module) -> Iterator[None]:
    """Leave the running statistics of batch norms unchanged inside the context."""
    norms = [cast(Any, m) for m in model.modules() if isinstance(m, BATCH_NORM_TYPES)]
    live = [norm for norm in norms if norm.training and norm.track_running_stats]
    momenta = [norm.momentum for norm in live]
    counts = [norm.num_batches_tracked for norm in live]
    try:
        for norm in live:
            # Not `track_running_stats`: a repeated forward pass must save the same tensors.
            norm.momentum, norm.num_batches_tracked = 0.0, None
        yield
    finally:
        for norm, momentum, count in zip(live, momenta, counts, strict=True):
            norm.momentum, norm.num_batches_tracked = momentum, count
