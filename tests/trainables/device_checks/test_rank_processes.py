"""Ranks in processes: results in rank order; failures, deaths and silence are reported."""

from __future__ import annotations

import os
import time
from typing import Any

import pytest
import torch

from trainables.device_checks.rank_processes import RankProcessError, run_on_ranks
from trainables.distributed.world import World

pytestmark = [pytest.mark.slow, pytest.mark.split]


def sum_ranks(world: World, offset: float) -> tuple[int, torch.Tensor]:
    values = torch.tensor([world.rank + offset])
    world.all_reduce_sum_(values)
    return world.rank, values


def fail_on_last_rank(world: World, how: str) -> Any:
    if world.rank == world.size - 1:
        if how == "dies":
            os._exit(3)
        raise ValueError("broken on purpose")
    time.sleep(600)


def test_results_come_in_rank_order() -> None:
    results = run_on_ranks(sum_ranks, 2, "cpu", 10.0)
    assert [rank for rank, _ in results] == [0, 1]
    assert all(torch.equal(values, torch.tensor([21.0])) for _, values in results)


@pytest.mark.parametrize(
    ("how", "message"), [("raises", "rank 1 failed.*broken on purpose"), ("dies", "rank 1 died")]
)
def test_a_failed_rank_is_named_while_the_other_hangs(how: str, message: str) -> None:
    started = time.monotonic()
    with pytest.raises(RankProcessError, match=f"(?s){message}"):
        run_on_ranks(fail_on_last_rank, 2, "cpu", how)
    assert time.monotonic() - started < 200


def test_silent_ranks_are_killed_after_a_time() -> None:
    with pytest.raises(RankProcessError, match="ranks 0 of 1 did not answer"):
        run_on_ranks(sum_ranks, 1, "cpu", 0.0, timeout_seconds=0.01)
