"""Features of a frozen backbone: computed once, equal to the direct way, never stale."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from trainables.backbone import build_backbone
from trainables.data import load_dataset
from trainables.data.augment import Augment
from trainables.data.dataset import Dataset
from trainables.features import compute_features, weights_fingerprint
from trainables.model import POOLINGS, pool

CPU = torch.device("cpu")


@pytest.fixture
def glyphs(tmp_path: Path) -> Dataset:
    return load_dataset("glyphs", cache_dir=tmp_path / "data", classes=10, samples=5)


@pytest.mark.parametrize("pooling", POOLINGS)
def test_equal_to_the_direct_way(tmp_path: Path, glyphs: Dataset, pooling: str) -> None:
    torch.manual_seed(0)
    backbone = build_backbone("conv4", in_channels=1, image_size=28, frozen=True)
    # 25 + 25 images in batches of 8: one batch lies across the two halves.
    features = compute_features(
        glyphs, backbone, pooling=pooling, cache_dir=tmp_path / "f", device=CPU, batch_size=8
    )
    augment = Augment("none", size=28, mean=backbone.mean, std=backbone.std)
    for part, images in ((features.train, glyphs.train), (features.test, glyphs.test)):
        with torch.no_grad():
            direct = pool(backbone(augment.evaluate(images.items)), pooling)
        assert part.kind == "features"
        assert np.allclose(part.items, direct.numpy(), atol=1e-5)
        assert np.array_equal(part.labels, images.labels)
    assert features.class_names == glyphs.class_names


def test_computed_once_for_all_poolings_and_anew_for_other_weights(
    tmp_path: Path, glyphs: Dataset, monkeypatch: pytest.MonkeyPatch
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

    prints = {run(pooling) for pooling in POOLINGS}
    assert len(prints) == 3
    assert len(calls) == 1
    with torch.no_grad():
        next(backbone.parameters()).add_(0.1)
    run("avg")
    assert len(calls) == 2


def test_computed_on_the_device_asked_for(
    tmp_path: Path, glyphs: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    backbone = build_backbone("conv4", in_channels=1, image_size=28, frozen=True)
    steps: list[Any] = []
    move, move_tensor = backbone.to, torch.Tensor.to

    def moved(device: torch.device) -> Any:
        steps.append(device)
        return move(device)

    def sent(images: torch.Tensor, *arguments: Any, **more: Any) -> torch.Tensor:
        if images.shape[1:] == (1, 28, 28) and isinstance(next(iter(arguments), 0), torch.device):
            steps.append(("images", arguments[0]))
        return move_tensor(images, *arguments, **more)

    monkeypatch.setattr(backbone, "to", moved)
    monkeypatch.setattr(torch.Tensor, "to", sent)
    backbone.register_forward_hook(lambda *_: steps.append("computed"))
    asked = torch.device("cpu", 0)  # not equal to torch.device("cpu"), but every machine has it
    compute_features(glyphs, backbone, pooling="avg", cache_dir=tmp_path / "f", device=asked)
    assert steps == [asked, ("images", asked), "computed", CPU]


def test_statistics_count_as_weights() -> None:
    backbone = build_backbone("conv4", in_channels=1, image_size=28)
    before = weights_fingerprint(backbone)
    assert weights_fingerprint(backbone) == before
    backbone(torch.randn(2, 1, 28, 28))  # training mode: running statistics move
    assert weights_fingerprint(backbone) != before


def test_wrong_requests(tmp_path: Path, glyphs: Dataset) -> None:
    backbone = build_backbone("conv4", in_channels=1, image_size=28)
    arguments: dict[str, Any] = {"cache_dir": tmp_path / "f", "device": CPU}
    with pytest.raises(ValueError, match="unknown pooling 'mean'"):
        compute_features(glyphs, backbone, pooling="mean", **arguments)
    features = compute_features(glyphs, backbone, pooling="max", **arguments)
    with pytest.raises(ValueError, match="holds features already"):
        compute_features(features, backbone, pooling="max", **arguments)
