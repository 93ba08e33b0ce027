"""What of its machine does a trial use?"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Mapping

import psutil
import torch

from trainables.world import World

SAMPLES = 4
"""How often in an epoch of training a GPU is asked how busy it is."""

_OVER_RANKS: Mapping[str, Callable[[list[float]], float]] = {
    "memory_mib": max,
    "node_memory_percent": max,
    "gpu_memory_mib": max,
    "gpu_use_percent": lambda values: sum(values) / len(values),
}
"""What a trial of several ranks reports: memory is that of the rank (or node) that uses most, since
there it runs out first; how busy the GPUs are is the mean."""


class Usage:
    """Memory of this process and its node, and of its GPU if it has one, for one trial.

    A process is reused from trial to trial, so the GPU's peak is counted anew from here.
    """

    def __init__(self) -> None:
        self._busy: list[float] = []
        if torch.cuda.is_available():
            torch.cuda.reset_peak_memory_stats()

    def sample(self) -> None:
        """Ask how busy the GPU is; to be called while it trains, not while it is scored."""
        if torch.cuda.is_available():
            with contextlib.suppress(Exception):  # a missing figure must not cost the trial
                self._busy.append(float(torch.cuda.utilization()))

    def take(self) -> dict[str, float]:
        """The figures of an epoch; the GPU's use is the mean of its samples."""
        use = {
            "memory_mib": psutil.Process().memory_info().rss / 2**20,
            "node_memory_percent": float(psutil.virtual_memory().percent),
        }
        if torch.cuda.is_available():
            use["gpu_memory_mib"] = torch.cuda.max_memory_allocated() / 2**20
        if self._busy:
            use["gpu_use_percent"] = sum(self._busy) / len(self._busy)
            self._busy.clear()
        return use


def over_ranks(use: Mapping[str, float], world: World) -> dict[str, float]:
    """The figures of all ranks as one, in one exchange; a rank that lacks a figure is left out."""
    if world.size == 1:
        return dict(use)
    own = torch.tensor([[use.get(name, math.nan) for name in _OVER_RANKS]], dtype=torch.float64)
    columns = world.gather(own, world.size).T.tolist()
    known = {
        name: [value for value in column if not math.isnan(value)]
        for name, column in zip(_OVER_RANKS, columns, strict=True)
    }
    return {name: _OVER_RANKS[name](values) for name, values in known.items() if values}


def moments(steps: int) -> frozenset[int]:
    """After which of an epoch's steps to ask: evenly spread, the last one too."""
    return frozenset(steps * k // SAMPLES - 1 for k in range(1, SAMPLES + 1)) - {-1}
