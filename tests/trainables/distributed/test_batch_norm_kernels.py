"""Kernels of batch norm over several ranks: both kinds compute the same."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from tests.support.native_batch_norm import register_native_batch_norm
from tests.support.pretend_device import count_device_work, register_pretend_device
from trainables.distributed.batch_norm_kernels import (
    NATIVE_KERNELS,
    PORTABLE_KERNELS,
    BatchNormKernels,
    RunningStatistics,
    ValueCounts,
    select_kernels,
)

CPU, DEVICE = torch.device("cpu"), register_pretend_device()
EPS, N_CHANNELS = 1e-5, 5


@pytest.fixture(autouse=True)
def native_kernels() -> None:
    register_native_batch_norm()


def make_inputs(layout: str, dtype: torch.dtype) -> tuple[list[Tensor], list[Tensor]]:
    """Return inputs and output gradients of three ranks, of which the last has no values."""
    generator = torch.Generator().manual_seed(2)

    def make(n: int) -> Tensor:
        shape = (n, N_CHANNELS) if layout == "vectors" else (n, N_CHANNELS, 3, 4)
        x = (torch.randn(shape, generator=generator) + 2).to(dtype)
        if layout == "channels last":
            return x.contiguous(memory_format=torch.channels_last)
        return x.transpose(2, 3) if layout == "transposed" else x

    return [make(n) for n in (6, 4, 0)], [make(n) for n in (6, 4, 0)]


def compute_all(
    kernels: BatchNormKernels, layout: str, dtype: torch.dtype, affine: bool
) -> list[Tensor]:
    """Return what all ranks compute in a step."""
    inputs, gradients = (
        [kernels.prepare(x) for x in tensors] for tensors in make_inputs(layout, dtype)
    )
    wide = torch.promote_types(dtype, torch.float32)
    weight = torch.linspace(0.5, 2, N_CHANNELS, dtype=wide) if affine else None
    bias = torch.linspace(-1, 1, N_CHANNELS, dtype=wide) if affine else None
    counts = ValueCounts([x.numel() // N_CHANNELS for x in inputs], CPU)
    running = RunningStatistics(
        torch.ones(N_CHANNELS, dtype=wide), torch.full((N_CHANNELS,), 3.0, dtype=wide), 0.1
    )
    empty = torch.zeros(N_CHANNELS, dtype=wide)
    parts = [kernels.compute_statistics(x, EPS) if len(x) else (empty, empty) for x in inputs]
    means, spreads = (torch.stack(column) for column in zip(*parts, strict=True))
    mean, inverse = kernels.combine_statistics(inputs[0], means, spreads, counts, running, EPS)
    found = [mean, inverse, running.mean, running.variance]
    filled = list(zip(inputs, gradients, strict=True))[:2]
    found += [kernels.normalise(x, weight, bias, mean, inverse, EPS) for x, _ in filled]
    sums = [kernels.sum_gradient(g, x, mean, inverse, weight, affine) for x, g in filled]
    if affine:
        found += [t for s in sums for t in (s.weight, s.bias) if t is not None]
    total = sums[0]._replace(
        grad=sums[0].grad + sums[1].grad,
        grad_deviation=sums[0].grad_deviation + sums[1].grad_deviation,
    )
    return found + [
        kernels.compute_input_gradient(g, x, mean, inverse, weight, total, counts)
        for x, g in filled
    ]


@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("layout", ["images", "channels last", "transposed", "vectors"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_both_kinds_compute_the_same(layout: str, dtype: torch.dtype, affine: bool) -> None:
    native = compute_all(NATIVE_KERNELS, layout, dtype, affine)
    portable = compute_all(PORTABLE_KERNELS, layout, dtype, affine)
    assert len(native) == (12 if affine else 8)
    for one, other in zip(native, portable, strict=True):
        assert one.dtype == other.dtype
        tolerance = {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 2**-7}[one.dtype]
        torch.testing.assert_close(one, other, rtol=tolerance, atol=tolerance)
    assert native[4].dtype == native[-1].dtype == dtype


def test_the_statistics_are_those_of_all_values() -> None:
    inputs, _ = make_inputs("images", torch.float64)
    mean, inverse, running_mean, running_variance = compute_all(
        PORTABLE_KERNELS, "images", torch.float64, affine=True
    )[:4]
    values = torch.cat(inputs).transpose(0, 1).flatten(1)
    torch.testing.assert_close(mean, values.mean(dim=1))
    torch.testing.assert_close(inverse, (values.var(dim=1, correction=0) + EPS).rsqrt())
    torch.testing.assert_close(running_mean, 0.9 + 0.1 * values.mean(dim=1))
    torch.testing.assert_close(running_variance, 2.7 + 0.1 * values.var(dim=1))


def test_devices_with_native_kernels_use_them() -> None:
    assert select_kernels(CPU) is PORTABLE_KERNELS
    assert select_kernels(torch.device("mps")) is PORTABLE_KERNELS
    for device in (torch.device("cuda:1"), DEVICE):
        assert select_kernels(device) is NATIVE_KERNELS


def test_counts_are_uploaded_once() -> None:
    with count_device_work() as counters:
        counts = ValueCounts([4, 4, 0], DEVICE)
        for _ in range(3):
            assert counts.to_tensor(torch.int32).tolist() == [4, 4]
    assert sum(counters.uploads.values()) == 1
    assert counts.total == 8


def test_rows_of_ranks_without_values_are_left_out() -> None:
    rows = torch.arange(3.0)[:, None]
    assert ValueCounts([0, 2, 2], CPU).select_filled(rows).tolist() == [[1.0], [2.0]]
    assert ValueCounts([1, 2, 2], CPU).select_filled(rows) is rows
