"""Trainer of a trial: bitwise resumption, seeds, folds, and the effect of each hyperparameter."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from search_spaces.shared.training import TRAINING_PARAMS
from tests.support import rank_cases as cases
from tests.support.rank_pool import RankPool
from tests.support.slow_disk import SlowDisk
from tests.support.trial_specs import LOSS_PARAMS, are_all_equal, copy_weights, make_spec
from trainables.distributed.world import SingleProcessWorld
from trainables.training.baseline import untrained_metrics
from trainables.training.checkpoints import load_checkpoint
from trainables.training.context import TrainingContext
from trainables.training.replica import ModelReplica
from trainables.training.restored_network import load_network_weights
from trainables.training.trial_trainer import (
    TrialTrainer,
    agree_on_precision,
    average_metrics,
)
from trainables.training.usage import UsageMonitor
from trainables.utils.precision_names import PRECISIONS

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("loss", LOSS_PARAMS)
def test_a_restored_trial_continues_bit_for_bit(
    loss: str, glyphs_context: TrainingContext, tmp_path: Path
) -> None:
    spec = make_spec(loss, tmp_path)
    uninterrupted = TrialTrainer(replace(spec, checkpoint_dir=""), glyphs_context)
    results = [uninterrupted.run_epoch() for _ in range(4)]
    first = TrialTrainer(spec, glyphs_context)
    first.run_epoch()
    first.run_epoch()
    first.write_checkpoint()
    torch.manual_seed(999)  # the state of the global generator must not matter
    second = TrialTrainer(spec, glyphs_context)
    assert second.restore_checkpoint()
    assert second.last_result["score"] == results[1]["score"]
    rest = [second.run_epoch(), second.run_epoch()]
    assert [r["score"] for r in rest] == [r["score"] for r in results[2:]]
    assert are_all_equal(copy_weights(uninterrupted), copy_weights(second))
    assert second.is_done


def test_a_trial_continues_bit_for_bit_from_a_checkpoint_written_while_it_trained(
    glyphs_context: TrainingContext, tmp_path: Path, slow_disk: SlowDisk
) -> None:
    """The optimiser changes the weights on a CPU in place while the thread writes them."""
    spec = make_spec("proxy_anchor", tmp_path)
    first = TrialTrainer(spec, glyphs_context)
    results = [first.run_epoch()]
    first.start_checkpoint(fail_on_error)
    slow_disk.wait_for_write()
    results.append(first.run_epoch())
    slow_disk.release()
    first.finish_checkpoint()
    second = TrialTrainer(spec, glyphs_context)
    assert second.restore_checkpoint()
    assert second.last_result["score"] == results[0]["score"]
    assert second.run_epoch()["score"] == results[1]["score"]
    assert are_all_equal(copy_weights(first), copy_weights(second))


def test_a_restored_checkpoint_is_not_written_again(
    glyphs_context: TrainingContext, tmp_path: Path, slow_disk: SlowDisk
) -> None:
    slow_disk.release()
    spec = make_spec("triplet", tmp_path, checkpoint_every=1)
    first = TrialTrainer(spec, glyphs_context)
    first.start_checkpoint(fail_on_error)  # there is no epoch yet
    first.run_epoch()
    first.write_checkpoint()
    (tmp_path / ".writing-triplet-0000.pt-x").touch()  # of a killed process
    second = TrialTrainer(spec, glyphs_context)
    assert second.restore_checkpoint()
    assert [path.name for path in tmp_path.iterdir()] == ["triplet-0000.pt"]
    second.start_checkpoint(fail_on_error)
    second.run_epoch()
    second.start_checkpoint(fail_on_error)
    second.finish_checkpoint()
    assert slow_disk.written == [1, 2]


def fail_on_error(epoch: int, error: OSError) -> None:
    raise AssertionError(f"the checkpoint of epoch {epoch} was not written") from error


def test_a_trial_without_checkpoint_directory_writes_and_restores_nothing(
    glyphs_context: TrainingContext, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    trainer = TrialTrainer(make_spec("triplet"), glyphs_context)
    trainer.write_checkpoint()
    trainer.run_epoch()
    trainer.start_checkpoint(fail_on_error)
    trainer.complete_checkpoint(fail_on_error)
    assert not trainer.restore_checkpoint()
    assert not list(tmp_path.iterdir())


@pytest.mark.xdist_group("ranks")
def test_ranks_continue_together_when_their_checkpoint_cannot_be_written(
    rank_pool: RankPool, tmp_path: Path
) -> None:
    """The first rank must receive the other ranks' rows even if it cannot write them."""
    (tmp_path / "file").write_text("not a directory", encoding="utf-8")
    trial = cases.make_rank_spec("proxy_anchor", kind="features", shard=True)
    results = rank_pool.run(
        3, cases.train_after_failed_write, trial, str(tmp_path / "file" / "folder")
    )
    assert [bool(result["error"]) for result in results] == [True, False, False]
    expected = rank_pool.run(3, cases.train_and_save, trial, str(tmp_path), 2)
    assert [r["score"] for r in results] == [r["score"] for r in expected]


@pytest.mark.xdist_group("ranks")
@pytest.mark.parametrize("shard", [True, False])
def test_ranks_agree_when_to_write_although_their_clocks_differ(
    rank_pool: RankPool, tmp_path: Path, shard: bool
) -> None:
    """The first rank's clock says: the first epoch, then after minutes, then the last."""
    trial = cases.make_rank_spec("proxy_anchor", kind="features", shard=shard, epochs=6)
    results = rank_pool.run(3, cases.train_with_own_clock, trial, str(tmp_path))
    assert [result["saved"] for result in results] == [[1, 4, 6]] * 3
    payload = load_checkpoint(tmp_path, trial.trial)
    assert payload is not None
    assert payload["epoch"] == 6


def test_training_learns_unseen_classes(glyphs_context: TrainingContext) -> None:
    spec = make_spec("proxy_anchor")
    settings = replace(spec.settings, epochs=8, backbone_lr=3e-3, head_lr=3e-3)
    trainer = TrialTrainer(replace(spec, settings=settings), glyphs_context)
    untrained = untrained_metrics(spec, glyphs_context)
    while not trainer.is_done:
        result = trainer.run_epoch()
    assert result["score"] > 1.5 * untrained["map_at_r"]
    assert result["metrics"]["recall_at_1"] > untrained["recall_at_1"]


def test_seeds_differ_and_repeat(glyphs_context: TrainingContext) -> None:
    score = [
        TrialTrainer(make_spec("triplet", seed=seed), glyphs_context).run_epoch()["score"]
        for seed in (1, 1, 2)
    ]
    assert score[0] == score[1] != score[2]


def test_replicas_are_the_seeds_of_a_trial(glyphs_context: TrainingContext) -> None:
    pair = TrialTrainer(make_spec("triplet", replicas=2), glyphs_context).run_epoch()
    single = [
        TrialTrainer(make_spec("triplet", seed=seed), glyphs_context).run_epoch()["score"]
        for seed in (5, 6)
    ]
    assert pair["score"] == pytest.approx(np.mean(single), abs=1e-12)
    assert pair["score_std"] == pytest.approx(np.std(single, ddof=1), abs=1e-12)


def test_folds_train_side_by_side(glyphs_context: TrainingContext) -> None:
    trainer = TrialTrainer(make_spec("triplet", folds=2), glyphs_context)
    assert len(trainer.replicas) == 2
    assert np.isfinite(trainer.run_epoch()["score"])


def test_metrics_are_averaged_by_name() -> None:
    rows = [{"loss": 1.0, "map_at_r": 0.5}, {"loss": 3.0, "map_at_r": 0.25}]
    assert average_metrics(rows) == {"loss": 2.0, "map_at_r": 0.375}


# Every training hyperparameter that a space may search, at a value that is not the default.
CHANGED_PARAMS: dict[str, Any] = {
    "backbone_lr": 3e-3,
    "head_lr": 3e-3,
    "proxy_lr": 3e-2,
    "weight_decay": 0.1,
    "adam_eps": 1e-2,
    "clip_grad": 1e-4,
    "batch_size": 24,
    "images_per_class": 2,
    "pooling": "max",
    "layer_norm": True,
    "embedding_dim": 24,
    "warmup_epochs": 1,
    "bn_freeze": "stats",
    "lr_decay": "none",
}


def train_two_epochs(context: TrainingContext, **changes: Any) -> list[torch.Tensor]:
    spec = make_spec("proxy_anchor")
    settings = replace(spec.settings, epochs=2, **changes)
    trainer = TrialTrainer(replace(spec, settings=settings), context)
    for _ in range(2):
        trainer.run_epoch()
    return copy_weights(trainer)


@pytest.fixture(scope="module")
def default_weights(glyphs_context: TrainingContext) -> list[torch.Tensor]:
    return train_two_epochs(glyphs_context)


@pytest.mark.parametrize("param", CHANGED_PARAMS)
def test_a_training_hyperparameter_changes_what_is_trained(
    param: str, glyphs_context: TrainingContext, default_weights: list[torch.Tensor]
) -> None:
    changed = train_two_epochs(glyphs_context, **{param: CHANGED_PARAMS[param]})
    assert not are_all_equal(changed, default_weights)


def test_every_training_hyperparameter_is_tried(
    glyphs_context: TrainingContext, default_weights: list[torch.Tensor]
) -> None:
    assert set(CHANGED_PARAMS) == set(TRAINING_PARAMS)
    # Otherwise a difference would prove nothing.
    assert are_all_equal(train_two_epochs(glyphs_context), default_weights)


def test_warm_up_keeps_the_backbone_unchanged(glyphs_context: TrainingContext) -> None:
    spec = make_spec("proxy_anchor")
    settings = replace(spec.settings, warmup_epochs=1)
    trainer = TrialTrainer(replace(spec, settings=settings), glyphs_context)
    backbone = trainer.replicas[0].model.backbone
    assert backbone is not None
    before = [p.clone() for p in backbone.parameters()]
    trainer.run_epoch()
    assert are_all_equal(before, list(backbone.parameters()))
    trainer.run_epoch()
    assert not are_all_equal(before, list(backbone.parameters()))


def test_gpu_utilisation_is_sampled_during_training_only(
    glyphs_context: TrainingContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[str] = []
    compute_metrics = ModelReplica.compute_metrics

    def record_evaluation(replica: ModelReplica) -> dict[str, float]:
        events.append("evaluated")
        return compute_metrics(replica)

    monkeypatch.setattr(UsageMonitor, "sample_gpu", lambda _: events.append("sampled"))
    monkeypatch.setattr(ModelReplica, "compute_metrics", record_evaluation)
    TrialTrainer(make_spec("triplet"), glyphs_context).run_epoch()
    assert events[-1] == "evaluated"
    assert set(events[:-1]) == {"sampled"}


@pytest.mark.parametrize("loss", ["proxy_anchor", "triplet"])
def test_bf16_ends_within_seed_noise_of_fp32(loss: str, glyphs_context: TrainingContext) -> None:
    results = {}
    for precision in ("fp32", "bf16"):
        spec = make_spec(loss, replicas=3)
        settings = replace(spec.settings, precision=precision, epochs=4)
        trainer = TrialTrainer(replace(spec, settings=settings), glyphs_context)
        while not trainer.is_done:
            result = trainer.run_epoch()
        results[precision] = result
        assert trainer.describe_environment()["precision"] == precision
    exact, rounded = results["fp32"], results["bf16"]
    assert rounded["score"] != exact["score"], "bf16 has an effect"
    assert abs(rounded["score"] - exact["score"]) < exact["score_std"]


def test_a_checkpoint_of_another_precision_is_not_continued(
    glyphs_context: TrainingContext, tmp_path: Path
) -> None:
    spec = make_spec("triplet", tmp_path)
    first = TrialTrainer(spec, glyphs_context)
    first.run_epoch()
    first.write_checkpoint()
    other = replace(spec, settings=replace(spec.settings, precision="bf16"))
    warnings: list[str] = []
    assert not TrialTrainer(other, glyphs_context).restore_checkpoint(warnings.append)
    assert warnings == ["the checkpoint was trained in another precision than bf16"]
    assert TrialTrainer(spec, glyphs_context).restore_checkpoint()
    assert load_network_weights(other) is not None, "the weights can be used all the same"


def test_ranks_on_different_gpus_take_the_most_precise() -> None:
    class TwoRanks(SingleProcessWorld):
        size = 2

        def all_reduce_max_(self, partial: torch.Tensor) -> None:
            partial.clamp_(min=float(PRECISIONS.index("fp32")))

    cpu = torch.device("cpu")
    assert agree_on_precision("bf16", TwoRanks(cpu)) == "fp32"
    assert agree_on_precision("bf16", SingleProcessWorld(cpu)) == "bf16"
