"""Which classes does a rank hold, and which of them count in this step?

Ranks that share the classes of a loss hold consecutive ones each. What is random about a class (its
first proxy, whether it is drawn) depends on its number and a seed, never on who holds it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from trainables.losses.blocks import ALONE, Reducer, Segment
from trainables.seeding import derive
from trainables.world import World, share_gradient, sum_shares

_CHUNK = 4096


@dataclass(frozen=True)
class Classes:
    """The classes of one step.

    Args:
        segments: Proxies held here, trained ones first; over all ranks every class is in one.
        count: Number of classes over all ranks.
        trained: Of these, the ones with trained proxies (not synthetic).
        world: The ranks that hold them.
    """

    segments: list[Segment]
    count: int
    trained: int
    world: World

    @property
    def reducer(self) -> Reducer:
        """Combines what the ranks found; `ALONE` lets one process take its short cuts."""
        return self.world if self.world.size > 1 else ALONE


def start_values(n_classes: int, shape: tuple[int, ...], own: slice, *, seed: int) -> Tensor:
    """Random proxies of length about one for the classes `own` of all; (classes, *shape)."""
    start = torch.empty(own.stop - own.start, *shape)
    for chunk, rows, target in _chunks(own):
        generator = torch.Generator().manual_seed(derive(seed, chunk) if chunk else seed)
        length = min(_CHUNK, n_classes - chunk * _CHUNK)
        start[target] = torch.randn(length, *shape, generator=generator)[rows]
    return start.mul_(shape[-1] ** -0.5)


def fetch(proxies: Tensor, classes: Tensor, own: slice, world: World) -> Tensor:
    """Proxies of some classes on every rank, whoever holds them; differentiable.

    Gradients of all ranks are added up and reach the proxies where they are held.
    """
    if world.size == 1:
        return proxies[classes]
    mine = torch.nonzero((classes >= own.start) & (classes < own.stop))[:, 0]
    rows = proxies.new_zeros(len(classes), *proxies.shape[1:])
    rows = rows.index_put((mine,), proxies[classes[mine] - own.start])
    return share_gradient(world, sum_shares(world, rows))


def sampled(
    labels: Tensor, n_classes: int, own: slice, negative_share: float, *, seed: tuple[int, int]
) -> Tensor:
    """The classes of `own` that count: those of the batch, and a random share of the others.

    Counted from the start of `own`, ascending. Which are drawn does not depend on `own`. A batch
    of one class is compared with at least one other, or there would be nothing to compare.
    """
    kept = np.empty(own.stop - own.start, dtype=np.bool_)
    for chunk, rows, target in _chunks(own):
        kept[target] = np.random.default_rng([*seed, chunk]).random(_CHUNK)[rows] < negative_share
    known = labels.detach().cpu().numpy()
    if n_classes > 1 and len(np.unique(known)) == 1:
        step = np.random.default_rng([*seed, n_classes]).integers(1, n_classes)
        known = np.append(known, (known[0] + step) % n_classes)
    present = known[(known >= own.start) & (known < own.stop)] - own.start
    kept[present] = True
    return torch.from_numpy(np.flatnonzero(kept)).to(labels.device)


def _chunks(own: slice) -> Iterator[tuple[int, slice, slice]]:
    """Chunks of class numbers that `own` meets: number, rows within it, rows within `own`."""
    for chunk in range(own.start // _CHUNK, -(-own.stop // _CHUNK)):
        first = max(own.start, chunk * _CHUNK)
        last = min(own.stop, (chunk + 1) * _CHUNK)
        if first < last:
            rows = slice(first - chunk * _CHUNK, last - chunk * _CHUNK)
            yield chunk, rows, slice(first - own.start, last - own.start)
