"""Model replica: the loss it builds, its gradients, its state, and divergence."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from tests.support.rank_cases import count_heartbeats, make_rank_spec, make_replica
from tests.support.rank_pool import CPU, RankPool
from tests.support.trial_specs import LOSS_PARAMS, make_spec
from trainables.distributed.world import SingleProcessWorld
from trainables.losses.kernels.blocks import MemoryBudget
from trainables.training.context import TrainingContext
from trainables.training.errors import DivergedError
from trainables.training.trial_trainer import TrialTrainer


def test_the_memory_limit_of_a_study_reaches_its_loss(glyphs_context: TrainingContext) -> None:
    for resources, keep_bytes in (({"keep_mib": 2.0}, 2 * 2**20), ({}, 384 * 2**20)):
        spec = make_spec("proxy_anchor", resources=resources)
        (replica,) = TrialTrainer(spec, glyphs_context).replicas
        budgets = [getattr(m, "budget", None) for m in replica.loss.modules()]
        assert {b.keep_bytes for b in budgets if isinstance(b, MemoryBudget)} == {keep_bytes}


def test_a_state_with_the_learned_temperature_among_the_proxies_still_loads(
    glyphs_context: TrainingContext,
) -> None:
    params = {**LOSS_PARAMS["proxy_nca_pp"], "temperature_mode": "learned"}
    spec = make_spec("proxy_nca_pp", loss_knobs=params)
    trainer = TrialTrainer(spec, glyphs_context)
    trainer.run_epoch()
    (replica,) = trainer.replicas
    state = replica.state_dict()
    *rest, proxies, scalars = state["optimizer"]["param_groups"]
    assert (proxies["name"], scalars["name"]) == ("proxies", "scalars")
    old = {**proxies, "params": proxies["params"] + scalars["params"]}
    state["optimizer"]["param_groups"] = [*rest, old]
    other = TrialTrainer(spec, glyphs_context).replicas[0]
    other.load_state_dict(state)
    assert other.state_dict()["optimizer"]["param_groups"][-1]["weight_decay"] == 0.0
    for index, saved in state["optimizer"]["state"].items():
        loaded = other.state_dict()["optimizer"]["state"][index]
        assert torch.equal(loaded["exp_avg"], saved["exp_avg"])


@pytest.mark.parametrize("loss", ["softmax", "pml:LargeMarginSoftmaxLoss"])
def test_losses_that_depend_on_lengths_receive_raw_embeddings(
    loss: str, glyphs_context: TrainingContext
) -> None:
    """A softmax over inner products of unit vectors could hardly separate classes."""
    spec = replace(make_spec("triplet"), loss=loss, loss_knobs={})
    replica = TrialTrainer(spec, glyphs_context).replicas[0]
    replica.model.head.weight.data *= 20.0
    batch = np.arange(0, 64, 2)
    value = replica.compute_gradients(batch, torch.Generator().manual_seed(1))
    assert replica.augment is not None
    inputs = replica.augment.augment_images(
        replica.task.train.read_items(batch), torch.Generator().manual_seed(1)
    )
    with torch.no_grad():
        vectors = replica.model.head(replica.model.extract_features(inputs))
        labels = torch.from_numpy(replica.task.train.labels[batch])
        assert value == pytest.approx(float(replica.loss(vectors, labels)), rel=1e-4)
        assert value != pytest.approx(float(replica.loss(replica.model(inputs), labels)), rel=1e-2)


@pytest.mark.parametrize("loss", LOSS_PARAMS)
def test_a_nan_loss_is_a_divergence(loss: str, glyphs_context: TrainingContext) -> None:
    trainer = TrialTrainer(make_spec(loss), glyphs_context)
    with torch.no_grad():
        trainer.replicas[0].model.head.weight.fill_(float("nan"))
    with pytest.raises(DivergedError, match="diverged"):
        trainer.run_epoch()


def test_the_order_of_items_in_a_batch_does_not_matter(glyphs_context: TrainingContext) -> None:
    batch = np.array([9, 3, 40, 41, 8, 2])
    losses = []
    for order in (batch, batch[::-1].copy()):
        replica = TrialTrainer(make_spec("triplet"), glyphs_context).replicas[0]
        losses.append(replica.compute_gradients(order, torch.Generator().manual_seed(1)))
    assert losses[0] == losses[1]


def test_timed_steps_are_a_fraction_of_an_epoch(glyphs_context: TrainingContext) -> None:
    replica = TrialTrainer(make_spec("triplet"), glyphs_context).replicas[0]
    seconds, share = replica.time_training_steps(2)
    n_steps = len(replica.task.train) / 32
    assert seconds > 0
    assert share == pytest.approx(2 / n_steps, rel=0.1)


def test_ranks_record_every_step_and_every_batch_of_an_evaluation(rank_pool: RankPool) -> None:
    """Metrics and checkpoints may take any time, so ranks are not timed after the evaluation."""
    trial = make_rank_spec("triplet")
    steps = len(make_replica(SingleProcessWorld(CPU), trial)._draw_batches(1))
    assert steps > 1
    first, second = rank_pool.run(2, count_heartbeats, trial)
    assert first == (1 + steps, 1, True, False)
    assert second == (1 + steps, 0, True, False), "the only batch is embedded by the first rank"
