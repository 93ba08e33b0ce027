"""What of its machine does a trial use?"""

from __future__ import annotations

import contextlib

import psutil
import torch

SAMPLES = 4
"""How often in an epoch of training a GPU is asked how busy it is."""


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


def moments(steps: int) -> frozenset[int]:
    """After which of an epoch's steps to ask: evenly spread, the last one too."""
    return frozenset(steps * k // SAMPLES - 1 for k in range(1, SAMPLES + 1)) - {-1}
