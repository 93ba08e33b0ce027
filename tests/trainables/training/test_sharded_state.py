"""Proxies spread over ranks: memory, checkpoints, and ranks with nothing to hold."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.trainables import rank_cases as cases
from tests.trainables.rank_pool import CPU, RankPool
from trainables.checkpoints import load_checkpoint, remove_checkpoint
from trainables.world import Alone

ALONE = Alone(CPU)
MILLION = 1_000_000
DIM = 128
# A rank of four holds 250,000 proxies of 128 numbers: 122 MiB, and as much for the gradient and for
# each of Adam's two moments: 488 MiB. Two more are temporaries of the optimiser, and one is room:
# 854 MiB, where one process would need four times as much. Saving and loading stay below that: read
# rows are mapped from the file, and count until they are copied.
SHARD_MIB = MILLION // 4 * DIM * 4 / 2**20
ALLOWED_MIB = 7 * SHARD_MIB


def flat(payload: Any, path: str = "") -> dict[str, Any]:
    """All leaves of a checkpoint, by path."""
    if isinstance(payload, list):
        payload = dict(enumerate(payload))
    if not isinstance(payload, dict):
        return {path: payload}
    parts = [flat(value, f"{path}/{key}") for key, value in payload.items()]
    return {key: leaf for part in parts for key, leaf in part.items()}


def saved(folder: Path, name: str) -> dict[str, Any]:
    payload = load_checkpoint(folder, f"{name}-0000")
    assert payload is not None
    return flat(payload)


@pytest.mark.parametrize("name", ["soft_triple+synthesis", "proxy_anchor", "margin"])
def test_checkpoints_do_not_know_the_number_of_ranks(
    name: str, rank_pool: RankPool, tmp_path: Path
) -> None:
    """Saved by four sharding ranks, then loaded and saved by two, by three, and by one."""
    sharded = cases.spec(name, shard=True)
    rank_pool.run(4, cases.train_and_save, sharded, str(tmp_path), 1)
    first = saved(tmp_path, name)
    assert first["/epoch"] == 1
    assert any("exp_avg" in key for key in first)
    worlds = [(2, sharded), (3, cases.spec(name)), (1, sharded)]
    for size, trial in worlds:
        rank_pool.run(size, cases.resaved, trial, str(tmp_path))
        again = saved(tmp_path, name)
        assert set(again) == set(first)
        for key, value in first.items():
            if isinstance(value, torch.Tensor):
                assert torch.equal(again[key], value), key
            else:
                assert again[key] == value or "last_result" in key, key


def test_a_trial_goes_on_with_another_number_of_ranks(rank_pool: RankPool, tmp_path: Path) -> None:
    name = "norm_softmax"
    whole = cases.train_and_save(ALONE, cases.spec(name), str(tmp_path / "a"), 2)
    folder = str(tmp_path / "b")
    rank_pool.run(4, cases.train_and_save, cases.spec(name, shard=True), folder, 1)
    results = rank_pool.run(2, cases.train_and_save, cases.spec(name), folder, 2)
    for result in results:
        assert result["epoch"] == 2
        assert result["score"] == results[0]["score"]
        assert result["score"] == pytest.approx(whole["score"], abs=0.02)
    for key, value in whole["weights"].items():  # float32, through two epochs
        torch.testing.assert_close(results[0]["weights"][key], value, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("swap", [False, True], ids=["first rank has it", "another rank has it"])
def test_ranks_that_share_no_storage_go_on_together(
    swap: bool, rank_pool: RankPool, tmp_path: Path
) -> None:
    """Each rank sees a folder of its own, as on nodes that share nothing; one has a checkpoint."""
    trial, name = cases.spec("proxy_anchor", kind="features", shard=True), "proxy_anchor-0000.pt"
    whole = rank_pool.run(2, cases.train_and_save_apart, trial, str(tmp_path / "whole"), 2)
    folder = tmp_path / "apart"
    rank_pool.run(2, cases.train_and_save_apart, trial, str(folder), 1)
    assert [path.parent.name for path in folder.rglob("*.pt")] == ["0"]
    if swap:
        (folder / "1").mkdir()
        (folder / "0" / name).rename(folder / "1" / name)
    results = rank_pool.run(2, cases.train_and_save_apart, trial, str(folder), 2)
    assert [result["resumed"] for result in results] == [1, 1]
    for result, expected in zip(results, whole, strict=True):
        assert result["score"] == expected["score"]
    for key, value in whole[0]["weights"].items():
        assert torch.equal(results[0]["weights"][key], value), key


def test_ranks_go_on_together_when_their_checkpoint_cannot_be_written(
    rank_pool: RankPool, tmp_path: Path
) -> None:
    """The first rank takes the others' rows all the same: they would wait, or be out of step."""
    (tmp_path / "file").write_text("in the way", encoding="utf-8")
    trial = cases.spec("proxy_anchor", kind="features", shard=True)
    results = rank_pool.run(3, cases.train_unsaved, trial, str(tmp_path / "file" / "folder"))
    assert [bool(result["error"]) for result in results] == [True, False, False]
    whole = rank_pool.run(3, cases.train_and_save, trial, str(tmp_path), 2)
    assert [r["score"] for r in results] == [r["score"] for r in whole]


def test_a_checkpoint_of_another_training_is_not_taken(tmp_path: Path) -> None:
    """A deleted study may have left one of the same name on a node."""
    folder = str(tmp_path)
    cases.train_and_save(ALONE, cases.spec("triplet", kind="features"), folder, 1)
    other = cases.spec("triplet", kind="features", head_lr=0.5)
    (tmp_path / "0").mkdir()
    (tmp_path / "triplet-0000.pt").rename(tmp_path / "0" / "triplet-0000.pt")
    assert cases.train_and_save_apart(ALONE, other, folder, 1)["resumed"] == 0


def test_the_same_training_has_the_same_key_wherever_it_runs() -> None:
    trial = cases.spec("proxy_anchor")
    again = replace(
        trial,
        trial="x",
        cache_dir="/elsewhere",
        resources={"ranks_per_trial": 4},
        loss_knobs={k: float(v) for k, v in trial.loss_knobs.items()},
    )
    assert again.training_key() == trial.training_key()
    assert replace(trial, seed=2).training_key() != trial.training_key()


def test_fewer_classes_than_ranks(rank_pool: RankPool) -> None:
    trials = {
        name: cases.spec(name, kind="features", shard=True, batch_size=5, images_per_class=2)
        for name in ("norm_softmax", "soft_triple+synthesis", "proxy_anchor+synthesis")
    }
    for name, trial in trials.items():
        value, gradients, weights = cases.train(ALONE, trial, 3, 3)
        results = rank_pool.run(4, cases.train, trial, 3, 3)
        for result in results:
            assert result[0] == pytest.approx(value, rel=1e-12), name
            torch.testing.assert_close(result[1], gradients, rtol=1e-9, atol=1e-12)
        torch.testing.assert_close(results[0][2], weights, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", ["norm_softmax", "proxy_anchor", "soft_triple+synthesis"])
def test_a_share_of_the_negatives_is_the_same_on_any_ranks(name: str, rank_pool: RankPool) -> None:
    few: dict[str, Any] = {"kind": "features", "negative_share": 0.4}
    value, gradients, weights = cases.train(ALONE, cases.spec(name, **few), 4)
    all_of_them = cases.train(ALONE, cases.spec(name, kind="features"), 1)
    assert value != pytest.approx(all_of_them[0], rel=1e-3), "fewer classes, another loss"
    for shard in (False, True):
        results = rank_pool.run(3, cases.train, cases.spec(name, shard=shard, **few), 4)
        for result in results:
            assert result[0] == pytest.approx(value, rel=1e-12)
            torch.testing.assert_close(result[1], gradients, rtol=1e-9, atol=1e-12)
        torch.testing.assert_close(results[0][2], weights, rtol=1e-9, atol=1e-12)


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="reads Linux's /proc")
@pytest.mark.parametrize("name", ["norm_softmax", "proxy_anchor"])
def test_a_million_classes_on_four_ranks(name: str, rank_pool: RankPool, tmp_path: Path) -> None:
    try:
        results = rank_pool.run(4, cases.many_classes, name, MILLION, DIM, str(tmp_path))
    finally:
        remove_checkpoint(tmp_path, name)  # 1.4 GiB
    most = {stage: max(r["mib"][stage] for r in results) for stage in results[0]["mib"]}
    print(f"\n{name}: " + ", ".join(f"{k} {v:.0f}" for k, v in most.items()) + " MiB per rank")
    assert {r["held"] for r in results} == {4 * SHARD_MIB}, "a quarter of what one would hold"
    assert sum(r["rows"] for r in results) == MILLION
    assert {r["rows"] for r in results} == {MILLION // 4}
    for result in results:
        assert result["values"] == results[0]["values"]
        assert result["values"] == sorted(result["values"], reverse=True), "it learns"
        assert result["sums"][0] == result["sums"][1], "the rows it had are those it got back"
    assert set(most) == {"train", "save", "load"}
    assert max(most.values()) < ALLOWED_MIB, most
