"""What a frozen backbone sees, computed once per node."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from trainables.backbone import Backbone
from trainables.data.augment import Augment
from trainables.data.cache import Progress, Rows, RowSpec, cached_rows
from trainables.data.dataset import Dataset, Part
from trainables.data.rows import Fill
from trainables.model import POOLINGS, placed, pool
from trainables.names import unknown_name

VERSION = 2  # raise when features of the same images and weights change


def compute_features(
    dataset: Dataset,
    backbone: Backbone,
    *,
    pooling: str,
    cache_dir: Path,
    device: torch.device,
    batch_size: int = 64,
    progress: Progress | None = None,
) -> Dataset:
    """The data set with its images replaced by pooled features (N, num_features), float32.

    Images are seen as in evaluation (no augmentation). One pass computes every pooling, since
    pooling is a knob: the first trial pays, all others map the result. The entry depends on the
    images, on the backbone's weights and on the input size, so it is never stale.

    Args:
        dataset: Of images.
        pooling: "avg", "max" or "avg+max"; which of the computed features to give.
        device: Where they are computed, if no process of this node has done so yet.
    """
    if pooling not in POOLINGS:
        raise unknown_name("pooling", pooling, POOLINGS)
    if dataset.train.kind != "images":
        raise ValueError(f"data set {dataset.name!r} holds features already.")
    cut = len(dataset.train)
    was_training = backbone.training
    backbone.eval()
    try:
        with placed(backbone, device):
            rows = cached_rows(
                cache_dir,
                name=f"features-{backbone.name}",
                settings=_settings(dataset, backbone),
                specs={_file(p): RowSpec((backbone.num_features,), "float32") for p in POOLINGS},
                n_rows=cut + len(dataset.test),
                fill=_computation(dataset, backbone, device),
                chunk_rows=batch_size,
                workers=1,  # torch uses the cores inside one call
                progress=progress,
            )
    finally:
        backbone.train(was_training)
    items = rows.arrays[_file(pooling)]
    return replace(
        dataset,
        train=Part(items[:cut], dataset.train.labels, dataset.train.is_query),
        test=Part(items[cut:], dataset.test.labels, dataset.test.is_query),
        fingerprint=hashlib.sha256(f"{rows.fingerprint}{pooling}".encode()).hexdigest()[:16],
    )


def _settings(dataset: Dataset, backbone: Backbone) -> dict[str, Any]:
    """Everything the features depend on."""
    return {
        "version": VERSION,
        "dataset": dataset.fingerprint,
        "backbone": backbone.name,
        "weights": weights_fingerprint(backbone),
        "image_size": backbone.image_size,
        "mean": list(backbone.mean),
        "std": list(backbone.std),
    }


def _computation(dataset: Dataset, backbone: Backbone, device: torch.device) -> Fill:
    """What gives the features of some images, both parts in a row, with every pooling."""
    augment = Augment("none", size=backbone.image_size, mean=backbone.mean, std=backbone.std)
    cut = len(dataset.train)

    def fill(start: int, stop: int) -> Rows:
        # A chunk may lie on the border of the two parts.
        own = [
            (dataset.train, slice(start, min(stop, cut))),
            (dataset.test, slice(max(start, cut) - cut, max(stop, cut) - cut)),
        ]
        items = np.concatenate([part.read(rows) for part, rows in own])
        aspects = [a for part, rows in own if (a := part.read_aspects(rows)) is not None]
        images = augment.evaluate(
            items.astype(np.uint8, copy=False), np.concatenate(aspects) if aspects else None
        )
        with torch.no_grad():
            maps = backbone(images.to(device)).float()
            return Rows({_file(p): pool(maps, p).cpu().numpy() for p in POOLINGS})

    return fill


def weights_fingerprint(model: nn.Module) -> str:
    """A hash of every weight and buffer; equal for equal weights in any process."""
    digest = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        if name.endswith("num_batches_tracked"):
            continue
        digest.update(f"{name}{tensor.dtype}{tuple(tensor.shape)}".encode())
        digest.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()[:16]


def _file(pooling: str) -> str:
    return pooling.replace("+", "_")
