"""Stand-ins on CPUs for the kernels of `torch.nn.SyncBatchNorm`, which torch has for GPUs only.

They follow the formulas of torch's CUDA kernels (`aten/src/ATen/native/cuda/Normalization.cuh`).
With them the code for GPUs runs on CPU tensors between gloo ranks, and on the pretend device.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

_REGISTRATIONS: list[Any] = []  # a registration ends with its object


def register_native_batch_norm() -> None:
    """Register the stand-ins, once in a process."""
    if _REGISTRATIONS:
        return
    library: Any = torch.library.Library("aten", "IMPL")  # type: ignore[no-untyped-call]
    for kernel in (
        batch_norm_stats,
        batch_norm_gather_stats_with_counts,
        batch_norm_elemt,
        batch_norm_backward_reduce,
        batch_norm_backward_elemt,
    ):
        library.impl(kernel.__name__, kernel, "CPU")
    _REGISTRATIONS.append(library)


def batch_norm_stats(x: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Return mean and inverse standard deviation per channel, in at least float32."""
    wide = _widen(x)
    variance, mean = torch.var_mean(wide, dim=_axes(x), correction=0)
    return mean, torch.rsqrt(variance + eps)


def batch_norm_gather_stats_with_counts(
    x: Tensor,
    means: Tensor,
    inverses: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    momentum: float,
    eps: float,
    counts: Tensor,
) -> tuple[Tensor, Tensor]:
    """Combine the statistics of the ranks one after the other, as the CUDA kernel does."""
    mean, deviations = torch.zeros_like(means[0]), torch.zeros_like(means[0])
    n = torch.zeros((), dtype=means.dtype)
    for other, inverse, count in zip(means, inverses, counts.to(means.dtype), strict=True):
        factor = 1 / (n + count)
        deviations = deviations + (inverse.reciprocal().square() - eps) * count
        deviations = deviations + (mean - other).square() * n * count * factor
        mean = n * factor * mean + count * factor * other
        n = n + count
    if running_mean is not None:
        running_mean.mul_(1 - momentum).add_(momentum * mean)
    if running_var is not None:
        running_var.mul_(1 - momentum).add_(momentum * deviations / (n - 1))
    return mean, torch.rsqrt(deviations / n + eps)


def batch_norm_elemt(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    mean: Tensor,
    inverse: Tensor,
    eps: float,
) -> Tensor:
    """Return the normalised values in the type of the input."""
    _check_dense(x)
    out = (_widen(x) - _per_channel(mean, x)) * _per_channel(inverse, x)
    out = out if weight is None else out * _per_channel(weight, x)
    out = out if bias is None else out + _per_channel(bias, x)
    return out.to(x.dtype)


def batch_norm_backward_reduce(
    grad: Tensor,
    x: Tensor,
    mean: Tensor,
    inverse: Tensor,
    weight: Tensor | None,
    input_g: bool,
    weight_g: bool,
    bias_g: bool,
) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
    """Return the sums of the gradient and of its product with the deviation, and of weights."""
    _check_dense(grad)
    of_grad = _widen(grad).sum(dim=_axes(x))
    of_deviation = (_widen(grad) * (_widen(x) - _per_channel(mean, x))).sum(dim=_axes(x))
    return (
        of_grad,
        of_deviation,
        of_deviation * inverse if weight_g else of_grad.new_empty(0),
        of_grad.clone() if bias_g else of_grad.new_empty(0),
    )


def batch_norm_backward_elemt(
    grad: Tensor,
    x: Tensor,
    mean: Tensor,
    inverse: Tensor,
    weight: Tensor | None,
    sum_dy: Tensor,
    sum_dy_xmu: Tensor,
    count: Tensor,
) -> Tensor:
    """Return the gradient of the input."""
    assert count.dtype == torch.int32
    total = count.sum()
    of_input = _widen(grad) - _per_channel(sum_dy / total, x)
    slope = sum_dy_xmu / total * inverse.square()
    of_input = of_input - (_widen(x) - _per_channel(mean, x)) * _per_channel(slope, x)
    factor = inverse if weight is None else inverse * weight
    return (of_input * _per_channel(factor, x)).to(grad.dtype)


def _check_dense(x: Tensor) -> None:
    """Fail where the CUDA kernels would read the memory in a wrong order."""
    last = x.dim() == 4 and x.is_contiguous(memory_format=torch.channels_last)
    assert last or x.is_contiguous()


def _widen(x: Tensor) -> Tensor:
    return x.to(torch.promote_types(x.dtype, torch.float32))


def _axes(x: Tensor) -> list[int]:
    return [axis for axis in range(x.dim()) if axis != 1]


def _per_channel(values: Tensor, x: Tensor) -> Tensor:
    return values.view(1, -1, *([1] * (x.dim() - 2)))
