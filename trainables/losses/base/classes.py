"""Classes of a rank: initial proxies, and the random subset of classes that a step uses.

Ranks that share the classes of a loss hold consecutive classes each. The random choices of a class
(its initial proxy, whether a step draws it) depend on its number and a seed, never on the rank that
holds it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from trainables.distributed.world import World, all_reduce_gradient, all_reduce_sum
from trainables.losses.base.device_draws import ClassDraws
from trainables.losses.kernels.blocks import SINGLE_SHARD, ProxySegment, ShardReducer
from trainables.losses.kernels.own_entries import can_read_values
from trainables.utils.seeding import derive_seed

_CLASSES_PER_CHUNK = 4096


@dataclass(frozen=True)
class StepClasses:
    """The classes of one step.

    Args:
        segments: Proxies of this rank, trained ones first; over all ranks every class is in exactly
            one segment.
        n_classes: Number of classes over all ranks; a tensor, at least two, if only a device knows.
        n_trained_classes: Number of those with trained, not synthetic, proxies.
        world: The ranks that hold the classes.
        unused: Mask of proxies of the first segment that are no classes of the step.
    """

    segments: list[ProxySegment]
    n_classes: int | Tensor
    n_trained_classes: int | Tensor
    world: World
    unused: Tensor | None = None

    @property
    def has_wrong_classes(self) -> bool:
        """Whether there is more than one class."""
        return isinstance(self.n_classes, Tensor) or self.n_classes > 1

    @property
    def shard_reducer(self) -> ShardReducer:
        """Combines the partial results of the ranks; `SINGLE_SHARD` if there is only one."""
        return self.world if self.world.size > 1 else SINGLE_SHARD


def draw_initial_proxies(
    n_classes: int, shape: tuple[int, ...], own: slice, *, seed: int
) -> Tensor:
    """Return random proxies of length about one for the classes `own`: (classes, *shape)."""
    proxies = torch.empty(own.stop - own.start, *shape)
    for chunk, rows, target in _iter_chunks(own):
        generator = torch.Generator().manual_seed(derive_seed(seed, chunk) if chunk else seed)
        length = min(_CLASSES_PER_CHUNK, n_classes - chunk * _CLASSES_PER_CHUNK)
        proxies[target] = torch.randn(length, *shape, generator=generator)[rows]
    return proxies.mul_(shape[-1] ** -0.5)


def fetch_proxies(proxies: Tensor, classes: Tensor, own: slice, world: World) -> Tensor:
    """Return the proxies of some classes on every rank; differentiable.

    Backward sums the gradients of all ranks and passes them to the rank that holds the proxies.
    """
    if world.size == 1:
        return proxies[classes]
    if not can_read_values(classes):
        rows = _mask_own_rows(proxies, classes - own.start)
        return all_reduce_gradient(world, all_reduce_sum(world, rows))
    local = torch.nonzero((classes >= own.start) & (classes < own.stop))[:, 0]
    rows = proxies.new_zeros(len(classes), *proxies.shape[1:])
    rows = rows.index_put((local,), proxies[classes[local] - own.start])
    return all_reduce_gradient(world, all_reduce_sum(world, rows))


def _mask_own_rows(proxies: Tensor, places: Tensor) -> Tensor:
    """Return the rows at these places, zeros for places that this rank does not hold."""
    if len(proxies) == 0:
        return proxies.new_zeros(len(places), *proxies.shape[1:])
    rows = places.clamp(0, len(proxies) - 1)
    is_own = (rows == places).view(-1, *[1] * (proxies.dim() - 1))
    return proxies.index_select(0, rows) * is_own


class DrawnClasses(NamedTuple):
    """The classes of a step on one rank, in shapes that do not depend on the labels.

    Args:
        rows: Places of the proxies, relative to the first class of the rank. Drawn classes are
            followed by the class of each sample and by one more, for a batch of one class.
        columns: Place of the class of each sample in `rows`; undefined if another rank has it.
        is_own: Whether this rank has the class of each sample.
        unused: Mask of the places in `rows` that are another rank's or a repetition.
    """

    rows: Tensor
    columns: Tensor
    is_own: Tensor
    unused: Tensor


def place_drawn_classes(
    labels: Tensor, n_classes: int, own: slice, drawn: ClassDraws
) -> DrawnClasses:
    """Return the classes that `sample_classes` returns, without waiting for a device."""
    n_own, n_drawn = own.stop - own.start, len(drawn.classes)
    is_single = (labels == labels[0]).all()
    other = torch.where(is_single, (labels[:1] + drawn.step) % n_classes, labels[:1])
    wanted = torch.cat([labels, other]) - own.start
    rows = wanted.clamp(0, n_own - 1)
    is_own = rows == wanted
    # The first sample of a class stands for it; argmax returns the first of equal values.
    slots = (wanted[:, None] == wanted).byte().argmax(dim=1)
    is_needed = is_own & (slots == torch.arange(len(wanted), device=labels.device))
    columns = slots + n_drawn
    if n_drawn:
        places = torch.searchsorted(drawn.classes, wanted)
        is_drawn = drawn.classes[places.clamp(max=n_drawn - 1)] == wanted
        columns, is_needed = torch.where(is_drawn, places, columns), is_needed & ~is_drawn
    unused = torch.cat([is_needed.new_zeros(n_drawn), ~is_needed])
    return DrawnClasses(torch.cat([drawn.classes, rows]), columns[:-1], is_own[:-1], unused)


def sample_classes(
    labels: Tensor, n_classes: int, own: slice, negative_share: float, *, seed: tuple[int, int]
) -> Tensor:
    """Return the classes of `own` that a step uses: those of the batch and a share of the others.

    The numbers are ascending and relative to the start of `own`; the draw does not depend on `own`.
    A batch of one class gets at least one other class, since the loss compares classes.
    """
    is_used = _draw_classes(own, negative_share, seed)
    required = labels.detach().cpu().numpy()
    if n_classes > 1 and len(np.unique(required)) == 1:
        required = np.append(required, (required[0] + _draw_distance(n_classes, seed)) % n_classes)
    is_used[required[(required >= own.start) & (required < own.stop)] - own.start] = True
    return torch.from_numpy(np.flatnonzero(is_used)).to(labels.device)


def draw_classes(
    n_classes: int, own: slice, negative_share: float, *, seed: tuple[int, int]
) -> tuple[NDArray[np.int64], int]:
    """Return the random choices of `sample_classes`, which do not depend on the labels.

    They are the drawn classes and the distance to the class that a batch of one class gets.
    """
    drawn = np.flatnonzero(_draw_classes(own, negative_share, seed))
    return drawn, _draw_distance(n_classes, seed)


def _draw_classes(own: slice, negative_share: float, seed: tuple[int, int]) -> NDArray[np.bool_]:
    is_used = np.empty(own.stop - own.start, dtype=np.bool_)
    for chunk, rows, target in _iter_chunks(own):
        is_used[target] = (
            np.random.default_rng([*seed, chunk]).random(_CLASSES_PER_CHUNK)[rows] < negative_share
        )
    return is_used


def _draw_distance(n_classes: int, seed: tuple[int, int]) -> int:
    return int(np.random.default_rng([*seed, n_classes]).integers(1, n_classes))


def _iter_chunks(own: slice) -> Iterator[tuple[int, slice, slice]]:
    """Yield the chunks of classes that overlap `own`: number, rows in the chunk, rows in `own`."""
    for chunk in range(own.start // _CLASSES_PER_CHUNK, -(-own.stop // _CLASSES_PER_CHUNK)):
        first = max(own.start, chunk * _CLASSES_PER_CHUNK)
        last = min(own.stop, (chunk + 1) * _CLASSES_PER_CHUNK)
        if first < last:
            rows = slice(first - chunk * _CLASSES_PER_CHUNK, last - chunk * _CLASSES_PER_CHUNK)
            yield chunk, rows, slice(first - own.start, last - own.start)
