"""A training step on an accelerator neither waits for the device nor uploads anything."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support.pretend_device import DeviceCounters, count_device_work, register_pretend_device
from tests.support.trial_specs import LOSS_PARAMS, make_spec
from trainables.config import TrainingSettings, TrialSpec
from trainables.distributed.world import SingleProcessWorld
from trainables.training.context import TrainingContext, open_context
from trainables.training.evaluation import embed_on_device, score_embeddings
from trainables.training.loss_monitor import LossMonitor
from trainables.training.trial_trainer import TrialTrainer

DEVICE = register_pretend_device()
GLYPHS = {"name": "glyphs", "classes": 48, "samples": 4, "size": 32}
BACKBONES: dict[str, dict[str, Any]] = {
    "conv4": {"name": "conv4"},
    "resnet": {"name": "resnet18"},
    "vit": {"name": "vit_tiny_patch16_224", "image_size": 32},
    "features": {"name": "conv4", "frozen": True},
}

# Losses do not depend on the network, so the larger networks are trained with one of them.
STEPS = [
    *((kind, loss) for kind in ("conv4", "features") for loss in LOSS_PARAMS),
    ("resnet", "proxy_anchor"),
    ("vit", "proxy_anchor"),
]


@pytest.fixture(scope="module")
def contexts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, TrainingContext]:
    """Contexts by kind of network."""
    cache = tmp_path_factory.mktemp("cache")
    opened = {
        kind: open_context(GLYPHS, backbone, cache_dir=Path(cache))
        for kind, backbone in BACKBONES.items()
    }
    # Features are computed in a thread, which the pretend device does not follow.
    opened["features"].prepare_data("avg", torch.device("cpu"))
    return opened


def build_spec(kind: str, loss: str) -> TrialSpec:
    settings = TrainingSettings(epochs=2, batch_size=16, embedding_dim=8, augment="papers")
    if kind == "features":
        settings = replace(settings, augment="none")
    return make_spec(loss, settings=settings, dataset=GLYPHS, backbone=BACKBONES[kind])


def count_steady_step(spec: TrialSpec, context: TrainingContext) -> DeviceCounters:
    """Return what the third training step of an epoch asks of the device."""
    with count_device_work() as counters:
        replica = TrialTrainer(spec, context, SingleProcessWorld(DEVICE)).replicas[0]
        replica._start_epoch(0, 1)
        monitor = LossMonitor(replica.world)
        batches = replica._draw_batches(1)[:4]
        steps = replica._iter_batches(batches, torch.Generator().manual_seed(0))
        for step, (inputs, labels) in enumerate(steps):
            replica._run_training_step(inputs, labels, monitor)
            if step == 1:
                for counter in (counters.launches, counters.waits, counters.uploads):
                    counter.clear()
            if step == 2:
                break
    return counters


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "loss"), STEPS)
def test_a_step_neither_waits_nor_uploads(
    kind: str, loss: str, contexts: dict[str, TrainingContext]
) -> None:
    counters = count_steady_step(build_spec(kind, loss), contexts[kind])
    assert dict(counters.waits) == {}
    assert dict(counters.uploads) == {}
    assert sum(counters.launches.values()) > 20


@pytest.mark.parametrize("kind", ["conv4", "features"])
def test_scores_on_a_device_are_those_of_the_cpu(
    kind: str, contexts: dict[str, TrainingContext]
) -> None:
    results = []
    for device in (torch.device("cpu"), DEVICE):
        spec = replace(build_spec(kind, "proxy_anchor"), resources={"gpus_per_trial": 1})
        spec = replace(spec, settings=replace(spec.settings, augment="none"))
        with count_device_work():
            trainer = TrialTrainer(spec, contexts[kind], SingleProcessWorld(device))
            results.append(trainer.run_epoch()["metrics"])
    cpu, pretend = results
    assert pretend["loss"] == pytest.approx(cpu["loss"], rel=1e-4)
    assert pretend["map_at_r"] == pytest.approx(cpu["map_at_r"], abs=0.02)


def test_embeddings_are_scored_where_they_are(contexts: dict[str, TrainingContext]) -> None:
    spec = build_spec("conv4", "proxy_anchor")
    with count_device_work() as counters:
        replica = TrialTrainer(spec, contexts["conv4"], SingleProcessWorld(DEVICE)).replicas[0]
        vectors = embed_on_device(
            replica.model, replica.task.evaluation, replica.augment, replica.world
        )
        assert vectors.device == DEVICE
        on_host = vectors.cpu()
        counters.waits.clear()
        found = score_embeddings(vectors, replica.task.evaluation, spec, replica.world)
        downloads = sum(counters.waits.values())
    expected = score_embeddings(on_host, replica.task.evaluation, spec)
    assert found == expected
    # The check for NaN, margins and ties of the search, the vectors that are compared on the CPU,
    # and the scores: not one for each query or block.
    assert downloads < 25, dict(counters.waits)
