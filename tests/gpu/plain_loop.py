"""Plain PyTorch training loop, the peer of `make gpu`.

A timm model with a linear embedding, torchvision's transforms in a DataLoader with workers, bf16
autocast, fused AdamW and NormSoftmax in five lines; with several ranks DistributedDataParallel and
SyncBatchNorm. Its images are decoded already, as those of the project are.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

from trainables.device_checks.training_speed import (
    WARM_UP_STEPS,
    SpeedCase,
    TrainingSpeed,
    make_random_images,
    read_peak_memory,
    reset_peak_memory,
)
from trainables.distributed.world import World
from trainables.utils.device import synchronise_device
from trainables.utils.torchvision_import import import_torchvision

TEMPERATURE = 0.05
MAX_WORKERS = 16


@dataclass(frozen=True)
class PlainOptions:
    """Options of the loop.

    Args:
        precision: `bf16` (autocast) or `fp32` (torch's defaults: convolutions in TF32).
        workers: Processes of the DataLoader.
        is_ready: Whether every step uses the same batch, which is on the device already. This is
            the upper bound of a loop without any work for data.
    """

    precision: str = "bf16"
    workers: int = 0
    is_ready: bool = False


class TransformedImages(Dataset[tuple[Tensor, int]]):
    """Random images with the crops and flips of the papers, one at a time."""

    def __init__(self, case: SpeedCase) -> None:
        part = make_random_images(case)
        self._images = torch.from_numpy(part.items).permute(0, 3, 1, 2)
        self._labels = part.labels.tolist()
        v2 = import_torchvision("torchvision.transforms.v2")
        self._transform = v2.Compose(
            [
                v2.RandomResizedCrop(case.image_size, scale=(0.16, 1.0), antialias=True),
                v2.RandomHorizontalFlip(),
                v2.ToDtype(torch.float32, scale=True),
                v2.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
            ]
        )

    def __len__(self) -> int:
        return len(self._labels)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return self._transform(self._images[index]), self._labels[index]


class EmbeddingNetwork(nn.Module):
    """A timm model with a linear embedding, and proxies."""

    def __init__(self, backbone: str, n_classes: int, dim: int = 128) -> None:
        super().__init__()
        import_torchvision()
        import timm

        self.backbone = timm.create_model(backbone, num_classes=0)
        self.head = nn.Linear(self.backbone.num_features, dim)
        self.proxies = nn.Parameter(torch.randn(n_classes, dim))

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Return embeddings and proxies, so that DistributedDataParallel sees all parameters."""
        return self.head(self.backbone(images)), self.proxies


def compute_norm_softmax(embeddings: Tensor, proxies: Tensor, labels: Tensor) -> Tensor:
    """Return NormSoftmax."""
    x = F.normalize(embeddings.float())
    p = F.normalize(proxies)
    return F.cross_entropy(x @ p.T / TEMPERATURE, labels)


def measure_plain_loop(
    case: SpeedCase, device: torch.device, options: PlainOptions, world: World | None = None
) -> TrainingSpeed:
    """Measure the loop; with a world, every rank calls this and trains a share of the batch."""
    size = 1 if world is None else world.size
    reset_peak_memory(device)
    data = TransformedImages(case)
    network: Any = EmbeddingNetwork(case.backbone, n_classes=len(data) // 4).to(device)
    network = network.to(memory_format=torch.channels_last).train()
    if size > 1:
        network = _distribute(network, device)
    optimizer = torch.optim.AdamW(network.parameters(), lr=1e-4, fused=device.type == "cuda")
    batches = _iter_batches(case, data, device, options, case.batch_size // size)
    seconds = 0.0
    n_steps = case.steps * case.repeats
    for step, (images, labels) in enumerate(itertools.islice(batches, WARM_UP_STEPS + n_steps)):
        if step == WARM_UP_STEPS:
            synchronise_device(device)
            seconds = time.perf_counter()
        optimizer.zero_grad(set_to_none=True)
        with _autocast(device, options.precision):
            embeddings, proxies = network(images)
        compute_norm_softmax(embeddings, proxies, labels).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    synchronise_device(device)
    seconds = time.perf_counter() - seconds
    return TrainingSpeed(n_steps * case.batch_size / seconds, read_peak_memory(device))


def measure_plain_ranks(world: World, case: SpeedCase, options: PlainOptions) -> TrainingSpeed:
    """Measure the loop on a rank of an initialised process group."""
    assert dist.is_initialized()
    return measure_plain_loop(case, world.device, options, world)


def _distribute(network: nn.Module, device: torch.device) -> nn.Module:
    if device.type != "cuda":
        return DistributedDataParallel(network)
    sync_type: Any = nn.SyncBatchNorm  # it refuses other devices than CUDA
    synchronised = sync_type.convert_sync_batchnorm(network)
    return DistributedDataParallel(synchronised, device_ids=[device.index])


def count_workers(n_gpus: int = 1) -> int:
    """Return the number of DataLoader workers: the machine's CPUs, shared by its GPUs."""
    return min(MAX_WORKERS, max(1, (os.cpu_count() or 1) // n_gpus))


def _iter_batches(
    case: SpeedCase,
    data: TransformedImages,
    device: torch.device,
    options: PlainOptions,
    batch_size: int,
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield batches without end."""
    loader = DataLoader(
        data,
        batch_size,
        shuffle=True,
        drop_last=True,
        num_workers=options.workers,
        persistent_workers=options.workers > 0,
        # Ranks are spawned, and their workers would be too, each with a copy of all images.
        multiprocessing_context="fork" if options.workers else None,
        pin_memory=device.type == "cuda",
    )

    def upload(images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        images = images.to(device, memory_format=torch.channels_last, non_blocking=True)
        return images, labels.to(device, non_blocking=True)

    if options.is_ready:
        yield from itertools.repeat(upload(*next(iter(loader))))
    while True:
        for images, labels in loader:
            yield upload(images, labels)


def _autocast(device: torch.device, precision: str) -> contextlib.AbstractContextManager[Any]:
    if precision == "bf16":
        return torch.autocast(device.type, torch.bfloat16)
    return contextlib.nullcontext()
