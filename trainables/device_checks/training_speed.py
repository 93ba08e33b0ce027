"""Throughput and peak memory of training steps on random images."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from trainables.config import TrainingSettings, TrialSpec
from trainables.data.dataset import Dataset, DatasetPart
from trainables.distributed.world import SingleProcessWorld, World
from trainables.training.context import INPUT_CROP_FRACTION, TrainingContext
from trainables.training.replica import ModelReplica
from trainables.training.tasks import FoldTask

IMAGES_PER_CLASS = 4
WARM_UP_STEPS = 3


@dataclass(frozen=True, kw_only=True)
class SpeedCase:
    """A training whose speed is measured.

    Args:
        backbone: Name of the backbone.
        image_size: Side of the network's input in pixels.
        batch_size: Images per step, over all ranks.
        loss: Name of the loss.
        loss_params: Hyperparameters of the loss.
        settings: Other training hyperparameters.
        steps: Timed steps of a repeat.
        repeats: Number of repeats, of which the median counts.
    """

    backbone: str = "resnet50"
    image_size: int = 224
    batch_size: int = 120
    loss: str = "norm_softmax"
    loss_params: Mapping[str, Any] = field(default_factory=lambda: {"temperature": 0.05})
    settings: Mapping[str, Any] = field(default_factory=dict)
    steps: int = 10
    repeats: int = 3


@dataclass(frozen=True)
class TrainingSpeed:
    """Result of a measurement.

    Args:
        images_per_second: Images of all ranks.
        peak_memory_bytes: Largest memory of this rank's tensors, stored images included; None if
            the device does not count it.
    """

    images_per_second: float
    peak_memory_bytes: int | None


def measure_training_speed(case: SpeedCase, world: World) -> TrainingSpeed:
    """Measure training steps on the ranks of a world; every rank calls this."""
    reset_peak_memory(world.device)
    replica = make_replica(case, world)
    replica.time_training_steps(WARM_UP_STEPS)
    durations = []
    for _ in range(case.repeats):
        seconds, share = replica.time_training_steps(case.steps)
        n_steps = round(share * len(replica.task.train) / case.batch_size)
        durations.append(seconds / max(1, n_steps))
    return TrainingSpeed(
        case.batch_size / statistics.median(durations), read_peak_memory(world.device)
    )


def measure_device_speed(case: SpeedCase, device: torch.device) -> TrainingSpeed:
    """Measure training steps of a single process."""
    return measure_training_speed(case, SingleProcessWorld(device))


def make_replica(case: SpeedCase, world: World) -> ModelReplica:
    """Return a replica that trains on random images."""
    part = make_random_images(case)
    names = tuple(str(label) for label in np.unique(part.labels))
    data = Dataset("random", part, part, names, "random")
    context = TrainingContext(data, {"name": case.backbone}, None, case.image_size, Path())
    spec = TrialSpec(
        trial="speed",
        loss=case.loss,
        loss_knobs=case.loss_params,
        settings=TrainingSettings(
            batch_size=case.batch_size,
            images_per_class=IMAGES_PER_CLASS,
            augment="papers",
            **case.settings,
        ),
        seed=0,
        dataset={},
        backbone={},
        cache_dir="",
    )
    return ModelReplica(spec, context, FoldTask(part, part), seed=0, fold=0, world=world)


def make_random_images(case: SpeedCase) -> DatasetPart:
    """Return random images for the steps of a measurement, stored larger than the input."""
    n = case.batch_size * (1 + max(case.steps, WARM_UP_STEPS))
    side = round(case.image_size / INPUT_CROP_FRACTION)
    pixels = np.random.default_rng(0).integers(0, 256, (n, side, side, 3), dtype=np.uint8)
    return DatasetPart(pixels, np.arange(n, dtype=np.int64) // IMAGES_PER_CLASS)


def reset_peak_memory(device: torch.device) -> None:
    """Start to count the peak memory of a device again."""
    if device.type == "cuda":
        # The statistics of a device exist from then on.
        torch.cuda.init()  # type: ignore[no-untyped-call]
    module = torch.get_device_module(device)
    if hasattr(module, "reset_peak_memory_stats"):
        module.reset_peak_memory_stats(device)


def read_peak_memory(device: torch.device) -> int | None:
    """Return the largest memory of tensors since the last reset; None if it is not counted."""
    module = torch.get_device_module(device)
    if not hasattr(module, "max_memory_allocated"):
        return None
    return int(module.max_memory_allocated(device))
