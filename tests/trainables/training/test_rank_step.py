"""A training step of two ranks neither waits nor uploads, and starts few more kernels than one.

The other rank is a mirror of the first, so that one process suffices. On a GPU an exchange is a
kernel of the communication library; exchanges are counted apart from the launches.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor

from search_spaces import get_space
from tests.support.mirrored_world import MirroredWorld
from tests.support.native_batch_norm import register_native_batch_norm
from tests.support.pretend_device import count_device_work, register_pretend_device
from tests.support.trial_specs import make_spec
from trainables.config import TrainingSettings, TrialSpec
from trainables.distributed.exchange import PendingExchange
from trainables.distributed.world import SingleProcessWorld, World
from trainables.losses import LOSSES, loss_params
from trainables.training.context import TrainingContext, open_context
from trainables.training.loss_monitor import LossMonitor
from trainables.training.trial_trainer import TrialTrainer

pytestmark = pytest.mark.split

DEVICE = register_pretend_device()
MAX_LAUNCH_RATIO = 1.3
# Per batch norm, one process starts three kernels; two ranks start five and exchange twice.
MAX_RATIO_WITH_EXCHANGES = 1.45
GLYPHS = {"name": "glyphs", "classes": 48, "samples": 4, "size": 32}
BACKBONES: dict[str, dict[str, Any]] = {
    "resnet18": {"name": "resnet18"},
    "resnet50": {"name": "resnet50"},
    "vit": {"name": "vit_tiny_patch16_224", "image_size": 32},
    "features": {"name": "conv4", "frozen": True},
}
BATCH_NORM_LAYERS = {"resnet18": 20, "resnet50": 53, "vit": 0, "features": 0}
ALL_LOSSES = [
    *LOSSES,
    *(f"{name}+synthesis" for name, info in LOSSES.items() if info.family == "proxy"),
]
# Losses do not depend on the network, so the larger networks are trained with two of them.
STEPS = [
    *(("features", loss) for loss in ALL_LOSSES),
    *((kind, "proxy_anchor") for kind in ("resnet18", "resnet50", "vit")),
    ("resnet18", "norm_softmax+synthesis"),
]


class StepWork(NamedTuple):
    """What a training step in steady state asks of the device and of the other ranks."""

    launches: int
    waits: dict[str, int]
    uploads: dict[str, int]
    exchanges: Counter[str]


@pytest.fixture(scope="module")
def contexts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, TrainingContext]:
    """Contexts by kind of network."""
    register_native_batch_norm()
    cache = tmp_path_factory.mktemp("cache")
    opened = {
        kind: open_context(GLYPHS, backbone, cache_dir=Path(cache))
        for kind, backbone in BACKBONES.items()
    }
    # Features are computed in a thread, which the pretend device does not follow.
    opened["features"].prepare_data("avg", torch.device("cpu"))
    return opened


def build_spec(kind: str, loss: str, **resources: Any) -> TrialSpec:
    augment = "none" if kind == "features" else "papers"
    settings = TrainingSettings(epochs=2, batch_size=16, embedding_dim=8, augment=augment)
    known = loss_params(loss)
    published = get_space(loss).published[0].values
    return replace(
        make_spec("triplet", settings=settings, dataset=GLYPHS, backbone=BACKBONES[kind]),
        loss=loss,
        loss_knobs={key: value for key, value in published.items() if key in known},
        resources=resources,
    )


def measure_steady_step(spec: TrialSpec, context: TrainingContext, world: World) -> StepWork:
    """Return the work of the third training step of an epoch."""
    exchanges = world.exchanges if isinstance(world, MirroredWorld) else Counter[str]()
    with count_device_work() as counters:
        replica = TrialTrainer(spec, context, world).replicas[0]
        replica._start_epoch(0, 1)
        monitor = LossMonitor(world)
        batches = replica._draw_batches(1)[:4]
        steps = replica._iter_batches(batches, torch.Generator().manual_seed(0))
        for step, (inputs, labels) in enumerate(steps):
            replica._run_training_step(inputs, labels, monitor)
            if step == 1:
                for counter in (counters.launches, counters.waits, counters.uploads, exchanges):
                    counter.clear()
            if step == 2:
                break
    launches = sum(counters.launches.values())
    return StepWork(launches, dict(counters.waits), dict(counters.uploads), Counter(exchanges))


@pytest.mark.parametrize(("kind", "loss"), STEPS)
def test_a_step_of_two_ranks(kind: str, loss: str, contexts: dict[str, TrainingContext]) -> None:
    spec = build_spec(kind, loss)
    one = measure_steady_step(spec, contexts[kind], SingleProcessWorld(DEVICE))
    two = measure_steady_step(spec, contexts[kind], MirroredWorld())
    assert two.waits == one.waits == {}
    assert two.uploads == one.uploads == {}
    assert two.launches <= MAX_LAUNCH_RATIO * one.launches
    n_exchanges = sum(two.exchanges.values())
    assert two.launches + n_exchanges <= MAX_RATIO_WITH_EXCHANGES * one.launches
    layers = BATCH_NORM_LAYERS[kind]
    assert two.exchanges["all_gather"] == layers + 1  # statistics, and the embeddings
    assert 1 <= two.exchanges["all_reduce"] - layers <= 4  # sums of gradients, and the buckets
    assert two.exchanges["broadcast"] <= 1  # gradients of the loss


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("loss", ["norm_softmax", "proxy_anchor", "soft_triple+synthesis"])
def test_a_step_with_sharded_proxies(
    loss: str, rank: int, contexts: dict[str, TrainingContext]
) -> None:
    spec = build_spec("features", loss, shard_proxies=True)
    two = measure_steady_step(spec, contexts["features"], MirroredWorld(rank))
    assert two.waits == {}
    assert two.uploads == {}


class BackwardRecorder(MirroredWorld):
    """World that notes whether sums of gradients begin inside a backward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.began_in_backward: list[bool] = []

    def start_all_reduce_sum(self, partial: Tensor) -> PendingExchange:
        self.began_in_backward.append(torch._C._current_graph_task_id() != -1)
        return super().start_all_reduce_sum(partial)


def test_gradients_are_exchanged_during_backward(contexts: dict[str, TrainingContext]) -> None:
    world = BackwardRecorder()
    measure_steady_step(build_spec("resnet18", "proxy_anchor"), contexts["resnet18"], world)
    n_buckets = len(world.began_in_backward) // 3
    assert n_buckets >= 2
    assert world.began_in_backward == [False] * n_buckets + [True] * 2 * n_buckets


def test_batches_that_the_ranks_cannot_divide_evenly(contexts: dict[str, TrainingContext]) -> None:
    spec = build_spec("resnet18", "proxy_anchor")
    spec = replace(spec, settings=replace(spec.settings, batch_size=15))
    for rank in (0, 1):
        two = measure_steady_step(spec, contexts["resnet18"], MirroredWorld(rank))
        assert two.waits == {}
        assert two.uploads == {}


def test_a_batch_smaller_than_the_world_is_refused_on_a_device(
    contexts: dict[str, TrainingContext],
) -> None:
    spec = build_spec("features", "proxy_anchor")
    with count_device_work():
        replica = TrialTrainer(spec, contexts["features"], MirroredWorld()).replicas[0]
        with pytest.raises(ValueError, match=r"a batch of 1 .* 2 ranks.*batch_size"):
            replica.compute_gradients(np.array([3]), torch.Generator())
