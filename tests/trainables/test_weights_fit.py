"""Weights from a file serve other channels and sizes as timm's published ones do, or say so."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from trainables.backbone import Backbone, build_backbone


def saved(path: Path, name: str, size: int) -> dict[str, Tensor]:
    """The weights of a three-channel model, and a file of them."""
    torch.manual_seed(1)
    state = build_backbone(name, in_channels=3, image_size=size).model.state_dict()
    torch.save(state, path)
    return dict(state)


def rebuilt(path: Path, name: str, channels: int, size: int) -> Backbone:
    torch.manual_seed(2)
    backbone = build_backbone(
        name, in_channels=channels, image_size=size, pretrained=path, frozen=True
    )
    assert backbone.weight_report is not None
    assert backbone.weight_report.complete
    return backbone


@pytest.mark.parametrize("name", ["test_resnet", "conv4", "bn_inception"])
@pytest.mark.parametrize("channels", [1, 4])
def test_the_first_layer_takes_other_channels(tmp_path: Path, name: str, channels: int) -> None:
    state = saved(tmp_path / "w.pth", name, 64)
    model = rebuilt(tmp_path / "w.pth", name, channels, 64).model
    first, given = next((k, v) for k, v in state.items() if v.ndim == 4)
    weights = model.state_dict()[first]
    if channels == 1:
        assert torch.allclose(weights, given.sum(dim=1, keepdim=True))
    else:
        assert torch.allclose(weights, given[:, [0, 1, 2, 0]] * 3 / 4)


def test_position_embeddings_take_another_size(tmp_path: Path) -> None:
    state = saved(tmp_path / "w.pth", "deit_tiny_distilled_patch16_224", 96)
    model = rebuilt(tmp_path / "w.pth", "deit_tiny_distilled_patch16_224", 3, 64).model
    from timm.layers import resample_abs_pos_embed

    places, given = model.state_dict()["pos_embed"], state["pos_embed"]
    assert places.shape[1] == 2 + 4 * 4, "class and distillation tokens, and the grid"
    assert torch.equal(places, resample_abs_pos_embed(given, [4, 4], num_prefix_tokens=2))


def test_a_file_that_fills_a_part_is_refused_when_nothing_else_would_train(tmp_path: Path) -> None:
    state = saved(tmp_path / "w.pth", "test_resnet", 64)
    kept = list(state)[len(state) // 3 :]
    torch.save({name: state[name] for name in kept}, tmp_path / "part.pth")
    part = tmp_path / "part.pth"
    arguments: dict[str, Any] = {"in_channels": 3, "image_size": 64, "pretrained": part}
    report = build_backbone("test_resnet", **arguments).weight_report
    assert report is not None
    assert not report.complete
    with pytest.raises(ValueError, match=r"frozen: true needs every weight.*part\.pth.*missing"):
        build_backbone("test_resnet", **arguments, frozen=True)


@pytest.mark.parametrize(
    ("name", "size"),
    [("xcit_nano_12_p16_224", 32), ("xcit_nano_12_p16_224", 64), ("convit_tiny", 64)],
)
def test_class_tokens_are_left_out_of_models_that_do_not_count_them(name: str, size: int) -> None:
    torch.manual_seed(0)
    backbone = build_backbone(name, in_channels=3, image_size=size).eval()
    image = torch.zeros(1, 3, size, size)
    with torch.no_grad():
        tokens = backbone.model.forward_features(image)
        features = backbone(image)
    side = size // 16
    assert tokens.shape[1] == side * side + 1
    assert features.shape == (1, backbone.num_features, side, side)
    assert torch.equal(features.flatten(2), tokens[:, 1:].transpose(1, 2))
