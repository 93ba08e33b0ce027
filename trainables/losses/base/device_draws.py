"""Random numbers for a device: drawn on the host for many steps and uploaded together.

The numbers are those that the CPU draws with the same seed, so a trial is the same on any device.
An upload per step would make the host wait for the device in every step.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

# Steps of one upload, and the bytes that it may have; a single step may have more.
_STEPS_PER_UPLOAD = 64
_BYTES_PER_UPLOAD = 2**24


class PairDraws(NamedTuple):
    """Random numbers of the synthetic classes of one step, vectors over these classes.

    Args:
        first: Number of the first member of a pair in the batch.
        share: Uniform in [0, 1), float64: chooses the second member.
        place: lambda, the share of the first member.
        rest: 1 - lambda.
    """

    first: Tensor
    share: Tensor
    place: Tensor
    rest: Tensor


class HostPairDraws(NamedTuple):
    """Random numbers of one step as the host draws them: first members, shares and lambdas."""

    first: NDArray[np.int64]
    share: NDArray[np.float64]
    place: NDArray[np.float64]


PairDrawer = Callable[[int], HostPairDraws]
ClassDrawer = Callable[[int], tuple[NDArray[np.int64], int]]


class PairDrawPool:
    """Random numbers of the next steps of Proxy Synthesis on a device.

    The drawer of every call draws the numbers of one step of a batch size from the generator. The
    pool does not store it: a reference to the plug-in would be a cycle that keeps its memory.

    Args:
        random: Generator of the plug-in.
    """

    def __init__(self, random: np.random.Generator) -> None:
        self._random = random
        self._key: tuple[int, torch.device, torch.dtype] | None = None
        self._state: Any = None
        self._steps: list[PairDraws] = []
        self._n_used = 0

    def next_step(
        self, draw: PairDrawer, batch: int, device: torch.device, dtype: torch.dtype
    ) -> PairDraws:
        """Return the numbers of the next step for a batch size."""
        key = (batch, device, dtype)
        if key != self._key or self._n_used == len(self._steps):
            self.discard_unused(draw)
            self._key, self._state = key, self._random.bit_generator.state
            self._steps = _upload_steps(draw, batch, device, dtype)
        self._n_used += 1
        return self._steps[self._n_used - 1]

    def discard_unused(self, draw: PairDrawer) -> None:
        """Set the generator to its state after the steps that were used."""
        if self._key is not None and self._n_used < len(self._steps):
            self._random.bit_generator.state = self._state
            for _ in range(self._n_used):
                draw(self._key[0])
        self._key, self._steps, self._n_used = None, [], 0


def _upload_steps(
    draw: PairDrawer, batch: int, device: torch.device, dtype: torch.dtype
) -> list[PairDraws]:
    drawn = [np.stack(draw(batch)) for _ in range(_STEPS_PER_UPLOAD)]
    numbers = torch.from_numpy(np.stack(drawn, axis=1)).to(device)  # exact: indices in float64
    first, share = numbers[0].long(), numbers[1]
    place = numbers[2].to(dtype)
    parts = (first, share, place, 1.0 - place)
    return [PairDraws(*step) for step in zip(*(part.unbind() for part in parts), strict=True)]


class ClassDraws(NamedTuple):
    """Random classes of one step.

    Args:
        classes: The drawn classes of this rank, ascending, relative to its first class.
        step: Distance from the class of a batch of one class to the other class that it gets.
    """

    classes: Tensor
    step: int


class ClassDrawPool:
    """Random classes of the next steps on a device.

    The drawer of a call returns the drawn classes of a step and the distance to another class.

    Args:
        expected: Expected number of drawn classes.
    """

    def __init__(self, *, expected: float) -> None:
        fitting = _BYTES_PER_UPLOAD // (8 * max(1, int(expected)))
        self._n_uploaded = max(1, min(_STEPS_PER_UPLOAD, fitting))
        self._steps: dict[int, ClassDraws] = {}
        self._device: torch.device | None = None

    def take_step(self, draw: ClassDrawer, step: int, device: torch.device) -> ClassDraws:
        """Return the classes of a step."""
        if step not in self._steps or device != self._device:
            numbers = range(step, step + self._n_uploaded)
            drawn = [draw(number) for number in numbers]
            classes, distances = zip(*drawn, strict=True)
            uploaded = torch.from_numpy(np.concatenate(classes)).to(device)
            parts = torch.split_with_sizes(uploaded, [len(part) for part in classes])
            steps = map(ClassDraws, parts, distances)
            self._device, self._steps = device, dict(zip(numbers, steps, strict=True))
        return self._steps[step]
