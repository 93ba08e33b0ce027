"""Features of a frozen backbone: equal to direct computation, computed once, never stale."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from trainables.data.augment import ImageTransform
from trainables.data.dataset import Dataset
from trainables.data.registry import load_dataset
from trainables.models.backbone import build_backbone
from trainables.models.embedding import POOLING_MODES, pool_features
from trainables.models.frozen_features import compute_features, weights_fingerprint

CPU = torch.device("cpu")


@pytest.fixture
def glyphs(tmp_path: Path) -> Dataset:
    return load_dataset("glyphs", cache_dir=tmp_path / "data", classes=10, samples=5)


@pytest.mark.parametrize("pooling", POOLING_MODES)
def test_features_equal_direct_computation(tmp_path: Path, glyphs: Dataset, pooling: str) -> None:
    torch.manual_seed(0)
    backbone = build_backbone("conv4", in_channels=1, image_size=28, frozen=True)
    # 25 + 25 images in batches of 8: one batch spans both parts.
    features = compute_features(
        glyphs, backbone, pooling=pooling, cache_dir=tmp_path / "f", device=CPU, batch_size=8
    )
    augment = ImageTransform("none", size=28, mean=backbone.mean, std=backbone.std)
    for part, images in ((features.train, glyphs.train), (features.test, glyphs.test)):
        with torch.no_grad():
            direct = pool_features(backbone(augment.preprocess_images(images.items)), pooling)
        assert part.kind == "features"
        assert np.allclose(part.items, direct.numpy(), atol=1e-5)
        assert np.array_equal(part.labels, images.labels)
    assert features.class_names == glyphs.class_names


def test_computed_once_for_all_poolings_and_again_for_other_weights(
    tmp_path: Path, glyphs: Dataset
) -> None:
    calls = []
    torch.manual_seed(0)
    backbone = build_backbone("conv4", in_channels=1, image_size=28, frozen=True)
    backbone.register_forward_hook(lambda *arguments: calls.append(1))

    def run(pooling: str) -> str:
        dataset = compute_features(
            glyphs, backbone, pooling=pooling, cache_dir=tmp_path / "f", device=CPU
        )
        return dataset.fingerprint

    fingerprints = {run(pooling) for pooling in POOLING_MODES}
    assert len(fingerprints) == 3
    assert len(calls) == 1
    with torch.no_grad():
        next(backbone.parameters()).add_(0.1)
    run("avg")
    assert len(calls) == 2


def test_computed_on_the_requested_device(
    tmp_path: Path, glyphs: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    backbone = build_backbone("conv4", in_channels=1, image_size=28, frozen=True)
    steps: list[Any] = []
    move_module, move_tensor = backbone.to, torch.Tensor.to

    def record_module(device: torch.device) -> Any:
        steps.append(device)
        return move_module(device)

    def record_images(images: torch.Tensor, *arguments: Any, **options: Any) -> torch.Tensor:
        if images.shape[1:] == (1, 28, 28) and isinstance(next(iter(arguments), 0), torch.device):
            steps.append(("images", arguments[0]))
        return move_tensor(images, *arguments, **options)

    monkeypatch.setattr(backbone, "to", record_module)
    monkeypatch.setattr(torch.Tensor, "to", record_images)
    backbone.register_forward_hook(lambda *_: steps.append("computed"))
    device = torch.device("cpu", 0)  # not equal to torch.device("cpu"), but always available
    compute_features(glyphs, backbone, pooling="avg", cache_dir=tmp_path / "f", device=device)
    assert steps == [device, ("images", device), "computed", CPU]


def test_statistics_count_as_weights() -> None:
    backbone = build_backbone("conv4", in_channels=1, image_size=28)
    before = weights_fingerprint(backbone)
    assert weights_fingerprint(backbone) == before
    backbone(torch.randn(2, 1, 28, 28))  # in training mode, which updates running statistics
    assert weights_fingerprint(backbone) != before


def test_invalid_arguments(tmp_path: Path, glyphs: Dataset) -> None:
    backbone = build_backbone("conv4", in_channels=1, image_size=28)
    arguments: dict[str, Any] = {"cache_dir": tmp_path / "f", "device": CPU}
    with pytest.raises(ValueError, match="unknown pooling 'mean'"):
        compute_features(glyphs, backbone, pooling="mean", **arguments)
    features = compute_features(glyphs, backbone, pooling="max", **arguments)
    with pytest.raises(ValueError, match="holds features already"):
        compute_features(features, backbone, pooling="max", **arguments)
