"""State of losses with sharded proxies: independent of the number of ranks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support import rank_cases as cases
from tests.support.rank_pool import CPU, RankPool
from trainables.distributed.world import SingleProcessWorld
from trainables.training.checkpoints import load_checkpoint

pytestmark = pytest.mark.xdist_group("ranks")

WORLD = SingleProcessWorld(CPU)


def flatten(payload: Any, path: str = "") -> dict[str, Any]:
    """Return all leaves of a checkpoint, by path."""
    if isinstance(payload, list):
        payload = dict(enumerate(payload))
    if not isinstance(payload, dict):
        return {path: payload}
    parts = [flatten(value, f"{path}/{key}") for key, value in payload.items()]
    return {key: leaf for part in parts for key, leaf in part.items()}


def load_flat(folder: Path, loss: str) -> dict[str, Any]:
    payload = load_checkpoint(folder, f"{loss}-0000")
    assert payload is not None
    return flatten(payload)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["soft_triple+synthesis", "proxy_anchor", "margin"])
def test_checkpoints_are_independent_of_the_number_of_ranks(
    name: str, rank_pool: RankPool, tmp_path: Path
) -> None:
    """Saved by four sharding ranks, then loaded and saved by two, by three, and by one."""
    sharded = cases.make_rank_spec(name, shard=True)
    rank_pool.run(4, cases.train_and_save, sharded, str(tmp_path), 1)
    first = load_flat(tmp_path, name)
    assert first["/epoch"] == 1
    assert any("exp_avg" in key for key in first)
    for size, trial in [(2, sharded), (3, cases.make_rank_spec(name)), (1, sharded)]:
        rank_pool.run(size, cases.resave_checkpoint, trial, str(tmp_path))
        again = load_flat(tmp_path, name)
        assert set(again) == set(first)
        for key, value in first.items():
            if isinstance(value, torch.Tensor):
                assert torch.equal(again[key], value), key
            else:
                assert again[key] == value or "last_result" in key, key


def test_a_trial_continues_with_another_number_of_ranks(
    rank_pool: RankPool, tmp_path: Path
) -> None:
    name = "norm_softmax"
    expected = cases.train_and_save(WORLD, cases.make_rank_spec(name), str(tmp_path / "a"), 2)
    folder = str(tmp_path / "b")
    rank_pool.run(4, cases.train_and_save, cases.make_rank_spec(name, shard=True), folder, 1)
    results = rank_pool.run(2, cases.train_and_save, cases.make_rank_spec(name), folder, 2)
    for result in results:
        assert result["epoch"] == 2
        assert result["score"] == results[0]["score"]
        assert result["score"] == pytest.approx(expected["score"], abs=0.02)
    for key, value in expected["weights"].items():  # float32, through two epochs
        torch.testing.assert_close(results[0]["weights"][key], value, rtol=1e-3, atol=1e-3)


def test_fewer_classes_than_ranks(rank_pool: RankPool) -> None:
    trials = {
        name: cases.make_rank_spec(
            name, kind="features", shard=True, batch_size=5, images_per_class=2
        )
        for name in ("norm_softmax", "soft_triple+synthesis", "proxy_anchor+synthesis")
    }
    for name, trial in trials.items():
        value, gradients, weights = cases.train_steps(WORLD, trial, 3, 3)
        results = rank_pool.run(4, cases.train_steps, trial, 3, 3)
        for result in results:
            assert result[0] == pytest.approx(value, rel=1e-12), name
            torch.testing.assert_close(result[1], gradients, rtol=1e-9, atol=1e-12)
        torch.testing.assert_close(results[0][2], weights, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", ["norm_softmax", "proxy_anchor", "soft_triple+synthesis"])
def test_sampled_negatives_are_the_same_on_any_number_of_ranks(
    name: str, rank_pool: RankPool
) -> None:
    settings: dict[str, Any] = {"kind": "features", "negative_share": 0.4}
    value, gradients, weights = cases.train_steps(WORLD, cases.make_rank_spec(name, **settings), 4)
    all_negatives = cases.train_steps(WORLD, cases.make_rank_spec(name, kind="features"), 1)
    assert value != pytest.approx(all_negatives[0], rel=1e-3), "fewer classes, another loss"
    for shard in (False, True):
        results = rank_pool.run(
            3, cases.train_steps, cases.make_rank_spec(name, shard=shard, **settings), 4
        )
        for result in results:
            assert result[0] == pytest.approx(value, rel=1e-12)
            torch.testing.assert_close(result[1], gradients, rtol=1e-9, atol=1e-12)
        torch.testing.assert_close(results[0][2], weights, rtol=1e-9, atol=1e-12)
