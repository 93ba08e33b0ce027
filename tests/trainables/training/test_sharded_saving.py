"""Saving of sharded tensors: the file format of torch, and the memory of each rank."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support import rank_cases as cases
from tests.support.rank_pool import CPU, RankPool
from trainables.distributed.world import SingleProcessWorld
from trainables.training.checkpoints import remove_checkpoint
from trainables.training.sharded_saving import ShardedTensor, find_sharded_tensors, save_sharded

pytestmark = [pytest.mark.xdist_group("ranks"), pytest.mark.slow]

WORLD = SingleProcessWorld(CPU)
MILLION = 1_000_000
DIM = 128
# Each of four ranks holds 250,000 proxies of 128 numbers, which are 122 MiB, and the same for the
# gradient and each of Adam's two moments: 488 MiB. Temporaries of the optimiser add two such
# blocks, and one is spare: 854 MiB, where a single process would need four times as much. Saving
# and loading stay below that; rows that are mapped from the file count until they are copied.
SHARD_MIB = MILLION // 4 * DIM * 4 / 2**20
ALLOWED_MIB = 7 * SHARD_MIB


def test_a_saved_shard_loads_like_a_complete_tensor() -> None:
    rows = torch.arange(12.0).view(4, 3)
    moments = torch.arange(6, dtype=torch.float64).view(2, 3)
    view = torch.arange(10)[2:5]
    payload: dict[str, Any] = {
        "epoch": 3,
        "loss": {"proxies": ShardedTensor(rows, 4, WORLD), "empty": torch.empty(0)},
        "optimizer": [ShardedTensor(moments, 2, WORLD), {"step": torch.tensor(7.0)}, "text"],
        "view": view,
    }
    file = io.BytesIO()
    save_sharded(payload, file)
    file.seek(0)
    loaded = torch.load(file, weights_only=True)
    assert loaded["epoch"] == 3
    assert torch.equal(loaded["loss"]["proxies"], rows)
    assert loaded["loss"]["empty"].numel() == 0
    assert torch.equal(loaded["optimizer"][0], moments)
    assert loaded["optimizer"][0].dtype == torch.float64
    assert loaded["optimizer"][1:] == [{"step": torch.tensor(7.0)}, "text"]
    assert torch.equal(loaded["view"], view)


def test_sharded_tensors_are_found_in_the_order_of_saving() -> None:
    first, second = (ShardedTensor(torch.zeros(n, 1), n, WORLD) for n in (1, 2))
    payload = {"a": [torch.zeros(2), {"b": (first,)}], "c": second, "d": 1}
    assert find_sharded_tensors(payload) == [first, second]
    assert find_sharded_tensors({"a": torch.zeros(1)}) == []


def test_finishing_an_exchange_uses_up_its_pieces() -> None:
    tensor = ShardedTensor(torch.zeros(2, 2), 2, WORLD)
    tensor.finish_exchange()
    assert list(tensor.pieces) == []


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="reads Linux's /proc")
@pytest.mark.parametrize("name", ["norm_softmax", "proxy_anchor"])
def test_a_million_classes_on_four_ranks(name: str, rank_pool: RankPool, tmp_path: Path) -> None:
    try:
        results = rank_pool.run(4, cases.train_many_classes, name, MILLION, DIM, str(tmp_path))
    finally:
        remove_checkpoint(tmp_path, name)  # 1.4 GiB
    peaks = {stage: max(r["mib"][stage] for r in results) for stage in results[0]["mib"]}
    print(f"\n{name}: " + ", ".join(f"{k} {v:.0f}" for k, v in peaks.items()) + " MiB per rank")
    assert {r["held"] for r in results} == {4 * SHARD_MIB}, "a quarter of one process's memory"
    assert sum(r["rows"] for r in results) == MILLION
    assert {r["rows"] for r in results} == {MILLION // 4}
    for result in results:
        assert result["values"] == results[0]["values"]
        assert result["values"] == sorted(result["values"], reverse=True), "the loss decreases"
        assert result["sums"][0] == result["sums"][1], "loaded rows equal the saved rows"
    assert set(peaks) == {"train", "save", "load"}
    assert max(peaks.values()) < ALLOWED_MIB, peaks
