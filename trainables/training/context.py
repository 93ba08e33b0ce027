"""What stays in a process from trial to trial: data, features, the backbone as it came."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch

from trainables.backbone import Backbone, BNFreeze, build_backbone
from trainables.data import Dataset, load_dataset
from trainables.data.augment import Augment
from trainables.data.cache import Progress
from trainables.data.fetch import fetched
from trainables.features import compute_features, weights_fingerprint
from trainables.objects import is_object

CROP = 224 / 256
_SMALL = 96


@dataclass(frozen=True)
class Bench:
    """A data set and a backbone, ready for trials.

    Args:
        dataset: Images or features.
        backbone: Name and options of the backbone; its `name` is `none` for features.
        prototype: The pretrained or frozen backbone as it came; None when it starts at random.
        image_size: Side of the backbone's input; 0 for features.
        progress: Told while features are computed.
    """

    dataset: Dataset
    backbone: Mapping[str, Any]
    prototype: Backbone | None
    image_size: int
    cache_dir: Path
    progress: Progress | None = None

    @property
    def trains_backbone(self) -> bool:
        """Whether trials hold a backbone of their own."""
        return self.dataset.train.kind == "images" and not self.backbone.get("frozen")

    @cached_property
    def weights(self) -> str:
        """Fingerprint of the weights that trials start from; empty when each draws its own."""
        return "" if self.prototype is None else weights_fingerprint(self.prototype)

    @property
    def notes(self) -> tuple[str, ...]:
        """What users should know of the data and of the weights before they trust a score."""
        notes = [*self.dataset.notes, *_lone_notes(self.dataset)]
        stored = min(self.dataset.train.items.shape[1:3])
        if self.image_size > stored:
            notes.append(
                f"{self.dataset.name}: pictures are kept at {stored} px and enlarged to the "
                f"backbone's {self.image_size} px; data.size and backbone.image_size say how large"
            )
        if self.prototype is not None and self.prototype.weight_report is not None:
            notes.append(f"weights: {self.prototype.weight_report}")
        return tuple(notes)

    def data(self, pooling: str, device: torch.device) -> Dataset:
        """What trials train on: images, or features when there is nothing else to train.

        The features of a frozen backbone are computed once per node, by the first trial that asks,
        on its device.
        """
        if self.dataset.train.kind == "features" or self.trains_backbone:
            return self.dataset
        assert self.prototype is not None
        return compute_features(
            self.dataset,
            self.prototype,
            pooling=pooling,
            cache_dir=self.cache_dir,
            device=device,
            progress=self.progress,
        )

    def new_backbone(self, *, seed: int, bn_freeze: BNFreeze) -> Backbone | None:
        """A trial's own backbone: a copy of the pretrained one, or a random one of this seed."""
        if not self.trains_backbone:
            return None
        if self.prototype is not None:
            own = copy.deepcopy(self.prototype)
            own.freeze_batch_norm(bn_freeze)
            return own
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return _build(self.backbone, self.dataset, self.image_size, bn_freeze)

    def augment(self, preset: str, backbone: Backbone) -> Augment:
        """The transform from stored pixels to the backbone's input."""
        return Augment(preset, size=self.image_size, mean=backbone.mean, std=backbone.std)


def open_bench(
    dataset: Mapping[str, Any],
    backbone: Mapping[str, Any],
    *,
    cache_dir: Path,
    progress: Progress | None = None,
) -> Bench:
    """Load a data set and a backbone by their study-file sections.

    Raises:
        ValueError: One of them is unknown, does not exist or does not fit the other.
    """
    options = {k: v for k, v in dataset.items() if k != "name"}
    data = load_dataset(dataset["name"], cache_dir=cache_dir, progress=progress, **options)
    if data.train.kind == "features":
        return Bench(data, {"name": "none"}, None, 0, cache_dir)
    if is_object(backbone.get("pretrained") or ""):
        weights = fetched(backbone["pretrained"], cache_dir=cache_dir, progress=progress)
        backbone = {**backbone, "pretrained": str(weights)}
    size = backbone.get("image_size") or suitable_size(min(data.train.items.shape[1:3]))
    prototype = None
    if backbone.get("pretrained") or backbone.get("frozen"):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            prototype = _build(backbone, data, size, "none")
    return Bench(data, dict(backbone), prototype, size, cache_dir, progress)


def _lone_notes(data: Dataset) -> list[str]:
    """Which classes have one image: there is nothing for it to find."""
    notes = []
    for part, name in ((data.train, "training"), (data.test, "test")):
        classes, counts = np.unique(part.labels, return_counts=True)
        lone = classes[counts == 1]
        if len(lone):
            example = data.class_names[int(lone[0])]
            notes.append(
                f"{data.name}: {len(lone):,} {name} class(es) have one image ({example!r}, ...), "
                "which is no query"
            )
    return notes


def untrained_backbone(bench: Bench) -> Backbone | None:
    """The backbone of the baseline row: as it came, or a random one; None for features."""
    if bench.prototype is not None:
        return bench.prototype
    return bench.new_backbone(seed=0, bn_freeze="none")


def _build(backbone: Mapping[str, Any], data: Dataset, size: int, bn_freeze: BNFreeze) -> Backbone:
    return build_backbone(
        backbone["name"],
        in_channels=int(data.train.items.shape[3]),
        image_size=size,
        pretrained=backbone.get("pretrained", False),
        frozen=bool(backbone.get("frozen", False)),
        bn_freeze=bn_freeze,
    )


def suitable_size(stored: int) -> int:
    """Side of the network's input for pictures of this shorter side.

    Small pictures whole; large ones cropped as the papers do (224 of 256).
    """
    return int(stored if stored <= _SMALL else round(stored * CROP))
