"""The ranks of a trial and the collective operations between them.

Every rank runs the model on its share of the same global batch, gathers all embeddings and computes
the loss of the global batch. These rules make the gradients independent of the world size:

- gathered embeddings: each rank has the complete gradient and takes its own rows of it;
- the encoder's gradient is the sum over ranks; that of replicated proxies is equal on all ranks;
- partial results of proxy shards are summed (or maximised) over ranks, forward and backward.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.distributed_c10d import _coalescing_manager

from trainables.distributed.exchange import (
    BackendErrorTranslator,
    FinishedExchange,
    PendingAllReduce,
    PendingExchange,
    copy_back,
)
from trainables.distributed.exchange import WorldError as WorldError
from trainables.utils.heartbeat import Heartbeat

TRANSFER_PIECE_BYTES = 16 * 2**20


class World(Protocol):
    """The ranks of a trial, as one of them sees them.

    All methods are collective: every rank calls them in the same order. Methods whose name ends
    with an underscore, and `start_all_reduce_sum`, work in place and leave the same bits on all
    ranks.
    """

    @property
    def rank(self) -> int:
        """Number of this rank, from 0."""

    @property
    def size(self) -> int:
        """World size: the number of ranks."""

    @property
    def device(self) -> torch.device:
        """Device on which this rank computes."""

    @property
    def heartbeat(self) -> Heartbeat:
        """Progress of this rank: its training and evaluation record every batch."""

    def all_reduce_sum_(self, partial: Tensor) -> None:
        """Replace the tensor by its sum over ranks."""

    def all_reduce_sum_many_(self, partials: Sequence[Tensor]) -> None:
        """Replace several tensors of one type by their sums over ranks, in one exchange."""

    def start_all_reduce_sum(self, partial: Tensor) -> PendingExchange:
        """Begin to replace the tensor by its sum over ranks."""

    def all_reduce_max_(self, partial: Tensor) -> None:
        """Replace the tensor by its elementwise maximum over ranks."""

    def broadcast_(self, values: Tensor) -> None:
        """Replace the tensor by that of the first rank."""

    def all_gather_many(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Return for each tensor those of all ranks, stacked in rank order, in one exchange.

        All ranks pass the same shapes and one type.
        """

    def all_gather(self, rows: Tensor, total: int) -> Tensor:
        """Return all `total` rows, without gradient.

        `rows` are those at `rank_slice(total, rank, size)`.
        """

    def gather_in_pieces(self, rows: Tensor, total: int) -> Iterator[Tensor]:
        """Yield the rows of `all_gather` piece by piece, on the CPU of the first rank only.

        Every rank must exhaust the iterator; on the other ranks it yields nothing.
        """


def rank_slice(total: int, rank: int, size: int) -> slice:
    """Return the positions out of `total` that a rank works on: consecutive, as even as possible.

    The first `total % size` ranks have one position more than the others; slices may be empty.
    """
    small, larger = divmod(total, size)
    start = rank * small + min(rank, larger)
    return slice(start, start + small + (rank < larger))


class SingleProcessWorld:
    """World of a single process: every collective operation is the identity."""

    rank, size = 0, 1

    def __init__(self, device: torch.device | None = None) -> None:
        self.device = device or default_device()
        self.heartbeat = Heartbeat()

    def all_reduce_sum_(self, partial: Tensor) -> None:
        """Leave the tensor unchanged."""

    def all_reduce_sum_many_(self, partials: Sequence[Tensor]) -> None:
        """Leave the tensors unchanged."""

    def start_all_reduce_sum(self, partial: Tensor) -> PendingExchange:
        """Leave the tensor unchanged."""
        return FinishedExchange()

    def all_reduce_max_(self, partial: Tensor) -> None:
        """Leave the tensor unchanged."""

    def broadcast_(self, values: Tensor) -> None:
        """Leave the tensor unchanged."""

    def all_gather_many(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Return the tensors with a first axis of one rank."""
        return [tensor.detach()[None] for tensor in tensors]

    def all_gather(self, rows: Tensor, total: int) -> Tensor:
        """Return the rows."""
        return rows

    def gather_in_pieces(self, rows: Tensor, total: int) -> Iterator[Tensor]:
        """Yield the rows in one piece."""
        yield rows.detach().cpu()


class ProcessGroupWorld:
    """World of a torch process group: gloo on CPUs, nccl on GPUs.

    Args:
        group: The process group; None is torch's default group.
        device: Device on which this rank computes; other tensors are copied to it to be sent.
    """

    def __init__(
        self, group: dist.ProcessGroup | None = None, *, device: torch.device | None = None
    ) -> None:
        self._group = group
        self.rank, self.size = dist.get_rank(group), dist.get_world_size(group)
        self.device = device or default_device()
        self.heartbeat = Heartbeat()
        self._ranks = dist.get_process_group_ranks(group or dist.group.WORLD)

    def all_reduce_sum_(self, partial: Tensor) -> None:
        """Replace the tensor by its sum over ranks."""
        self._all_reduce(partial, dist.ReduceOp.SUM)

    def all_reduce_sum_many_(self, partials: Sequence[Tensor]) -> None:
        """Replace several tensors by their sums over ranks; the backend sends them together."""
        sent = [self._prepare_transfer(partial) for partial in partials]
        with BackendErrorTranslator(), _coalescing_manager(self._group):
            for tensor in sent:
                dist.all_reduce(tensor, group=self._group)
        for tensor, partial in zip(sent, partials, strict=True):
            copy_back(tensor, partial)

    def start_all_reduce_sum(self, partial: Tensor) -> PendingExchange:
        """Begin to replace the tensor by its sum over ranks."""
        sent = self._prepare_transfer(partial)
        with BackendErrorTranslator():
            work = dist.all_reduce(sent, group=self._group, async_op=True)
        return PendingAllReduce(work, sent, partial)

    def all_reduce_max_(self, partial: Tensor) -> None:
        """Replace the tensor by its elementwise maximum over ranks."""
        self._all_reduce(partial, dist.ReduceOp.MAX)

    def broadcast_(self, values: Tensor) -> None:
        """Replace the tensor by that of the first rank."""
        sent = self._prepare_transfer(values)
        with BackendErrorTranslator():
            dist.broadcast(sent, src=self._ranks[0], group=self._group)
        copy_back(sent, values)

    def all_gather_many(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Return for each tensor those of all ranks; the backend sends them together."""
        sent = [self._prepare_transfer(tensor) for tensor in tensors]
        stacked = [tensor.new_empty((self.size, *tensor.shape)) for tensor in sent]
        with BackendErrorTranslator(), _coalescing_manager(self._group):
            for whole, own in zip(stacked, sent, strict=True):
                dist.all_gather_single(whole.view(-1), own.view(-1), group=self._group)
        return [whole.to(own.device) for whole, own in zip(stacked, tensors, strict=True)]

    def all_gather(self, rows: Tensor, total: int) -> Tensor:
        """Return the rows of all ranks, padded in transfer: slices differ by at most one row."""
        longest = rank_slice(total, 0, self.size).stop
        sent = self._prepare_transfer(rows)
        if len(rows) < longest:
            sent = torch.cat([sent, sent.new_zeros((longest - len(rows), *rows.shape[1:]))])
        parts = sent.new_empty((self.size, *sent.shape))
        with BackendErrorTranslator():
            dist.all_gather_single(parts.view(-1), sent.view(-1), group=self._group)
        if total == self.size * longest:
            return parts.flatten(0, 1).to(rows.device)
        slices = [rank_slice(total, rank, self.size) for rank in range(self.size)]
        unpadded = [part[: s.stop - s.start] for part, s in zip(parts, slices, strict=True)]
        return torch.cat(unpadded).to(rows.device)

    def gather_in_pieces(self, rows: Tensor, total: int) -> Iterator[Tensor]:
        """Send pieces of the shards to the first rank, in order; no rank holds all rows."""
        width = rows.shape[1:]
        count = max(1, TRANSFER_PIECE_BYTES // max(1, width.numel() * rows.element_size()))
        for rank in range(self.size):
            part = rank_slice(total, rank, self.size)
            for start in range(part.start, part.stop, count):
                length = min(count, part.stop - start)
                if rank == self.rank:
                    piece = rows.detach()[start - part.start :][:length]
                elif self.rank == 0:
                    piece = torch.empty((length, *width), dtype=rows.dtype, device=self.device)
                else:
                    continue
                if rank > 0:
                    self._send_to_first_rank(piece, rank)
                if self.rank == 0:
                    yield piece.cpu()

    def _send_to_first_rank(self, piece: Tensor, rank: int) -> None:
        """Send a piece from a rank to the first one."""
        with BackendErrorTranslator():
            if self.rank == 0:
                dist.recv(piece, self._ranks[rank], self._group)
            else:
                dist.send(piece.to(self.device).contiguous(), self._ranks[0], self._group)

    def _all_reduce(self, values: Tensor, operation: Any) -> None:
        sent = self._prepare_transfer(values)
        with BackendErrorTranslator():
            dist.all_reduce(sent, op=operation, group=self._group)
        copy_back(sent, values)

    def _prepare_transfer(self, values: Tensor) -> Tensor:
        """Return a tensor that the group can send: `values` itself if possible, else a copy."""
        return values.detach().to(self.device).contiguous()


def default_device() -> torch.device:
    """Return a GPU if torch sees one, else the CPU."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def trial_device(resources: Mapping[str, Any]) -> torch.device:
    """Return the device of a single-process trial: a GPU if its resources contain one."""
    return default_device() if resources.get("gpus_per_trial") else torch.device("cpu")


def gather_rows(world: World, rows: Tensor, total: int) -> Tensor:
    """Return all `total` rows in rank order, differentiable.

    In backward each rank takes its own rows of its gradient. This is correct if every rank computes
    the same function of all rows, as every loss here does.
    """
    if world.size == 1:
        return rows
    gathered: Tensor = _GatherRowsFunction.apply(rows, world, total)  # type: ignore[no-untyped-call]
    return gathered


def all_reduce_sum(world: World, partial: Tensor) -> Tensor:
    """Return the sum over ranks, differentiable: each rank receives the full gradient."""
    if world.size == 1:
        return partial
    total: Tensor = _AllReduceSumFunction.apply(partial, world)  # type: ignore[no-untyped-call]
    return total


def all_reduce_gradient(world: World, values: Tensor) -> Tensor:
    """Return the same values; in backward their gradient is summed over ranks.

    Use it for replicated values that each rank uses in its own part of a sum.
    """
    if world.size == 1:
        return values
    same: Tensor = _AllReduceGradientFunction.apply(values, world)  # type: ignore[no-untyped-call]
    return same


class _GatherRowsFunction(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor, world: World, total: int) -> Tensor:
        ctx.own = rank_slice(total, world.rank, world.size)
        return world.all_gather(rows, total)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        return grads[0][ctx.own], None, None


class _AllReduceSumFunction(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, partial: Tensor, world: World) -> Tensor:
        total = partial.detach().clone()
        world.all_reduce_sum_(total)
        return total

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        return grads[0], None


class _AllReduceGradientFunction(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor, world: World) -> Tensor:
        ctx.world = world
        return values.view_as(values)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        total = grads[0].clone()
        ctx.world.all_reduce_sum_(total)
        return total, None
