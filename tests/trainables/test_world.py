"""Any number of ranks gives the gradients and the weights of one."""

from __future__ import annotations

import pytest
import torch

from tests.trainables import rank_cases as cases
from tests.trainables.rank_pool import CPU, RankPool
from trainables.losses import LOSSES
from trainables.world import Alone, share

ALONE = Alone(CPU)


def worst(ours: cases.State, reference: cases.State) -> float:
    """Largest difference of a tensor, relative to that tensor's largest value."""
    assert set(ours) == set(reference)
    return max(
        float((ours[k] - reference[k]).abs().max() / reference[k].abs().max().clamp(min=1e-12))
        for k in reference
    )


@pytest.fixture(scope="module")
def reference() -> dict[str, tuple[float, cases.State, cases.State | None]]:
    """Every loss trained by one process."""
    trials = {name: cases.spec(name) for name in cases.NAMES}
    return cases.table(ALONE, trials, cases.STEPS)


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("shard", [False, True], ids=["replicated", "sharded"])
def test_ranks_equal_one_process(
    size: int, shard: bool, rank_pool: RankPool, reference: dict[str, object]
) -> None:
    names = [n for n in cases.NAMES if not shard or LOSSES[n.split("+")[0]].family == "proxy"]
    trials = {name: cases.spec(name, shard=shard) for name in names}
    results = rank_pool.run(size, cases.table, trials, cases.STEPS)
    for name in names:
        value, gradients, weights = reference[name]
        for rank, result in enumerate(results):
            assert result[name][0] == pytest.approx(value, rel=1e-12)
            print(name, size, shard, rank, worst(result[name][1], gradients))
        print(name, size, shard, worst(results[0][name][2], weights))
