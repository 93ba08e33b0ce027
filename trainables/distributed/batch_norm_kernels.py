"""Kernels of batch norm over several ranks.

A step has five of them; two exchanges between ranks, of the statistics and of the sums of the
gradient, are left to the caller. `NativeKernels` are those of `torch.nn.SyncBatchNorm`, which exist
on GPUs only; `PortableKernels` compute the same with general operations.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
from torch import Tensor


class GradientSums(NamedTuple):
    """Sums over the values of a channel, on this rank.

    Args:
        grad: Sum of the gradient.
        grad_deviation: Sum of the gradient times the deviation from the mean.
        weight: Gradient of the weight.
        bias: Gradient of the bias.
    """

    grad: Tensor
    grad_deviation: Tensor
    weight: Tensor | None
    bias: Tensor | None


@dataclass
class RunningStatistics:
    """Running mean and variance, and the weight with which a step updates them."""

    mean: Tensor
    variance: Tensor
    weight: float


class ValueCounts:
    """Number of values per channel on each rank, known to the host.

    Args:
        per_rank: The numbers, in rank order.
        device: Device of the batch norm.
    """

    def __init__(self, per_rank: Sequence[int], device: torch.device) -> None:
        self.per_rank, self.total = tuple(per_rank), sum(per_rank)
        self.filled_ranks = [rank for rank, count in enumerate(per_rank) if count]
        self._device = device
        self._tensors: dict[torch.dtype, Tensor] = {}

    def to_tensor(self, dtype: torch.dtype) -> Tensor:
        """Return the numbers of the ranks that have values, on the device; uploaded once."""
        if dtype not in self._tensors:
            filled = [self.per_rank[rank] for rank in self.filled_ranks]
            self._tensors[dtype] = torch.tensor(filled, dtype=dtype).to(self._device)
        return self._tensors[dtype]

    def select_filled(self, stacked: Tensor) -> Tensor:
        """Return the rows of the ranks that have values."""
        if len(self.filled_ranks) == len(self.per_rank):
            return stacked
        return torch.stack([stacked[rank] for rank in self.filled_ranks])


class BatchNormKernels(Protocol):
    """Kernels of one way to compute batch norm over ranks."""

    def prepare(self, x: Tensor) -> Tensor:
        """Return values in an order of memory that the other kernels accept."""

    def compute_statistics(self, x: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        """Return the mean of each channel and a measure of its spread, in at least float32."""

    def combine_statistics(
        self,
        x: Tensor,
        means: Tensor,
        spreads: Tensor,
        counts: ValueCounts,
        running: RunningStatistics | None,
        eps: float,
    ) -> tuple[Tensor, Tensor]:
        """Return the mean and the inverse standard deviation over all ranks.

        `means` and `spreads` have one row per rank. The running statistics are updated.
        """

    def normalise(
        self,
        x: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        mean: Tensor,
        inverse: Tensor,
        eps: float,
    ) -> Tensor:
        """Return the normalised values, in the type of the input."""

    def sum_gradient(
        self,
        grad: Tensor,
        x: Tensor,
        mean: Tensor,
        inverse: Tensor,
        weight: Tensor | None,
        has_bias: bool,
    ) -> GradientSums:
        """Return this rank's sums of the gradient."""

    def compute_input_gradient(
        self,
        grad: Tensor,
        x: Tensor,
        mean: Tensor,
        inverse: Tensor,
        weight: Tensor | None,
        sums: GradientSums,
        counts: ValueCounts,
    ) -> Tensor:
        """Return the gradient of the input from sums over all ranks."""


class NativeKernels:
    """The kernels of `torch.nn.SyncBatchNorm`: one launch each, float32 sums for any input."""

    def prepare(self, x: Tensor) -> Tensor:
        """Return contiguous or channels-last values."""
        for memory_format, dims in ((torch.channels_last, 4), (torch.channels_last_3d, 5)):
            if x.dim() == dims and x.is_contiguous(memory_format=memory_format):
                return x
        return x.contiguous()

    def compute_statistics(self, x: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        """Return mean and inverse standard deviation."""
        mean, inverse = torch.batch_norm_stats(x, eps)
        return mean, inverse

    def combine_statistics(
        self,
        x: Tensor,
        means: Tensor,
        spreads: Tensor,
        counts: ValueCounts,
        running: RunningStatistics | None,
        eps: float,
    ) -> tuple[Tensor, Tensor]:
        """Return the mean and the inverse standard deviation over all ranks."""
        mean, inverse = torch.batch_norm_gather_stats_with_counts(
            x,
            counts.select_filled(means),
            counts.select_filled(spreads),
            None if running is None else running.mean,
            None if running is None else running.variance,
            0.0 if running is None else running.weight,
            eps,
            counts.to_tensor(means.dtype if running is None else running.mean.dtype),
        )
        return mean, inverse

    def normalise(
        self,
        x: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        mean: Tensor,
        inverse: Tensor,
        eps: float,
    ) -> Tensor:
        """Return the normalised values, in the type of the input."""
        out: Tensor = torch.batch_norm_elemt(x, weight, bias, mean, inverse, eps)
        return out

    def sum_gradient(
        self,
        grad: Tensor,
        x: Tensor,
        mean: Tensor,
        inverse: Tensor,
        weight: Tensor | None,
        has_bias: bool,
    ) -> GradientSums:
        """Return this rank's sums of the gradient."""
        return GradientSums(
            *torch.batch_norm_backward_reduce(
                grad,
                x,
                mean,
                inverse,
                weight,
                True,
                weight is not None,
                has_bias,
            )
        )

    def compute_input_gradient(
        self,
        grad: Tensor,
        x: Tensor,
        mean: Tensor,
        inverse: Tensor,
        weight: Tensor | None,
        sums: GradientSums,
        counts: ValueCounts,
    ) -> Tensor:
        """Return the gradient of the input from sums over all ranks."""
        gradient: Tensor = torch.batch_norm_backward_elemt(
            grad,
            x,
            mean,
            inverse,
            weight,
            sums.grad,
            sums.grad_deviation,
            counts.to_tensor(torch.int32),
        )
        return gradient


class PortableKernels:
    """General operations that compute the same on every device."""

    def prepare(self, x: Tensor) -> Tensor:
        """Return the values: every order is accepted."""
        return x

    def compute_statistics(self, x: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        """Return mean and biased variance."""
        values = x.to(torch.promote_types(x.dtype, torch.float32))
        variance, mean = torch.var_mean(values, dim=_reduction_axes(x), correction=0)
        return mean, variance

    def combine_statistics(
        self,
        x: Tensor,
        means: Tensor,
        spreads: Tensor,
        counts: ValueCounts,
        running: RunningStatistics | None,
        eps: float,
    ) -> tuple[Tensor, Tensor]:
        """Return the mean and the inverse standard deviation over all ranks."""
        shares = torch.tensor(counts.per_rank, dtype=means.dtype, device=means.device)[:, None]
        mean = (means * shares).sum(dim=0) / counts.total
        deviations = (spreads + (means - mean).square()) * shares
        variance = deviations.sum(dim=0) / counts.total
        if running is not None:
            unbiased = variance * (counts.total / (counts.total - 1))
            running.mean.lerp_(mean.to(running.mean), running.weight)
            running.variance.lerp_(unbiased.to(running.variance), running.weight)
        return mean, torch.rsqrt(variance + eps)

    def normalise(
        self,
        x: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        mean: Tensor,
        inverse: Tensor,
        eps: float,
    ) -> Tensor:
        """Return the normalised values, in the type of the input."""
        out = (x - _broadcast_channels(mean, x)).mul_(_broadcast_channels(inverse, x))
        if weight is not None:
            out = out.mul_(_broadcast_channels(weight, x))
        if bias is not None:
            out = out.add_(_broadcast_channels(bias, x))
        return out.to(x.dtype)

    def sum_gradient(
        self,
        grad: Tensor,
        x: Tensor,
        mean: Tensor,
        inverse: Tensor,
        weight: Tensor | None,
        has_bias: bool,
    ) -> GradientSums:
        """Return this rank's sums of the gradient."""
        axes = _reduction_axes(x)
        wide = grad.to(mean.dtype)
        of_grad = wide.sum(dim=axes)
        of_deviation = (wide * (x - _broadcast_channels(mean, x))).sum(dim=axes)
        # Not of_grad itself, which becomes the sum over ranks.
        return GradientSums(of_grad, of_deviation, of_deviation * inverse, of_grad.clone())

    def compute_input_gradient(
        self,
        grad: Tensor,
        x: Tensor,
        mean: Tensor,
        inverse: Tensor,
        weight: Tensor | None,
        sums: GradientSums,
        counts: ValueCounts,
    ) -> Tensor:
        """Return the gradient of the input from sums over all ranks."""
        slope = sums.grad_deviation / counts.total * inverse.square()
        factor = inverse if weight is None else inverse * weight
        out = (x - _broadcast_channels(mean, x)).mul_(_broadcast_channels(-slope, x))
        out += grad
        out -= _broadcast_channels(sums.grad / counts.total, x)
        out *= _broadcast_channels(factor, x)
        return out.to(grad.dtype)


NATIVE_KERNELS: BatchNormKernels = NativeKernels()
PORTABLE_KERNELS: BatchNormKernels = PortableKernels()


def select_kernels(device: torch.device) -> BatchNormKernels:
    """Return the kernels for a device: native ones where `torch.nn.SyncBatchNorm` has them."""
    native_types = {"cuda", "hpu", "xpu", torch._C._get_privateuse1_backend_name()}
    return NATIVE_KERNELS if device.type in native_types else PORTABLE_KERNELS


def _reduction_axes(x: Tensor) -> list[int]:
    """Return all axes but that of the channels."""
    return [axis for axis in range(x.dim()) if axis != 1]


def _broadcast_channels(values: Tensor, x: Tensor) -> Tensor:
    return values.view(1, -1, *([1] * (x.dim() - 2)))
