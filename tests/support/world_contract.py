"""Contract of `World`: what every implementation must do, as tests that a subclass inherits.

The functions run on every rank; they are defined here because other processes import them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from trainables.distributed.world import (
    World,
    all_reduce_gradient,
    all_reduce_sum,
    gather_rows,
    rank_slice,
)

RunOnRanks = Callable[..., list[Any]]


class WorldContract:
    """Tests of a `World`; a subclass overrides the fixture `run_on_ranks`."""

    @pytest.fixture
    def run_on_ranks(self) -> RunOnRanks:
        """Return a function that calls `function(world, *args)` on all ranks, in rank order."""
        raise NotImplementedError

    def test_ranks_are_numbered_and_agree_on_the_size(self, run_on_ranks: RunOnRanks) -> None:
        results = run_on_ranks(describe_world)
        assert results == [(rank, len(results), "cpu") for rank in range(len(results))]

    @pytest.mark.parametrize("total", [1, 6, 7])
    def test_all_gather_returns_all_rows_in_rank_order(
        self, total: int, run_on_ranks: RunOnRanks
    ) -> None:
        """Slices are uneven, and some are empty."""
        for gathered in run_on_ranks(gather_own_rows, total):
            assert torch.equal(gathered, make_numbered_rows(total))

    @pytest.mark.parametrize("total", [1, 6, 7])
    def test_gather_in_pieces_yields_all_rows_on_the_first_rank_only(
        self, total: int, run_on_ranks: RunOnRanks
    ) -> None:
        first, *others = run_on_ranks(gather_own_rows_in_pieces, total)
        assert torch.equal(torch.cat(first), make_numbered_rows(total))
        assert not any(others)

    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64])
    def test_sums_and_maxima_are_taken_over_ranks(
        self, dtype: torch.dtype, run_on_ranks: RunOnRanks
    ) -> None:
        results = run_on_ranks(reduce_rank_numbers, dtype)
        size = len(results)
        for summed, largest in results:
            assert summed.dtype == largest.dtype == dtype
            assert summed.tolist() == [size, sum(range(size))]
            assert largest.tolist() == [0, size - 1]

    def test_sums_have_the_same_bits_on_all_ranks(self, run_on_ranks: RunOnRanks) -> None:
        first, *others = run_on_ranks(sum_random_numbers)
        assert all(torch.equal(first, other) for other in others)

    @pytest.mark.parametrize("dtype", [torch.float32, torch.int64])
    def test_several_tensors_are_exchanged_at_once(
        self, dtype: torch.dtype, run_on_ranks: RunOnRanks
    ) -> None:
        results = run_on_ranks(exchange_several_tensors, dtype)
        size = len(results)
        ranks = torch.arange(size, dtype=dtype)
        for sums, stacked in results:
            assert torch.equal(sums[0], torch.full((3, 2), size * (size - 1) // 2, dtype=dtype))
            assert torch.equal(sums[1], torch.full((1,), size, dtype=dtype))
            assert torch.equal(stacked[0], ranks[:, None, None].expand(size, 3, 2))
            assert torch.equal(stacked[1], torch.ones((size, 1), dtype=dtype))

    def test_a_sum_that_was_begun_has_the_bits_of_one_that_is_waited_for(
        self, run_on_ranks: RunOnRanks
    ) -> None:
        for begun, waited in run_on_ranks(sum_in_both_ways):
            assert torch.equal(begun[0], waited[0])
            assert torch.equal(begun[1], waited[1])

    def test_broadcast_copies_the_first_rank(self, run_on_ranks: RunOnRanks) -> None:
        for values in run_on_ranks(broadcast_rank_number):
            assert torch.equal(values, torch.zeros(2, 3))

    @pytest.mark.parametrize("total", [1, 6, 7])
    def test_gathered_rows_return_the_gradient_of_the_own_rows(
        self, total: int, run_on_ranks: RunOnRanks
    ) -> None:
        results = run_on_ranks(compute_gradient_of_gathered_rows, total)
        gradients = torch.cat([gradient for gradient, _ in results])
        assert torch.equal(gradients, torch.arange(1.0, total + 1)[:, None].expand(-1, 3))
        assert all(torch.equal(gathered, make_numbered_rows(total)) for _, gathered in results)

    def test_a_sum_passes_its_gradient_to_every_rank(self, run_on_ranks: RunOnRanks) -> None:
        results = run_on_ranks(compute_gradient_of_sum)
        total = float(sum(range(1, len(results) + 1)))
        assert results == [(total, 2.0 * total)] * len(results)

    def test_gradients_of_replicated_values_are_summed(self, run_on_ranks: RunOnRanks) -> None:
        results = run_on_ranks(compute_gradient_of_replicated_value)
        assert results == [(3.0, float(sum(range(1, len(results) + 1))))] * len(results)


def make_numbered_rows(total: int) -> Tensor:
    """Return `total` rows of three consecutive numbers."""
    return torch.arange(3.0 * total).view(total, 3)


def get_own_rows(world: World, total: int) -> Tensor:
    return make_numbered_rows(total)[rank_slice(total, world.rank, world.size)]


def describe_world(world: World) -> tuple[int, int, str]:
    return world.rank, world.size, str(world.device)


def gather_own_rows(world: World, total: int) -> Tensor:
    return world.all_gather(get_own_rows(world, total), total)


def gather_own_rows_in_pieces(world: World, total: int) -> list[Tensor]:
    return list(world.gather_in_pieces(get_own_rows(world, total), total))


def reduce_rank_numbers(world: World, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    summed, largest = (torch.tensor(v, dtype=dtype) for v in ([1, world.rank], [0, world.rank]))
    world.all_reduce_sum_(summed)
    world.all_reduce_max_(largest)
    return summed, largest


def sum_random_numbers(world: World) -> Tensor:
    values = torch.rand(1000, generator=torch.Generator().manual_seed(world.rank))
    world.all_reduce_sum_(values)
    return values


def exchange_several_tensors(world: World, dtype: torch.dtype) -> tuple[list[Tensor], list[Tensor]]:
    tensors = [
        torch.full((2, 3), world.rank, dtype=dtype).T,  # not contiguous
        torch.ones(1, dtype=dtype),
    ]
    stacked = world.all_gather_many(tensors)
    world.all_reduce_sum_many_(tensors)
    return tensors, stacked


def sum_in_both_ways(world: World) -> tuple[list[Tensor], list[Tensor]]:
    """Return sums of two tensors that are exchanged at the same time, and one after the other."""
    generator = torch.Generator().manual_seed(world.rank)
    begun = [torch.rand(40, 25, generator=generator).T, torch.rand(7, generator=generator)]
    waited = [values.clone() for values in begun]
    pending = [world.start_all_reduce_sum(values) for values in begun]
    for exchange in pending:
        exchange.wait()
    for values in waited:
        world.all_reduce_sum_(values)
    return begun, waited


def broadcast_rank_number(world: World) -> Tensor:
    values = torch.full((3, 2), float(world.rank)).T  # not contiguous
    world.broadcast_(values)
    return values


def compute_gradient_of_gathered_rows(world: World, total: int) -> tuple[Tensor, Tensor]:
    rows = get_own_rows(world, total).clone().requires_grad_()
    gathered = gather_rows(world, rows, total)
    torch.autograd.backward((gathered * torch.arange(1.0, total + 1)[:, None]).sum())
    assert rows.grad is not None
    return rows.grad, gathered.detach()


def compute_gradient_of_sum(world: World) -> tuple[float, float]:
    part = torch.tensor(world.rank + 1.0, requires_grad=True)
    total = all_reduce_sum(world, part)
    (gradient,) = torch.autograd.grad(total.square(), part)
    return float(total.detach()), float(gradient)


def compute_gradient_of_replicated_value(world: World) -> tuple[float, float]:
    value = torch.tensor(3.0, requires_grad=True)
    replicated = all_reduce_gradient(world, value)
    (gradient,) = torch.autograd.grad(replicated * (world.rank + 1), value)
    return float(replicated.detach()), float(gradient)
