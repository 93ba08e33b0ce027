"""Who trains this trial together, and how do they exchange tensors?

Every rank runs the model on its share of the same global batch, sees all embeddings, and computes
the loss of the global batch. Hence the rules that make any number of ranks give the same gradients:

- gathered embeddings: each rank knows the whole gradient, and takes its own rows of it;
- the encoder's gradient is the sum over ranks; that of replicated proxies is the same on all;
- partial results of proxy shards are summed (or maximised) over ranks, forward and backward.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor

PIECE_BYTES = 16 * 2**20


class WorldError(RuntimeError):
    """Ranks could not exchange tensors: another rank is gone."""


class World(Protocol):
    """The ranks of a trial, seen from one of them.

    All methods but `rank`, `size` and `device` are collective: every rank calls them in the same
    order. `sum_`, `maximum_` and `broadcast_` work in place and leave the same bits on all ranks.
    """

    @property
    def rank(self) -> int:
        """This rank's number, from 0."""

    @property
    def size(self) -> int:
        """How many ranks there are."""

    @property
    def device(self) -> torch.device:
        """Where this rank computes."""

    def sum_(self, partial: Tensor) -> None:
        """Replace by the sum over ranks."""

    def maximum_(self, partial: Tensor) -> None:
        """Replace by the elementwise maximum over ranks."""

    def broadcast_(self, values: Tensor) -> None:
        """Replace by the first rank's values."""

    def gather(self, rows: Tensor, total: int) -> Tensor:
        """All `total` rows, of which this rank gives those of `share(total, ...)`; no gradient."""

    def collect(self, rows: Tensor, total: int) -> Iterator[Tensor]:
        """As `gather`, a piece after another, on the CPU of the first rank; others get none.

        Every rank has to go through it to its end.
        """


def share(total: int, rank: int, size: int) -> slice:
    """The positions of `total` that a rank works on: consecutive, as even as possible.

    Shares may be empty: the first `total % size` ranks have one position more than the others.
    """
    small, larger = divmod(total, size)
    start = rank * small + min(rank, larger)
    return slice(start, start + small + (rank < larger))


class Alone:
    """The world of a single process: there is nobody to exchange with."""

    rank, size = 0, 1

    def __init__(self, device: torch.device | None = None) -> None:
        self.device = device or default_device()

    def sum_(self, partial: Tensor) -> None:
        """Nothing to add."""

    def maximum_(self, partial: Tensor) -> None:
        """Nothing to compare with."""

    def broadcast_(self, values: Tensor) -> None:
        """Nobody to tell."""

    def gather(self, rows: Tensor, total: int) -> Tensor:
        """The rows themselves."""
        return rows

    def collect(self, rows: Tensor, total: int) -> Iterator[Tensor]:
        """The rows themselves."""
        yield rows.detach().cpu()


class Group:
    """The ranks of a torch process group: gloo on CPUs, nccl on GPUs.

    Args:
        group: None is torch's default group.
        device: Where this rank computes; tensors from elsewhere travel through it.
    """

    def __init__(
        self, group: dist.ProcessGroup | None = None, *, device: torch.device | None = None
    ) -> None:
        self._group = group
        self.rank, self.size = dist.get_rank(group), dist.get_world_size(group)
        self.device = device or default_device()
        self._ranks = dist.get_process_group_ranks(group or dist.group.WORLD)

    def sum_(self, partial: Tensor) -> None:
        """Add over ranks."""
        self._reduce(partial, dist.ReduceOp.SUM)

    def maximum_(self, partial: Tensor) -> None:
        """Maximise over ranks."""
        self._reduce(partial, dist.ReduceOp.MAX)

    def broadcast_(self, values: Tensor) -> None:
        """Take the first rank's values."""
        sent = self._travelling(values)
        with _Failures():
            dist.broadcast(sent, src=self._ranks[0], group=self._group)
        _back(sent, values)

    def gather(self, rows: Tensor, total: int) -> Tensor:
        """All ranks' rows. Shares differ by at most one row, so all send the longest."""
        longest = share(total, 0, self.size).stop
        sent = torch.zeros((longest, *rows.shape[1:]), dtype=rows.dtype, device=self.device)
        sent[: len(rows)] = rows.detach()
        parts = [torch.empty_like(sent) for _ in range(self.size)]
        with _Failures():
            dist.all_gather(parts, sent, group=self._group)
        shares = (share(total, rank, self.size) for rank in range(self.size))
        lengths = [s.stop - s.start for s in shares]
        kept = [part[:length] for part, length in zip(parts, lengths, strict=True)]
        return torch.cat(kept).to(rows.device)

    def collect(self, rows: Tensor, total: int) -> Iterator[Tensor]:
        """Pieces of the shards to the first rank, in order: no rank ever holds them all."""
        width = rows.shape[1:]
        count = max(1, PIECE_BYTES // max(1, width.numel() * rows.element_size()))
        for rank in range(self.size):
            part = share(total, rank, self.size)
            for start in range(part.start, part.stop, count):
                length = min(count, part.stop - start)
                if rank == self.rank:
                    piece = rows.detach()[start - part.start :][:length]
                elif self.rank == 0:
                    piece = torch.empty((length, *width), dtype=rows.dtype, device=self.device)
                else:
                    continue
                if rank > 0:
                    self._pass_on(piece, rank)
                if self.rank == 0:
                    yield piece.cpu()

    def _pass_on(self, piece: Tensor, rank: int) -> None:
        """From a rank to the first."""
        with _Failures():
            if self.rank == 0:
                dist.recv(piece, self._ranks[rank], self._group)
            else:
                dist.send(piece.to(self.device).contiguous(), self._ranks[0], self._group)

    def _reduce(self, values: Tensor, operation: Any) -> None:
        sent = self._travelling(values)
        with _Failures():
            dist.all_reduce(sent, op=operation, group=self._group)
        _back(sent, values)

    def _travelling(self, values: Tensor) -> Tensor:
        """The tensor itself where the group can send it as it lies, else a copy."""
        return values.detach().to(self.device).contiguous()


def default_device() -> torch.device:
    """A GPU if there is one."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def trial_device(resources: Mapping[str, Any]) -> torch.device:
    """Where one process computes a trial of these resources: on a GPU if the trial has one."""
    return default_device() if resources.get("gpus_per_trial") else torch.device("cpu")


def gather_rows(world: World, rows: Tensor, total: int) -> Tensor:
    """All `total` rows in rank order, differentiable.

    In backward each rank takes its own rows of the gradient it has: right when every rank computes
    the same function of all rows, as every loss here does.
    """
    if world.size == 1:
        return rows
    gathered: Tensor = _GatherRows.apply(rows, world, total)  # type: ignore[no-untyped-call]
    return gathered


def sum_shares(world: World, partial: Tensor) -> Tensor:
    """The sum over ranks, differentiable: each rank's part gets the whole gradient."""
    if world.size == 1:
        return partial
    total: Tensor = _SumShares.apply(partial, world)  # type: ignore[no-untyped-call]
    return total


def share_gradient(world: World, values: Tensor) -> Tensor:
    """The same values; in backward their gradient is summed over ranks.

    For replicated values that each rank uses in its own part of a sum.
    """
    if world.size == 1:
        return values
    same: Tensor = _ShareGradient.apply(values, world)  # type: ignore[no-untyped-call]
    return same


class _GatherRows(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor, world: World, total: int) -> Tensor:
        ctx.own = share(total, world.rank, world.size)
        return world.gather(rows, total)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        return grads[0][ctx.own], None, None


class _SumShares(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, partial: Tensor, world: World) -> Tensor:
        total = partial.detach().clone()
        world.sum_(total)
        return total

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        return grads[0], None


class _ShareGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor, world: World) -> Tensor:
        ctx.world = world
        return values.view_as(values)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        total = grads[0].clone()
        ctx.world.sum_(total)
        return total, None


class _Failures:
    """Whatever a backend raises when a peer is gone becomes a WorldError."""

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if isinstance(error, RuntimeError):
            raise WorldError(f"a rank is gone: {error}") from error


def _back(sent: Tensor, values: Tensor) -> None:
    if sent.data_ptr() != values.data_ptr():
        values.detach().copy_(sent)
