"""Training context: the data set and the backbone that all trials of a process share."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch

from trainables.data import Dataset
from trainables.data.augment import ImageTransform
from trainables.data.cache import DataProgressCallback
from trainables.data.dataset import DatasetPart
from trainables.data.feed import BatchFeed, DeviceItemStore, make_feed
from trainables.data.registry import load_dataset
from trainables.data.s3_download import download_once
from trainables.models.backbone import BNFreeze, TimmBackbone, build_backbone
from trainables.models.frozen_features import compute_features, weights_fingerprint
from trainables.utils.precision_names import Precision
from trainables.utils.s3 import is_s3_uri

INPUT_CROP_FRACTION = 224 / 256
_MAX_UNCROPPED_PIXELS = 96


@dataclass(frozen=True)
class TrainingContext:
    """Data set and backbone, ready for trials.

    Args:
        dataset: Data set of images or features.
        backbone_options: Name and options of the backbone; its `name` is `none` for features.
        prototype: The pretrained or frozen backbone before training; None if trials start from
            random weights.
        image_size: Side of the backbone's input in pixels; 0 for features.
        cache_dir: Directory of the cache for decoded data and features.
        progress: Called while features are computed.
    """

    dataset: Dataset
    backbone_options: Mapping[str, Any]
    prototype: TimmBackbone | None
    image_size: int
    cache_dir: Path
    progress: DataProgressCallback | None = None
    item_store: DeviceItemStore = field(default_factory=DeviceItemStore, compare=False)
    _features: dict[tuple[str, Precision], Dataset] = field(default_factory=dict, compare=False)

    @property
    def trains_backbone(self) -> bool:
        """Whether each trial trains its own backbone."""
        return self.dataset.train.kind == "images" and not self.backbone_options.get("frozen")

    @cached_property
    def initial_weights_fingerprint(self) -> str:
        """Fingerprint of the weights that trials start from; empty if they are random."""
        return "" if self.prototype is None else weights_fingerprint(self.prototype)

    @property
    def quality_notes(self) -> tuple[str, ...]:
        """Notes on the data and the weights that matter for interpreting scores."""
        notes = [*self.dataset.notes, *_describe_singleton_classes(self.dataset)]
        stored = min(self.dataset.train.items.shape[1:3])
        if self.image_size > stored:
            notes.append(
                f"{self.dataset.name}: images are stored at {stored} px and enlarged to the "
                f"backbone's {self.image_size} px; set data.size and backbone.image_size to change "
                "this"
            )
        if self.prototype is not None and self.prototype.weight_report is not None:
            notes.append(f"weights: {self.prototype.weight_report}")
        return tuple(notes)

    def prepare_data(
        self, pooling: str, device: torch.device, precision: Precision = "fp32"
    ) -> Dataset:
        """Return the data set that trials train on: images, or features of a frozen backbone.

        The first trial of a node that needs the features of a frozen backbone computes them on its
        device.
        """
        if self.dataset.train.kind == "features" or self.trains_backbone:
            return self.dataset
        assert self.prototype is not None
        key = (pooling, precision)
        if key not in self._features:  # opened once, so that later trials share device memory
            self._features[key] = compute_features(
                self.dataset,
                self.prototype,
                pooling=pooling,
                cache_dir=self.cache_dir,
                device=device,
                precision=precision,
                progress=self.progress,
            )
        return self._features[key]

    def make_feed(
        self, part: DatasetPart, transform: ImageTransform | None, device: torch.device
    ) -> BatchFeed:
        """Return the feed of a data set part on a device."""
        return make_feed(part, transform, device, self.item_store)

    def new_backbone(self, *, seed: int, bn_freeze: BNFreeze) -> TimmBackbone | None:
        """Return a trial's own backbone: a copy of the prototype, or random weights by seed."""
        if not self.trains_backbone:
            return None
        if self.prototype is not None:
            own = copy.deepcopy(self.prototype)
            own.freeze_batch_norm(bn_freeze)
            return own
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return _build_configured_backbone(
                self.backbone_options, self.dataset, self.image_size, bn_freeze
            )

    def build_transform(self, preset: str, backbone: TimmBackbone) -> ImageTransform:
        """Return the transform from stored pixels to the backbone's input."""
        return ImageTransform(preset, size=self.image_size, mean=backbone.mean, std=backbone.std)


def open_context(
    dataset: Mapping[str, Any],
    backbone: Mapping[str, Any],
    *,
    cache_dir: Path,
    progress: DataProgressCallback | None = None,
) -> TrainingContext:
    """Load a data set and a backbone.

    Args:
        dataset: Name and options of the data set, as in the study file.
        backbone: Name and options of the backbone, as in the study file; ignored for features.
        cache_dir: Directory of the cache for decoded data and features.
        progress: Called while data are decoded or downloaded, or features computed.

    Raises:
        ValueError: If one of them is unknown, does not exist, or does not fit the other.
    """
    options = {k: v for k, v in dataset.items() if k != "name"}
    data = load_dataset(dataset["name"], cache_dir=cache_dir, progress=progress, **options)
    if data.train.kind == "features":
        return TrainingContext(data, {"name": "none"}, None, 0, cache_dir)
    if is_s3_uri(backbone.get("pretrained") or ""):
        weights = download_once(backbone["pretrained"], cache_dir=cache_dir, progress=progress)
        backbone = {**backbone, "pretrained": str(weights)}
    size = backbone.get("image_size") or choose_input_size(min(data.train.items.shape[1:3]))
    prototype = None
    if backbone.get("pretrained") or backbone.get("frozen"):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            prototype = _build_configured_backbone(backbone, data, size, "none")
    return TrainingContext(data, dict(backbone), prototype, size, cache_dir, progress)


def _describe_singleton_classes(data: Dataset) -> list[str]:
    """Return notes on classes with a single image, which cannot be queries."""
    notes = []
    for part, name in ((data.train, "training"), (data.test, "test")):
        classes, counts = np.unique(part.labels, return_counts=True)
        singletons = classes[counts == 1]
        if len(singletons):
            example = data.class_names[int(singletons[0])]
            verb = "class has" if len(singletons) == 1 else "classes have"
            notes.append(
                f"{data.name}: {len(singletons):,} {name} {verb} a single image ({example!r}, "
                "...); such images are not used as queries"
            )
    return notes


def untrained_backbone(context: TrainingContext) -> TimmBackbone | None:
    """Return the backbone of the baseline: the prototype, or a random one; None for features."""
    if context.prototype is not None:
        return context.prototype
    return context.new_backbone(seed=0, bn_freeze="none")


def _build_configured_backbone(
    backbone: Mapping[str, Any], data: Dataset, size: int, bn_freeze: BNFreeze
) -> TimmBackbone:
    return build_backbone(
        backbone["name"],
        in_channels=int(data.train.items.shape[3]),
        image_size=size,
        pretrained=backbone.get("pretrained", False),
        frozen=bool(backbone.get("frozen", False)),
        bn_freeze=bn_freeze,
    )


def choose_input_size(stored: int) -> int:
    """Return the side of the network's input for images with this shorter side.

    Small images are not cropped; larger ones are cropped as in the papers (224 of 256).
    """
    return int(stored if stored <= _MAX_UNCROPPED_PIXELS else round(stored * INPUT_CROP_FRACTION))
