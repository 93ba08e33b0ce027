"""The ranks of a trial: slices of the work, collective operations, devices and errors."""

from __future__ import annotations

import contextlib
import functools
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from tests.support.pretend_device import count_device_work, register_pretend_device
from tests.support.rank_pool import CPU, RankPool
from tests.support.world_contract import (
    RunOnRanks,
    WorldContract,
    gather_own_rows_in_pieces,
    make_numbered_rows,
)
from trainables.distributed import world as world_module
from trainables.distributed.world import (
    ProcessGroupWorld,
    SingleProcessWorld,
    World,
    WorldError,
    default_device,
    rank_slice,
    trial_device,
)

pytestmark = pytest.mark.xdist_group("ranks")


class TestSingleProcessWorld(WorldContract):
    @pytest.fixture
    def run_on_ranks(self) -> RunOnRanks:
        return lambda function, *args: [function(SingleProcessWorld(CPU), *args)]


class TestProcessGroupWorld(WorldContract):
    @pytest.fixture(params=[2, 3, 4])
    def run_on_ranks(self, request: pytest.FixtureRequest, rank_pool: RankPool) -> RunOnRanks:
        return functools.partial(rank_pool.run, request.param)


@pytest.mark.parametrize("total", [0, 1, 3, 4, 14])
@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_slices_cover_everything_once_and_evenly(total: int, size: int) -> None:
    slices = [rank_slice(total, rank, size) for rank in range(size)]
    assert [i for s in slices for i in range(total)[s]] == list(range(total))
    lengths = [s.stop - s.start for s in slices]
    assert max(lengths) - min(lengths) <= 1


def gather_in_small_pieces(world: World, total: int) -> list[Tensor]:
    with mock.patch.object(world_module, "TRANSFER_PIECE_BYTES", 2 * 3 * 4):  # two rows
        return gather_own_rows_in_pieces(world, total)


def test_no_piece_is_larger_than_the_transfer_size(rank_pool: RankPool) -> None:
    first, *others = rank_pool.run(3, gather_in_small_pieces, 10)
    assert [len(piece) for piece in first] == [2, 2, 2, 1, 2, 1]  # slices of 4, 3 and 3 rows
    assert torch.equal(torch.cat(first), make_numbered_rows(10))
    assert not any(others)


class DeviceWorld(ProcessGroupWorld):
    """A process group on the pretend device; its collective operations do nothing."""

    def __init__(self) -> None:
        self._group, self.rank, self.size, self.device = None, 0, 2, register_pretend_device()


def test_exchanges_on_a_device_start_no_kernels_of_their_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls: list[str] = []
    for name in ("all_gather_single", "all_reduce"):
        monkeypatch.setattr(dist, name, lambda *_, name=name, **__: calls.append(name))
    monkeypatch.setattr(world_module, "_coalescing_manager", lambda group: contextlib.nullcontext())
    world = DeviceWorld()
    with count_device_work() as counters:
        rows, vector = torch.zeros(4, 3).to(world.device), torch.zeros(5).to(world.device)
        counters.waits.clear()
        counters.uploads.clear()
        assert world.all_gather(rows, 8).shape == (8, 3)
        assert [t.shape for t in world.all_gather_many([vector, rows])] == [(2, 5), (2, 4, 3)]
        world.all_reduce_sum_many_([vector, rows])
        world.all_reduce_sum_(vector)
        assert not counters.launches
        assert world.all_gather(rows, 7).shape == (7, 3)
        assert sum(counters.launches.values()) <= 3, "rows are padded and cut"
    assert not counters.waits
    assert not counters.uploads
    assert len(calls) == 7


def error_of_a_failing_backend(world: World) -> str:
    failing = mock.Mock(side_effect=RuntimeError("Connection closed by peer"))
    with mock.patch.object(dist, "all_reduce", failing):
        try:
            world.all_reduce_sum_(torch.zeros(1))
        except WorldError as error:
            return str(error)
    return ""


def test_an_error_of_the_backend_is_a_world_error(rank_pool: RankPool) -> None:
    for message in rank_pool.run(2, error_of_a_failing_backend):
        assert "Connection closed by peer" in message


def error_type_in_an_exchange(world: World, error: Exception) -> str:
    with mock.patch.object(dist, "all_reduce", mock.Mock(side_effect=error)):
        try:
            world.all_reduce_sum_(torch.zeros(1))
        except RuntimeError as raised:
            return type(raised).__name__
    return ""


@pytest.mark.parametrize(
    ("error", "kept"),
    [
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."), True),
        (RuntimeError("CUDA error: device-side assert triggered"), True),
        (RuntimeError("CUDA error: uncorrectable ECC error encountered"), True),
        (dist.DistBackendError("NCCL error: ncclUnhandledCudaError: Cuda failure 719"), True),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory"), True),
        (dist.DistBackendError("NCCL error: ncclRemoteError: a remote process exited"), False),
        (RuntimeError("Timed out waiting 1800000ms for recv operation to complete"), False),
    ],
)
def test_an_error_of_the_own_device_in_an_exchange_is_not_a_lost_rank(
    rank_pool: RankPool, error: Exception, kept: bool
) -> None:
    """A retry would repeat lack of memory and assertions, and blame the ranks for a GPU."""
    (name, _) = rank_pool.run(2, error_type_in_an_exchange, error)
    assert name == (type(error).__name__ if kept else "WorldError")


def test_a_trial_uses_a_gpu_only_if_it_has_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert default_device().type == "cuda"
    assert trial_device({"gpus_per_trial": 1}).type == "cuda"
    assert trial_device({"gpus_per_trial": 0}) == trial_device({}) == CPU
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert default_device() == trial_device({"gpus_per_trial": 1}) == CPU
