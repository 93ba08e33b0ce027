"""Micro-batches: gradients of the whole batch with the memory of a part of it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from search_spaces import get_space
from tests.support.trial_specs import GLYPHS, LOSS_PARAMS, make_spec
from trainables.actors.worker import TrialWorker
from trainables.config import TrainingSettings, TrialSpec
from trainables.losses import LOSSES as ALL_LOSSES
from trainables.losses import loss_params
from trainables.models.embedding import EmbeddingModel
from trainables.training.context import TrainingContext, open_context
from trainables.training.micro_batches import (
    MemoryPlan,
    RandomState,
    has_live_batch_norm,
    pause_running_statistics,
)
from trainables.training.replica import ModelReplica
from trainables.training.trial_trainer import TrialTrainer

pytestmark = pytest.mark.slow
VIT: dict[str, Any] = {"name": "vit_tiny_patch16_224", "image_size": 32}
RESNET: dict[str, Any] = {"name": "resnet18"}
SMALL_GLYPHS = {"name": "glyphs", "classes": 48, "samples": 4, "size": 32}
SETTINGS = TrainingSettings(epochs=2, batch_size=20, embedding_dim=8, augment="light")


@pytest.fixture(scope="module")
def contexts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, TrainingContext]:
    cache = Path(tmp_path_factory.mktemp("cache"))
    backbones = {"vit": VIT, "resnet": RESNET, "conv4": {"name": "conv4"}}
    return {k: open_context(SMALL_GLYPHS, b, cache_dir=cache) for k, b in backbones.items()}


def build_spec(loss: str, **settings: Any) -> TrialSpec:
    known, published = loss_params(loss), get_space(loss).published[0].values
    params = {k: v for k, v in published.items() if k in known}
    return replace(
        make_spec("triplet"),
        loss=loss,
        loss_knobs=LOSS_PARAMS.get(loss, params),
        dataset=SMALL_GLYPHS,
        settings=replace(SETTINGS, **settings),
    )


def compute_gradients(
    spec: TrialSpec, context: TrainingContext, dtype: torch.dtype
) -> list[Tensor]:
    """Return the loss and the gradients of one batch."""
    replica = TrialTrainer(spec, context).replicas[0]
    replica.model.to(dtype)
    replica.loss.to(dtype)
    replica._start_epoch(0, 1)
    batch = replica._draw_batches(1)[0]
    torch.manual_seed(7)
    value = replica.compute_gradients(batch, torch.Generator().manual_seed(0))
    parameters = [*replica.model.parameters(), *replica.loss.parameters()]
    return [torch.tensor(value), *(p.grad for p in parameters if p.grad is not None)]


def assert_equal_gradients(spec: TrialSpec, context: TrainingContext) -> None:
    """Assert equality at 1e-9 in float64 and at 1e-5, or float32's own error, in float32."""
    divided = replace(spec, settings=replace(spec.settings, micro_batch=7))
    exact = compute_gradients(spec, context, torch.float64)
    assert measure_error(compute_gradients(divided, context, torch.float64), exact) < 1e-9
    whole = compute_gradients(spec, context, torch.float32)
    parts = compute_gradients(divided, context, torch.float32)
    assert measure_error(parts, whole) < max(1e-5, 2 * measure_error(whole, exact))


def measure_error(computed: list[Tensor], expected: list[Tensor]) -> float:
    """Return the largest difference, relative to the largest gradient or to the loss."""
    largest = max(float(gradient.abs().max()) for gradient in expected[1:])
    scales = [abs(float(expected[0])), *[largest] * (len(expected) - 1)]
    return max(
        float((one.double() - other.double()).abs().max()) / scale
        for one, other, scale in zip(computed, expected, scales, strict=True)
    )


LOSSES = [*ALL_LOSSES, "proxy_anchor+synthesis", "norm_softmax+synthesis"]


@pytest.mark.parametrize("loss", LOSSES)
def test_gradients_are_those_of_the_whole_batch(
    loss: str, contexts: dict[str, TrainingContext]
) -> None:
    spec = build_spec(loss, bn_freeze="stats")
    assert_equal_gradients(spec, contexts["conv4"])


def test_gradients_of_layer_norm_and_dropout(contexts: dict[str, TrainingContext]) -> None:
    spec = build_spec("proxy_anchor")
    assert_equal_gradients(spec, contexts["vit"])


def test_random_layers_draw_the_same_numbers_in_both_passes(
    contexts: dict[str, TrainingContext], monkeypatch: pytest.MonkeyPatch
) -> None:
    def embed(self: EmbeddingModel, items: Tensor) -> Tensor:
        dropped = nn.functional.dropout(items.flatten(1), p=0.5, training=True)
        seen.append(dropped.detach())
        embedded: Tensor = self.head(self.norm(dropped[:, : self.head.in_features]))
        return embedded

    seen: list[Tensor] = []
    monkeypatch.setattr(EmbeddingModel, "_embed", embed)
    spec = build_spec("triplet", bn_freeze="stats", micro_batch=7)
    compute_gradients(spec, contexts["conv4"], torch.float32)
    first, second = seen[: len(seen) // 2], seen[len(seen) // 2 :]
    assert len(first) == 3
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


def test_live_batch_norm_is_refused_unless_allowed(contexts: dict[str, TrainingContext]) -> None:
    spec = build_spec("triplet", micro_batch=7)
    with pytest.raises(ValueError, match=r"bn_freeze.*per_micro_batch_norm"):
        TrialTrainer(spec, contexts["resnet"])
    TrialTrainer(build_spec("triplet", micro_batch=20), contexts["resnet"])
    allowed = build_spec("triplet", micro_batch=7, per_micro_batch_norm=True)
    trainer = TrialTrainer(allowed, contexts["resnet"])
    trainer.run_epoch()
    # One update of the running statistics for each micro-batch, although it is embedded twice.
    norm = next(m for m in trainer.replicas[0].model.modules() if isinstance(m, nn.BatchNorm2d))
    batches = [len(b) for b in trainer.replicas[0]._draw_batches(1)]
    assert int(norm.num_batches_tracked or 0) == sum(-(-n // 7) for n in batches)


def test_statistics_of_micro_batches_with_repeated_activations_are_updated_once(
    contexts: dict[str, TrainingContext],
) -> None:
    buffers = []
    for checkpointing in (False, True):
        spec = build_spec("triplet", micro_batch=7, per_micro_batch_norm=True)
        spec = replace(spec, resources={"checkpoint_activations": checkpointing})
        trainer = TrialTrainer(spec, contexts["resnet"])
        trainer.run_epoch()
        buffers.append(dict(trainer.replicas[0].model.named_buffers()))
    plain, repeated = buffers
    for name, value in plain.items():
        if name.endswith("num_batches_tracked"):
            assert int(repeated[name]) == int(value) > 0
        else:
            torch.testing.assert_close(repeated[name], value, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
    ],
)
def test_a_trial_that_runs_out_of_memory_finishes_with_micro_batches(
    contexts: dict[str, TrainingContext],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    error: RuntimeError,
) -> None:
    original = EmbeddingModel._embed

    def embed(self: EmbeddingModel, items: Tensor) -> Tensor:
        if torch.is_grad_enabled() and len(items) > 6:
            raise error
        return original(self, items)

    spec = replace(build_spec("proxy_anchor"), backbone=VIT, cache_dir=str(tmp_path))
    expected = TrialTrainer(spec, contexts["vit"]).run_epoch()
    monkeypatch.setattr(EmbeddingModel, "_embed", embed)
    worker = TrialWorker()
    worker.assign_trial(spec)
    first, last = worker.step(), worker.step()
    assert (first["state"], last["state"]) == ("running", "finished")
    assert "micro-batches of 5 images" in first["warning"]
    assert last["warning"] == ""
    assert first["metrics"]["loss"] == pytest.approx(expected["metrics"]["loss"], rel=1e-4)


def test_ranks_begin_with_the_memory_that_was_left_to_them(
    contexts: dict[str, TrainingContext],
) -> None:
    spec = replace(build_spec("triplet"), resources={"memory_level": 2})
    trainer = TrialTrainer(spec, contexts["vit"])
    assert trainer.replicas[0]._memory.micro_batch == 5
    assert "micro-batches of 5 images" in trainer.pop_memory_notes()[0]
    with pytest.raises(RuntimeError, match="does not fit"):
        TrialTrainer(replace(spec, resources={"memory_level": 16}), contexts["conv4"])


def test_with_live_batch_norm_activations_are_computed_twice_instead(
    contexts: dict[str, TrainingContext], monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = build_spec("proxy_anchor")
    expected = compute_gradients(spec, contexts["resnet"], torch.float64)
    original = ModelReplica._compute_step_gradients

    def compute(self: ModelReplica, inputs: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        if not self._memory.checkpoints_activations:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return original(self, inputs, labels)

    monkeypatch.setattr(ModelReplica, "_compute_step_gradients", compute)
    computed = compute_gradients(spec, contexts["resnet"], torch.float64)
    for one, other in zip(computed, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9 * float(other.abs().max()))


def test_repeated_activations_do_not_update_statistics_twice(
    contexts: dict[str, TrainingContext],
) -> None:
    buffers = []
    for checkpointing in (False, True):
        spec = replace(
            build_spec("proxy_anchor"), resources={"checkpoint_activations": checkpointing}
        )
        trainer = TrialTrainer(spec, contexts["resnet"])
        trainer.run_epoch()
        buffers.append(dict(trainer.replicas[0].model.named_buffers()))
    plain, repeated = buffers
    assert any("running_mean" in name for name in plain)
    for name, value in plain.items():
        torch.testing.assert_close(repeated[name], value, rtol=1e-4, atol=1e-5)


def test_a_backbone_without_activation_checkpointing_is_refused(
    contexts: dict[str, TrainingContext],
) -> None:
    spec = replace(build_spec("triplet"), resources={"checkpoint_activations": True})
    with pytest.raises(ValueError, match="checkpoint_activations"):
        TrialTrainer(spec, contexts["conv4"])


def test_memory_is_reduced_until_nothing_is_left() -> None:
    plan = MemoryPlan(nn.Linear(2, 2), replace(SETTINGS, batch_size=20))
    sizes = []
    while plan.reduce():
        sizes.append(plan.micro_batch)
    assert sizes == [10, 5, 3, 2, 1]
    with_norm = MemoryPlan(nn.Sequential(nn.BatchNorm1d(2)), SETTINGS)
    assert with_norm.reduce() == ""
    assert [len(c) for c in plan.split(torch.zeros(3, 2))] == [1, 1, 1]
    assert [len(c) for c in with_norm.split(torch.zeros(0, 2))] == [0]
    divided = MemoryPlan(nn.Linear(2, 2), SETTINGS, n_ranks=3)
    assert divided.reduce() == "micro-batches of 4 images", "half of a share of seven"
    larger = MemoryPlan(nn.Linear(2, 2), SETTINGS)
    assert len(larger.split(torch.zeros(25, 2))) == 1, "a batch may be larger than batch_size"


def test_batch_norm_is_live_if_it_trains() -> None:
    model = nn.Sequential(nn.Conv2d(1, 1, 1), nn.BatchNorm2d(1)).eval()
    assert has_live_batch_norm(model)
    assert not model.training
    assert not has_live_batch_norm(nn.LayerNorm(2))


def test_paused_statistics_are_restored() -> None:
    norm = nn.BatchNorm1d(2)
    before = {k: v.clone() for k, v in norm.state_dict().items()}
    x = torch.randn(8, 2)
    with pause_running_statistics(norm):
        norm(x)
    assert all(torch.equal(v, before[k]) for k, v in norm.state_dict().items())
    norm(x)
    assert not torch.equal(norm.running_mean, before["running_mean"])  # type: ignore[arg-type]
    assert int(norm.num_batches_tracked or 0) == 1


def test_random_states_are_restored() -> None:
    state = RandomState(torch.device("cpu"))
    first = torch.rand(3)
    state.restore()
    assert torch.equal(torch.rand(3), first)


def test_micro_batches_do_not_change_the_training_key() -> None:
    spec = make_spec("triplet", dataset=GLYPHS)
    smaller = replace(spec, settings=replace(spec.settings, micro_batch=4))
    assert smaller.training_key() == spec.training_key()
    other = replace(smaller, settings=replace(smaller.settings, per_micro_batch_norm=True))
    assert other.training_key() != spec.training_key()
