"""Batch norm that sees the batches of all ranks, on CPUs and GPUs.

Each rank's mean, sum of squared deviations and count are combined in one exchange, so statistics
are those of the global batch and do not lose digits to large means; a rank may have no sample.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from trainables.world import World

_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)


def synchronise_batch_norm(module: nn.Module, world: World) -> nn.Module:
    """The module with every batch norm seeing the global batch; parameters and names stay."""
    if world.size == 1:
        return module
    if isinstance(module, _NORMS):
        return SynchronisedBatchNorm(module, world)
    for name, child in list(module.named_children()):
        setattr(module, name, synchronise_batch_norm(child, world))
    return module


class SynchronisedBatchNorm(nn.BatchNorm2d):
    """Stands in for a batch norm of any dimension and shares its parameters and buffers.

    timm's batch norms carry their dropout and activation with them; those are kept.
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
        """Normalised over the samples of all ranks in training, by running statistics else."""
        if self.training or self.running_mean is None:
            out, mean, variance, count = _Normalise.apply(  # type: ignore[no-untyped-call]
                input, self.weight, self.bias, self.eps, self.world
            )
            if self.training and self.track_running_stats:
                self._remember(mean, variance, float(count))
        else:
            out = F.batch_norm(
                input, self.running_mean, self.running_var, self.weight, self.bias, eps=self.eps
            )
        for child in self.children():
            out = child(out)
        result: Tensor = out
        return result

    @torch.no_grad()
    def _remember(self, mean: Tensor, variance: Tensor, count: float) -> None:
        assert self.num_batches_tracked is not None
        assert self.running_mean is not None
        assert self.running_var is not None
        self.num_batches_tracked.add_(1)
        weight = self.momentum if self.momentum is not None else 1 / int(self.num_batches_tracked)
        unbiased = variance * (count / (count - 1))
        self.running_mean.lerp_(mean.to(self.running_mean), weight)
        self.running_var.lerp_(unbiased.to(self.running_var), weight)


class _Normalise(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float, world: World
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        mean, variance, count = _statistics(x, world)
        if float(count) < 2:
            raise ValueError("batch norm needs more than one value per channel in training.")
        inverse = torch.rsqrt(variance + eps)
        normal = (x - _wide(mean, x)) * _wide(inverse, x)
        ctx.save_for_backward(normal, inverse, weight)
        ctx.count, ctx.world = float(count), world
        out = normal if weight is None else normal * _wide(weight, x)
        out = out if bias is None else out + _wide(bias, x)
        ctx.mark_non_differentiable(mean, variance, count)
        return out.to(x.dtype), mean, variance, count

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        normal, inverse, weight = ctx.saved_tensors
        grad = grads[0].to(normal.dtype)
        axes = _axes(grad)
        # Of the weights each rank keeps its own part: encoder gradients are summed afterwards.
        own_bias, own_weight = grad.sum(dim=axes), (grad * normal).sum(dim=axes)
        sums = torch.stack([own_bias, own_weight])
        ctx.world.sum_(sums)
        sums /= ctx.count
        factor = inverse if weight is None else inverse * weight
        grad_x = grad - _wide(sums[0], grad) - normal * _wide(sums[1], grad)
        grad_x *= _wide(factor, grad)
        return (
            grad_x.to(grads[0].dtype),
            own_weight if ctx.needs_input_grad[1] else None,
            own_bias if ctx.needs_input_grad[2] else None,
            None,
            None,
        )


def _statistics(x: Tensor, world: World) -> tuple[Tensor, Tensor, Tensor]:
    """Mean and biased variance per channel, and the number of values, over all ranks."""
    dtype = torch.promote_types(x.dtype, torch.float32)
    count = x.numel() // x.shape[1] if x.shape[1] else 0
    if count:
        variance, mean = torch.var_mean(x.to(dtype), dim=_axes(x), correction=0)
    else:
        variance = mean = x.new_zeros(x.shape[1], dtype=dtype)
    number = mean.new_full((1, len(mean)), float(count))
    parts = world.gather(
        torch.stack([mean, variance * count, number[0]])[None], world.size
    )  # (ranks, 3, channels)
    means, deviations, counts = parts.unbind(dim=1)
    total = counts.sum(dim=0)
    mean = (means * counts).sum(dim=0) / total
    deviations = deviations + counts * (means - mean).square()
    return mean, deviations.sum(dim=0) / total, total[0]


def _axes(x: Tensor) -> list[int]:
    """All but the channels."""
    return [axis for axis in range(x.dim()) if axis != 1]


def _wide(values: Tensor, x: Tensor) -> Tensor:
    return values.view(1, -1, *([1] * (x.dim() - 2)))
