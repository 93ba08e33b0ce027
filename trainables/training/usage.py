"""Resource usage of a trial: memory of its process and node, memory and load of its GPU."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Mapping

import psutil
import torch

from trainables.distributed.world import World

GPU_SAMPLES_PER_EPOCH = 4
"""Number of samples of the GPU utilisation per epoch."""

_RANK_REDUCTIONS: Mapping[str, Callable[[list[float]], float]] = {
    "memory_mib": max,
    "node_memory_percent": max,
    "gpu_memory_mib": max,
    "gpu_use_percent": lambda values: sum(values) / len(values),
}
"""Reduction of each metric over the ranks of a trial: the maximum of memory, because the rank or
node with the highest use runs out first, and the mean of GPU utilisation."""


class UsageMonitor:
    """Measures the memory of this process, its node and its GPU during one trial.

    Processes are reused by later trials, so creating a monitor resets the GPU's peak memory.
    """

    def __init__(self) -> None:
        self._gpu_busy_percents: list[float] = []
        if torch.cuda.is_available():
            torch.cuda.reset_peak_memory_stats()

    def sample_gpu(self) -> None:
        """Sample the GPU utilisation; to be called during training, not during evaluation."""
        if torch.cuda.is_available():
            with contextlib.suppress(Exception):  # a missing value must not fail the trial
                self._gpu_busy_percents.append(float(torch.cuda.utilization()))

    def collect_usage(self) -> dict[str, float]:
        """Return the usage of an epoch; the GPU utilisation is the mean of its samples."""
        usage = {
            "memory_mib": psutil.Process().memory_info().rss / 2**20,
            "node_memory_percent": float(psutil.virtual_memory().percent),
        }
        if torch.cuda.is_available():
            usage["gpu_memory_mib"] = torch.cuda.max_memory_allocated() / 2**20
        if self._gpu_busy_percents:
            usage["gpu_use_percent"] = sum(self._gpu_busy_percents) / len(self._gpu_busy_percents)
            self._gpu_busy_percents.clear()
        return usage


def reduce_usage(usage: Mapping[str, float], world: World) -> dict[str, float]:
    """Reduce the usage of all ranks in one exchange; ranks without a value are left out."""
    if world.size == 1:
        return dict(usage)
    own = torch.tensor(
        [[usage.get(name, math.nan) for name in _RANK_REDUCTIONS]], dtype=torch.float64
    )
    columns = world.all_gather(own, world.size).T.tolist()
    values_by_rank = {
        name: [value for value in column if not math.isnan(value)]
        for name, column in zip(_RANK_REDUCTIONS, columns, strict=True)
    }
    return {
        name: _RANK_REDUCTIONS[name](values) for name, values in values_by_rank.items() if values
    }


def sampling_steps(steps: int) -> frozenset[int]:
    """Return the steps of an epoch after which to sample: evenly spaced, including the last."""
    return frozenset(
        steps * k // GPU_SAMPLES_PER_EPOCH - 1 for k in range(1, GPU_SAMPLES_PER_EPOCH + 1)
    ) - {-1}
