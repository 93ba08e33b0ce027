"""Batch norm over the batches of all ranks, on CPUs and GPUs.

One exchange combines the mean, the sum of squared deviations and the count of each rank. The
statistics are therefore those of the global batch, do not lose digits to large means, and allow
ranks without samples.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from trainables.distributed.world import World

_BATCH_NORM_TYPES = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)


def synchronise_batch_norm(module: nn.Module, world: World) -> nn.Module:
    """Return the module with synchronised batch norms; parameters and their names stay."""
    if world.size == 1:
        return module
    if isinstance(module, _BATCH_NORM_TYPES):
        return SynchronisedBatchNorm(module, world)
    for name, child in list(module.named_children()):
        setattr(module, name, synchronise_batch_norm(child, world))
    return module


class SynchronisedBatchNorm(nn.BatchNorm2d):
    """Replacement for a batch norm of any dimension that shares its parameters and buffers.

    The batch norms of timm contain their dropout and activation; those are kept.
    """

    def __init__(self, norm: nn.Module, world: World) -> None:
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
        self.world = world
        self.train(old.training)

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002
        """Normalise over the samples of all ranks in training, else by running statistics."""
        if self.training or self.running_mean is None:
            out, mean, variance, count = _BatchNormFunction.apply(  # type: ignore[no-untyped-call]
                input, self.weight, self.bias, self.eps, self.world
            )
            if self.training and self.track_running_stats:
                self._update_running_stats(mean, variance, float(count))
        else:
            out = F.batch_norm(
                input, self.running_mean, self.running_var, self.weight, self.bias, eps=self.eps
            )
        for child in self.children():
            out = child(out)
        result: Tensor = out
        return result

    @torch.no_grad()
    def _update_running_stats(self, mean: Tensor, variance: Tensor, count: float) -> None:
        assert self.num_batches_tracked is not None
        assert self.running_mean is not None
        assert self.running_var is not None
        self.num_batches_tracked.add_(1)
        weight = self.momentum if self.momentum is not None else 1 / int(self.num_batches_tracked)
        unbiased = variance * (count / (count - 1))
        self.running_mean.lerp_(mean.to(self.running_mean), weight)
        self.running_var.lerp_(unbiased.to(self.running_var), weight)


class _BatchNormFunction(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float, world: World
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        mean, variance, count = _global_statistics(x, world)
        if float(count) < 2:
            raise ValueError("batch norm needs more than one value per channel in training")
        inverse = torch.rsqrt(variance + eps)
        normal = (x - _broadcast_channels(mean, x)) * _broadcast_channels(inverse, x)
        ctx.save_for_backward(normal, inverse, weight)
        ctx.count, ctx.world = float(count), world
        out = normal if weight is None else normal * _broadcast_channels(weight, x)
        out = out if bias is None else out + _broadcast_channels(bias, x)
        ctx.mark_non_differentiable(mean, variance, count)
        return out.to(x.dtype), mean, variance, count

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        normal, inverse, weight = ctx.saved_tensors
        grad = grads[0].to(normal.dtype)
        axes = _reduction_axes(grad)
        # Each rank keeps its own part of the weight gradients: encoder gradients are summed later.
        own_bias, own_weight = grad.sum(dim=axes), (grad * normal).sum(dim=axes)
        sums = torch.stack([own_bias, own_weight])
        ctx.world.all_reduce_sum_(sums)
        sums /= ctx.count
        factor = inverse if weight is None else inverse * weight
        grad_x = (
            grad - _broadcast_channels(sums[0], grad) - normal * _broadcast_channels(sums[1], grad)
        )
        grad_x *= _broadcast_channels(factor, grad)
        return (
            grad_x.to(grads[0].dtype),
            own_weight if ctx.needs_input_grad[1] else None,
            own_bias if ctx.needs_input_grad[2] else None,
            None,
            None,
        )


def _global_statistics(x: Tensor, world: World) -> tuple[Tensor, Tensor, Tensor]:
    """Return mean and biased variance per channel and the number of values, over all ranks."""
    dtype = torch.promote_types(x.dtype, torch.float32)
    count = x.numel() // x.shape[1] if x.shape[1] else 0
    if count:
        variance, mean = torch.var_mean(x.to(dtype), dim=_reduction_axes(x), correction=0)
    else:
        variance = mean = x.new_zeros(x.shape[1], dtype=dtype)
    number = mean.new_full((1, len(mean)), float(count))
    parts = world.all_gather(
        torch.stack([mean, variance * count, number[0]])[None], world.size
    )  # (ranks, 3, channels)
    means, deviations, counts = parts.unbind(dim=1)
    total = counts.sum(dim=0)
    mean = (means * counts).sum(dim=0) / total
    deviations = deviations + counts * (means - mean).square()
    return mean, deviations.sum(dim=0) / total, total[0]


def _reduction_axes(x: Tensor) -> list[int]:
    """Return all axes but that of the channels."""
    return [axis for axis in range(x.dim()) if axis != 1]


def _broadcast_channels(values: Tensor, x: Tensor) -> Tensor:
    return values.view(1, -1, *([1] * (x.dim() - 2)))
