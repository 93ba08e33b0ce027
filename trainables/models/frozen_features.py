"""Features of a frozen backbone, computed once per node and cached."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from trainables.data.augment import ImageTransform
from trainables.data.cache import DataProgressCallback, RowChunk, RowSpec, open_or_build_entry
from trainables.data.cache.rows import FillFunction
from trainables.data.dataset import Dataset, DatasetPart
from trainables.models.backbone import TimmBackbone
from trainables.models.embedding import POOLING_MODES, on_device, pool_features
from trainables.utils.device import describe_device
from trainables.utils.precision import autocast_model
from trainables.utils.precision_names import Precision
from trainables.utils.suggestions import unknown_name_error

FEATURES_VERSION = 2  # increase when features of the same images and weights change


def compute_features(
    dataset: Dataset,
    backbone: TimmBackbone,
    *,
    pooling: str,
    cache_dir: Path,
    device: torch.device,
    precision: Precision = "fp32",
    batch_size: int = 64,
    progress: DataProgressCallback | None = None,
) -> Dataset:
    """Return the data set with pooled features (N, num_features), float32, instead of images.

    Images are preprocessed as in evaluation (no augmentation). One pass computes every pooling,
    because pooling is a hyperparameter: the first trial computes the features and all others map
    the cached result. The cache entry depends on the images, the backbone's weights, the input
    size, the precision and the kind of GPU, so it is never stale.

    Args:
        dataset: Data set of images.
        backbone: The frozen backbone.
        pooling: Which of the computed features to return: "avg", "max" or "avg+max".
        cache_dir: Directory of the cache.
        device: Device that computes the features if this node has not cached them yet.
        precision: Precision of the backbone.
        batch_size: Images per forward pass.
        progress: Called while features are computed.

    Raises:
        ValueError: If the pooling is unknown or the data set holds features already.
    """
    if pooling not in POOLING_MODES:
        raise unknown_name_error("pooling", pooling, POOLING_MODES)
    if dataset.train.kind != "images":
        raise ValueError(f"data set {dataset.name!r} holds features already")
    n_train = len(dataset.train)
    was_training = backbone.training
    backbone.eval()
    try:
        with on_device(backbone, device):
            rows = open_or_build_entry(
                cache_dir,
                name=f"features-{backbone.name}",
                settings=_cache_settings(dataset, backbone, device, precision),
                specs={
                    _array_name(p): RowSpec((backbone.num_features,), "float32")
                    for p in POOLING_MODES
                },
                n_rows=n_train + len(dataset.test),
                fill=_make_chunk_computation(dataset, backbone, device, precision),
                chunk_rows=batch_size,
                workers=1,  # torch uses all cores inside one call
                progress=progress,
            )
    finally:
        backbone.train(was_training)
    items = rows.arrays[_array_name(pooling)]
    return replace(
        dataset,
        train=DatasetPart(items[:n_train], dataset.train.labels, dataset.train.is_query),
        test=DatasetPart(items[n_train:], dataset.test.labels, dataset.test.is_query),
        fingerprint=hashlib.sha256(f"{rows.fingerprint}{pooling}".encode()).hexdigest()[:16],
    )


def _cache_settings(
    dataset: Dataset, backbone: TimmBackbone, device: torch.device, precision: Precision
) -> dict[str, Any]:
    """Return everything that the features depend on.

    Strict float32 on a CPU adds nothing, so that entries of earlier versions stay valid.
    """
    numerics: dict[str, str] = {} if precision == "fp32" else {"precision": precision}
    if device.type != "cpu":
        numerics |= {"device": describe_device(device)}
    return {
        **numerics,
        "version": FEATURES_VERSION,
        "dataset": dataset.fingerprint,
        "backbone": backbone.name,
        "weights": weights_fingerprint(backbone),
        "image_size": backbone.image_size,
        "mean": list(backbone.mean),
        "std": list(backbone.std),
    }


def _make_chunk_computation(
    dataset: Dataset, backbone: TimmBackbone, device: torch.device, precision: Precision
) -> FillFunction:
    """Return a function that computes a chunk of features, training part first."""
    augment = ImageTransform("none", size=backbone.image_size, mean=backbone.mean, std=backbone.std)
    n_train = len(dataset.train)

    def compute_chunk(start: int, stop: int) -> RowChunk:
        # A chunk may span both parts.
        test_rows = slice(max(start, n_train) - n_train, max(stop, n_train) - n_train)
        chunks = [
            (dataset.train, slice(start, min(stop, n_train))),
            (dataset.test, test_rows),
        ]
        items = np.concatenate([part.read_items(rows) for part, rows in chunks])
        aspects = [a for part, rows in chunks if (a := part.read_aspects(rows)) is not None]
        images = augment.preprocess_images(
            items.astype(np.uint8, copy=False), np.concatenate(aspects) if aspects else None
        )
        with torch.no_grad():
            with autocast_model(precision, device):
                maps = backbone(images.to(device))
            maps = maps.float()
            return RowChunk(
                {_array_name(p): pool_features(maps, p).cpu().numpy() for p in POOLING_MODES}
            )

    return compute_chunk


def weights_fingerprint(model: nn.Module) -> str:
    """Return a hash of every weight and buffer, equal in any process for equal weights."""
    digest = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        if name.endswith("num_batches_tracked"):
            continue
        digest.update(f"{name}{tensor.dtype}{tuple(tensor.shape)}".encode())
        digest.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()[:16]


def _array_name(pooling: str) -> str:
    return pooling.replace("+", "_")
