"""Gradients of several ranks against those of one process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from trainables.config import TrainingSettings, TrialSpec
from trainables.data.dataset import Dataset, DatasetPart
from trainables.device_checks.numerics import find_largest_difference
from trainables.device_checks.rank_processes import run_on_ranks
from trainables.distributed.world import SingleProcessWorld, World
from trainables.training.context import TrainingContext
from trainables.training.replica import ModelReplica
from trainables.training.tasks import FoldTask

RANK_TOLERANCE = 1e-9
N_CLASSES, IMAGES_PER_CLASS, IMAGE_SIZE, BATCH_SIZE = 12, 4, 16, 30

Gradients = dict[str, Tensor]


@dataclass(frozen=True)
class RankCase:
    """A loss whose gradients are compared.

    Args:
        loss: Name of the loss.
        params: Hyperparameters of the loss.
        shard_proxies: Whether every rank holds the proxies of a share of the classes.
    """

    loss: str
    params: Mapping[str, Any] = field(default_factory=dict)
    shard_proxies: bool = False

    @property
    def title(self) -> str:
        """Return a name for tables."""
        return f"{self.loss}, sharded" if self.shard_proxies else self.loss


def compare_ranks(
    cases: Sequence[RankCase], n_ranks: int, device: torch.device
) -> dict[str, float]:
    """Return the largest relative difference of gradients between `n_ranks` ranks and one process.

    The encoder has convolutions and batch norm, and everything is in float64. Batches are uneven:
    ranks have different numbers of images.

    Args:
        cases: Losses to compare.
        n_ranks: World size.
        device: Device of the single process; ranks use GPUs if it is one, else CPUs.
    """
    alone = SingleProcessWorld(device)
    expected = compute_all_gradients(alone, cases)
    results = run_on_ranks(compute_all_gradients, n_ranks, device.type, cases)
    differences = {}
    for case in cases:
        reference = expected[case.title]
        names = sorted(reference)
        differences[case.title] = max(
            find_largest_difference(
                [result[case.title][name] for name in names], [reference[name] for name in names]
            )
            for result in results
        )
    return differences


def compute_all_gradients(world: World, cases: Sequence[RankCase]) -> dict[str, Gradients]:
    """Return the gradients of one batch for every case, on the CPU."""
    return {case.title: compute_gradients(world, case) for case in cases}


def compute_gradients(world: World, case: RankCase) -> Gradients:
    """Return the gradients of one batch by name, with shards concatenated."""
    replica = _make_replica(world, case)
    replica._start_epoch(0, 7)
    generator = torch.Generator().manual_seed(5)
    batch = np.random.default_rng(1).permutation(N_CLASSES * IMAGES_PER_CLASS)[: BATCH_SIZE + 1]
    replica.compute_gradients(batch, generator)
    gradients = {f"model.{n}": p.grad for n, p in replica.model.named_parameters()}
    for name, parameter in replica.loss.named_parameters():
        gradient = parameter.grad
        if gradient is not None and case.shard_proxies and name == "proxies":
            gradient = world.all_gather(gradient, N_CLASSES)
        gradients[f"loss.{name}"] = gradient
    return {name: g.detach().cpu() for name, g in gradients.items() if g is not None}


def _make_replica(world: World, case: RankCase) -> ModelReplica:
    """Return a replica of conv4 in float64."""
    random = np.random.default_rng(3)
    labels = np.repeat(np.arange(N_CLASSES, dtype=np.int64), IMAGES_PER_CLASS)
    shape = (len(labels), IMAGE_SIZE, IMAGE_SIZE, 3)
    part = DatasetPart(random.integers(0, 256, shape, dtype=np.uint8), labels)
    data = Dataset("random", part, part, tuple(str(i) for i in range(N_CLASSES)), "random")
    context = TrainingContext(data, {"name": "conv4"}, None, IMAGE_SIZE, Path())
    spec = TrialSpec(
        trial="ranks",
        loss=case.loss,
        loss_knobs=case.params,
        settings=TrainingSettings(
            batch_size=BATCH_SIZE, embedding_dim=8, augment="papers", precision="fp32"
        ),
        seed=1,
        dataset={},
        backbone={},
        cache_dir="",
        resources={"shard_proxies": case.shard_proxies},
    )
    replica = ModelReplica(spec, context, FoldTask(part, part), seed=1, fold=0, world=world)
    replica.model.double().train()
    replica.loss.double()
    return replica
