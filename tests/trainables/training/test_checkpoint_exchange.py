"""Exchange of checkpoints: ranks without shared storage, and checkpoints that are ignored."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.support import rank_cases as cases
from tests.support.rank_pool import CPU, RankPool
from tests.support.trial_specs import make_spec
from trainables.distributed.world import SingleProcessWorld
from trainables.training.checkpoint_exchange import load_newest_checkpoint
from trainables.training.checkpoints import checkpoint_path, save_checkpoint

pytestmark = pytest.mark.xdist_group("ranks")

WORLD = SingleProcessWorld(CPU)


@pytest.mark.parametrize("swap", [False, True], ids=["first rank has it", "another rank has it"])
def test_ranks_without_shared_storage_continue_together(
    swap: bool, rank_pool: RankPool, tmp_path: Path
) -> None:
    """Each rank uses its own directory, as on separate nodes; one has a checkpoint."""
    trial, name = (
        cases.make_rank_spec("proxy_anchor", kind="features", shard=True),
        "proxy_anchor-0000.pt",
    )
    expected = rank_pool.run(2, cases.train_and_save_per_rank, trial, str(tmp_path / "expected"), 2)
    folder = tmp_path / "apart"
    rank_pool.run(2, cases.train_and_save_per_rank, trial, str(folder), 1)
    assert [path.parent.name for path in folder.rglob("*.pt")] == ["0"]
    if swap:
        (folder / "1").mkdir()
        (folder / "0" / name).rename(folder / "1" / name)
    results = rank_pool.run(2, cases.train_and_save_per_rank, trial, str(folder), 2)
    assert [result["resumed"] for result in results] == [1, 1]
    for result, other in zip(results, expected, strict=True):
        assert result["score"] == other["score"]
    for key, value in expected[0]["weights"].items():
        assert torch.equal(results[0]["weights"][key], value), key


def test_a_checkpoint_of_another_training_is_ignored(tmp_path: Path) -> None:
    """A deleted study may have left one with the same name on a node."""
    folder = str(tmp_path)
    cases.train_and_save(WORLD, cases.make_rank_spec("triplet", kind="features"), folder, 1)
    other = cases.make_rank_spec("triplet", kind="features", head_lr=0.5)
    (tmp_path / "0").mkdir()
    (tmp_path / "triplet-0000.pt").rename(tmp_path / "0" / "triplet-0000.pt")
    assert cases.train_and_save_per_rank(WORLD, other, folder, 1)["resumed"] == 0


def test_a_damaged_checkpoint_is_ignored_with_a_warning(tmp_path: Path) -> None:
    spec = make_spec("triplet", tmp_path)
    warnings: list[str] = []
    assert load_newest_checkpoint(spec, WORLD, warnings.append) is None
    assert not warnings
    payload = {"training": spec.training_key(), "epoch": 2}
    save_checkpoint(tmp_path, spec.trial, payload)
    assert load_newest_checkpoint(spec, WORLD, warnings.append) == payload
    assert not warnings
    checkpoint_path(tmp_path, spec.trial).write_bytes(b"not a checkpoint")
    assert load_newest_checkpoint(spec, WORLD, warnings.append) is None
    (warning,) = warnings
    assert "damaged" in warning


def test_a_disk_that_does_not_respond_is_not_a_missing_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = make_spec("triplet", tmp_path)
    save_checkpoint(tmp_path, spec.trial, {"training": spec.training_key(), "epoch": 2})

    def fail(path: Path) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr("trainables.training.checkpoint_exchange.read_checkpoint", fail)
    with pytest.raises(OSError, match="Input/output error"):
        load_newest_checkpoint(spec, WORLD)
