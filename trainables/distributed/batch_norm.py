"""Batch norm over the batches of all ranks, on CPUs and GPUs.

One exchange combines the mean and the spread of each rank. The statistics are therefore those of
the global batch, do not lose digits to large means, and allow ranks without images. The number of
images of each rank is known to the host, so a step does not wait for the device;
`torch.nn.SyncBatchNorm` reads it back from the device in every layer.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from trainables.distributed.batch_norm_kernels import (
    BatchNormKernels,
    GradientSums,
    RunningStatistics,
    ValueCounts,
    select_kernels,
)
from trainables.distributed.world import World, rank_slice

_BATCH_NORM_TYPES = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)


class BatchShares:
    """Number of images of each rank in the present batch, for all batch norms of a model.

    Without a number, each batch norm exchanges it and waits for it.

    Args:
        world: The ranks.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        self._images: tuple[int, ...] | None = None
        self._counts: dict[tuple[tuple[int, ...], torch.device], ValueCounts] = {}

    def set_batch_size(self, n_images: int) -> None:
        """Set the size of the global batch that the ranks divide by `rank_slice`.

        Raises:
            ValueError: If a rank would have no image, except on CPUs: some kernels of GPUs refuse
                empty inputs.
        """
        if n_images < self._world.size and self._world.device.type != "cpu":
            raise ValueError(
                f"a batch of {n_images} cannot be divided among {self._world.size} ranks on GPUs, "
                "each of which needs an image; increase batch_size or reduce ranks_per_trial"
            )
        slices = (rank_slice(n_images, rank, self._world.size) for rank in range(self._world.size))
        self.set_images_per_rank([part.stop - part.start for part in slices])

    def set_images_per_rank(self, images: Sequence[int]) -> None:
        """Set the number of images of each rank, for batches that are divided otherwise."""
        self._images = tuple(images)

    def count_values(self, x: Tensor, *, known: bool = True) -> ValueCounts:
        """Return the number of values per channel on each rank.

        Args:
            x: This rank's input of a batch norm.
            known: Whether the input belongs to the present batch.

        Raises:
            ValueError: If this rank has another number of images than was set.
        """
        images = self._images if known else None
        if images is None:
            own = torch.tensor([len(x)], device=x.device)
            images = tuple(int(n) for n in self._world.all_gather_many([own])[0][:, 0].tolist())
        if images[self._world.rank] != len(x):
            raise ValueError(
                f"rank {self._world.rank} has {images[self._world.rank]} images of the batch, but "
                f"a batch norm received {len(x)}; call `BatchShares.set_images_per_rank` first"
            )
        values_per_image = x.shape[2:].numel()
        key = (tuple(n * values_per_image for n in images), x.device)
        if key not in self._counts:
            self._counts[key] = ValueCounts(*key)
        return self._counts[key]


def synchronise_batch_norm(
    module: nn.Module, world: World, shares: BatchShares | None = None
) -> nn.Module:
    """Return the module with synchronised batch norms; parameters and their names stay."""
    if world.size == 1:
        return module
    shares = shares or BatchShares(world)
    if isinstance(module, _BATCH_NORM_TYPES):
        return SynchronisedBatchNorm(module, world, shares)
    for name, child in list(module.named_children()):
        setattr(module, name, synchronise_batch_norm(child, world, shares))
    return module


class SynchronisedBatchNorm(nn.BatchNorm2d):
    """Replacement for a batch norm of any dimension that shares its parameters and buffers.

    The batch norms of timm contain their dropout and activation; those are kept.

    Args:
        norm: The batch norm to replace.
        world: The ranks.
        shares: Number of images of each rank.
    """

    def __init__(self, norm: nn.Module, world: World, shares: BatchShares) -> None:
        old = cast(nn.BatchNorm2d, norm)
        super().__init__(
            old.num_features,
            eps=old.eps,
            momentum=old.momentum,
            affine=old.affine,
            track_running_stats=old.track_running_stats,
            device="meta",
        )
        self._parameters.update(old._parameters)
        self._buffers.update(old._buffers)
        for name, child in old.named_children():
            self.add_module(name, child)
        self.world, self.shares = world, shares
        # Counted on the host and added to the buffer when it is saved: one kernel less per step.
        self._n_unsaved_batches = 0
        self._n_saved_batches: int | None = None
        self.train(old.training)

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002
        """Normalise over the samples of all ranks in training, else by running statistics."""
        if self.training or self.running_mean is None:
            counts = self.shares.count_values(input, known=self.training)
            exchange = _Exchange(self.world, select_kernels(input.device), counts, self.eps)
            out = _BatchNormFunction.apply(  # type: ignore[no-untyped-call]
                input, self.weight, self.bias, self._next_running_statistics(), exchange
            )
        else:
            out = F.batch_norm(
                input, self.running_mean, self.running_var, self.weight, self.bias, eps=self.eps
            )
        for child in self.children():
            out = child(out)
        result: Tensor = out
        return result

    def _next_running_statistics(self) -> RunningStatistics | None:
        """Count a batch and return the statistics that it updates; None if there are none."""
        if not (self.training and self.track_running_stats) or self.momentum == 0:
            return None
        assert self.running_mean is not None
        assert self.running_var is not None
        self._n_unsaved_batches += 1
        weight = self.momentum if self.momentum is not None else 1 / self._count_batches()
        return RunningStatistics(self.running_mean, self.running_var, weight)

    def _count_batches(self) -> int:
        if self._n_saved_batches is None:
            assert self.num_batches_tracked is not None
            self._n_saved_batches = int(self.num_batches_tracked)
        return self._n_saved_batches + self._n_unsaved_batches

    def _save_to_state_dict(self, *args: Any) -> None:
        if self.num_batches_tracked is not None and self._n_unsaved_batches:
            self.num_batches_tracked.add_(self._n_unsaved_batches)
            self._n_unsaved_batches, self._n_saved_batches = 0, None
        super()._save_to_state_dict(*args)

    def _load_from_state_dict(self, *args: Any) -> None:
        self._n_unsaved_batches, self._n_saved_batches = 0, None
        super()._load_from_state_dict(*args)


class _Exchange(NamedTuple):
    """What one call of a batch norm needs besides tensors."""

    world: World
    kernels: BatchNormKernels
    counts: ValueCounts
    eps: float


class _BatchNormFunction(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        running: RunningStatistics | None,
        exchange: _Exchange,
    ) -> Tensor:
        world, kernels, counts, eps = exchange
        if counts.total < 2:
            raise ValueError("batch norm needs more than one value per channel in training")
        x = kernels.prepare(x)
        own = kernels.compute_statistics(x, eps) if x.numel() else _make_empty_statistics(x)
        means, spreads = world.all_gather_many(own)
        mean, inverse = kernels.combine_statistics(x, means, spreads, counts, running, eps)
        # The input is kept by the layer before in any case; normalised values would be in float32.
        ctx.save_for_backward(x, weight, mean, inverse)
        ctx.exchange, ctx.has_bias = exchange, bias is not None
        if not x.numel():
            return torch.empty_like(x)
        return kernels.normalise(x, weight, bias, mean, inverse, eps)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, mean, inverse = ctx.saved_tensors
        world, kernels, counts, _ = ctx.exchange
        grad = kernels.prepare(grads[0])
        if x.numel():
            sums = kernels.sum_gradient(grad, x, mean, inverse, weight, ctx.has_bias)
        else:
            sums = GradientSums(*(torch.zeros_like(mean) for _ in range(4)))
        # Each rank keeps its own part of the weight gradients: encoder gradients are summed later.
        world.all_reduce_sum_many_([sums.grad, sums.grad_deviation])
        of_x = grad
        if x.numel():
            of_x = kernels.compute_input_gradient(grad, x, mean, inverse, weight, sums, counts)
        return (
            of_x,
            sums.weight if ctx.needs_input_grad[1] else None,
            sums.bias if ctx.needs_input_grad[2] else None,
            None,
            None,
        )


def _make_empty_statistics(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return statistics of no values, which the other ranks ignore."""
    dtype = torch.promote_types(x.dtype, torch.float32)
    zeros = x.new_zeros(x.shape[1], dtype=dtype)
    return zeros, zeros.clone()
