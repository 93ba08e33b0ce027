"""World of two ranks on the pretend device, of which the other does what this one does.

It needs one process, and counts the exchanges. An exchange starts no kernel of the project, so it
is not among the launches of the pretend device.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from tests.support.pretend_device import PretendTensor, register_pretend_device
from trainables.distributed.exchange import FinishedExchange, PendingExchange
from trainables.distributed.world import rank_slice
from trainables.utils.heartbeat import Heartbeat


class MirroredWorld:
    """Two ranks that hold the same values; sums are doubled, gathered rows repeated.

    Attributes:
        exchanges: Collective operations, by name.
    """

    size = 2

    def __init__(self, rank: int = 0) -> None:
        self.rank, self.device = rank, register_pretend_device()
        self.heartbeat = Heartbeat()
        self.exchanges: Counter[str] = Counter()

    def all_reduce_sum_(self, partial: Tensor) -> None:
        """Double the values."""
        self.exchanges["all_reduce"] += 1
        _host_values(partial).mul_(self.size)

    def all_reduce_sum_many_(self, partials: Sequence[Tensor]) -> None:
        """Double the values of all tensors."""
        self.exchanges["all_reduce"] += 1
        for partial in partials:
            _host_values(partial).mul_(self.size)

    def start_all_reduce_sum(self, partial: Tensor) -> PendingExchange:
        """Double the values."""
        self.all_reduce_sum_(partial)
        return FinishedExchange()

    def all_reduce_max_(self, partial: Tensor) -> None:
        """Leave the values unchanged."""
        self.exchanges["all_reduce"] += 1

    def broadcast_(self, values: Tensor) -> None:
        """Leave the values unchanged."""
        self.exchanges["broadcast"] += 1

    def all_gather_many(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Return every tensor twice."""
        self.exchanges["all_gather"] += 1
        return [
            PretendTensor(torch.stack([_host_values(tensor)] * self.size)) for tensor in tensors
        ]

    def all_gather(self, rows: Tensor, total: int) -> Tensor:
        """Return the rows of this rank for both ranks; a missing row repeats the first."""
        self.exchanges["all_gather"] += 1
        own = _host_values(rows)
        lengths = [rank_slice(total, rank, self.size) for rank in range(self.size)]
        padded = torch.cat([own, own[:1]])
        return PretendTensor(torch.cat([padded[: s.stop - s.start] for s in lengths]))

    def gather_in_pieces(self, rows: Tensor, total: int) -> Iterator[Tensor]:
        """Yield the rows of both ranks."""
        yield _host_values(self.all_gather(rows, total))


def _host_values(tensor: Tensor) -> Tensor:
    detached = tensor.detach()
    assert isinstance(detached, PretendTensor)
    return detached.host_tensor
