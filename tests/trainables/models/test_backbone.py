"""Backbones: one contract for every kind of timm model, and weights of other channels and sizes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from trainables.models.backbone import TimmBackbone, build_backbone, list_backbone_names


@pytest.mark.parametrize(
    ("name", "channels", "size", "layout"),
    [
        ("conv4", 1, 28, "NCHW"),
        ("conv4", 3, 32, "NCHW"),
        ("test_resnet", 3, 64, "NCHW"),
        ("test_convnext", 1, 64, "NCHW"),
        ("test_efficientnet", 4, 64, "NCHW"),
        ("test_vit", 3, 96, "NLC"),
        ("test_mambaout", 3, 64, "NHWC"),
    ],
)
def test_every_model_returns_a_feature_map(
    name: str, channels: int, size: int, layout: str
) -> None:
    backbone = build_backbone(name, in_channels=channels, image_size=size)
    features = backbone(torch.randn(2, channels, size, size))
    assert backbone.layout == layout
    assert features.ndim == 4
    assert features.shape[:2] == (2, backbone.num_features)
    assert len(backbone.mean) == len(backbone.std) == channels
    features.sum().backward()
    assert any(p.grad is not None for p in backbone.parameters())


def test_patch_tokens_are_arranged_on_their_grid() -> None:
    torch.manual_seed(0)
    backbone = build_backbone("test_vit", in_channels=3, image_size=64).eval()
    image = torch.zeros(1, 3, 64, 64)
    image[..., :16, -16:] = 5.0  # top right patch
    with torch.no_grad():
        change = (backbone(image) - backbone(torch.zeros_like(image))).norm(dim=1)[0]
    assert change.shape == (4, 4)
    assert change.argmax() == 3


def test_weights_depend_on_the_seed_only() -> None:
    def weight(seed: int) -> torch.Tensor:
        torch.manual_seed(seed)
        return next(build_backbone("conv4", in_channels=1, image_size=28).parameters())

    assert torch.equal(weight(1), weight(1))
    assert not torch.equal(weight(1), weight(2))


def test_probing_the_size_does_not_change_statistics() -> None:
    backbone = build_backbone("test_resnet", in_channels=3, image_size=64)
    norms = [m for m in backbone.modules() if isinstance(m, nn.BatchNorm2d)]
    assert norms
    assert all((m.running_mean == 0).all() for m in norms if m.running_mean is not None)


@pytest.mark.parametrize("mode", ["none", "stats", "all"])
def test_batch_norm_freezing(mode: Any) -> None:
    backbone = build_backbone("conv4", in_channels=1, image_size=28, bn_freeze=mode)
    norms = [m for m in backbone.modules() if isinstance(m, nn.BatchNorm2d)]
    before = [m.running_mean.clone() for m in norms if m.running_mean is not None]
    backbone.eval()
    backbone.train()
    backbone(torch.randn(4, 1, 28, 28)).square().sum().backward()
    after = [m.running_mean for m in norms if m.running_mean is not None]
    moved = any(not torch.equal(a, b) for a, b in zip(before, after, strict=True))
    assert moved is (mode == "none")
    assert all((m.weight.grad is None) is (mode == "all") for m in norms)
    backbone.freeze_batch_norm("none")
    assert all(m.training and m.weight.requires_grad for m in norms)


def test_frozen_trains_nothing() -> None:
    backbone = build_backbone("conv4", in_channels=1, image_size=28, frozen=True)
    backbone.train()
    assert not backbone.training
    assert not any(m.training for m in backbone.modules())
    assert not any(p.requires_grad for p in backbone.parameters())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"name": "resnet51"}, "unknown backbone 'resnet51'; did you mean 'resnet"),
        ({"name": "conv5"}, "did you mean 'conv4'"),
        ({"name": "conv4", "image_size": 4}, "'conv4' does not accept 4 px images"),
        ({"name": "test_resnet", "image_size": 0}, "must be positive"),
        ({"name": "conv4", "pretrained": True}, "no published weights for 'conv4'"),
        ({"name": "conv4", "pretrained": "/no/such.pth"}, "/no/such.pth does not exist"),
        ({"name": "conv4", "bn_freeze": "some"}, "unknown bn_freeze 'some'"),
        ({"name": "test_resnet.no_such_tag"}, "no_such_tag"),
    ],
)
def test_errors_are_one_line(arguments: dict[str, Any], message: str) -> None:
    arguments = {"in_channels": 3, "image_size": 64, **arguments}
    with pytest.raises(ValueError, match=message) as caught:
        build_backbone(**arguments)
    assert "\n" not in str(caught.value)


def test_names_include_those_of_timm_and_ours() -> None:
    names = list_backbone_names()
    assert {"conv4", "bn_inception", "resnet50", "vit_small_patch16_224"} <= set(names)
    assert len(names) > 1000
    import timm  # our models must be registered in timm itself

    assert isinstance(timm.create_model("conv4", in_chans=1, num_classes=0), nn.Module)


def save_weights(path: Path, name: str, size: int) -> dict[str, Tensor]:
    """Write the weights of a three-channel model to a file and return them."""
    torch.manual_seed(1)
    state = build_backbone(name, in_channels=3, image_size=size).model.state_dict()
    torch.save(state, path)
    return dict(state)


def load_backbone(path: Path, name: str, channels: int, size: int) -> TimmBackbone:
    torch.manual_seed(2)
    backbone = build_backbone(
        name, in_channels=channels, image_size=size, pretrained=path, frozen=True
    )
    assert backbone.weight_report is not None
    assert backbone.weight_report.is_complete
    return backbone


@pytest.mark.parametrize("name", ["test_resnet", "conv4", "bn_inception"])
@pytest.mark.parametrize("channels", [1, 4])
def test_the_first_layer_is_adapted_to_other_channels(
    tmp_path: Path, name: str, channels: int
) -> None:
    state = save_weights(tmp_path / "w.pth", name, 64)
    model = load_backbone(tmp_path / "w.pth", name, channels, 64).model
    first, saved = next((k, v) for k, v in state.items() if v.ndim == 4)
    weights = model.state_dict()[first]
    if channels == 1:
        assert torch.allclose(weights, saved.sum(dim=1, keepdim=True))
    else:
        assert torch.allclose(weights, saved[:, [0, 1, 2, 0]] * 3 / 4)


def test_position_embeddings_are_adapted_to_another_size(tmp_path: Path) -> None:
    state = save_weights(tmp_path / "w.pth", "deit_tiny_distilled_patch16_224", 96)
    model = load_backbone(tmp_path / "w.pth", "deit_tiny_distilled_patch16_224", 3, 64).model
    from timm.layers import resample_abs_pos_embed

    positions, saved = model.state_dict()["pos_embed"], state["pos_embed"]
    assert positions.shape[1] == 2 + 4 * 4, "class and distillation tokens, and the grid"
    assert torch.equal(positions, resample_abs_pos_embed(saved, [4, 4], num_prefix_tokens=2))


def test_a_frozen_backbone_requires_every_weight_in_the_file(tmp_path: Path) -> None:
    state = save_weights(tmp_path / "w.pth", "test_resnet", 64)
    kept = list(state)[len(state) // 3 :]
    torch.save({name: state[name] for name in kept}, tmp_path / "part.pth")
    part = tmp_path / "part.pth"
    arguments: dict[str, Any] = {"in_channels": 3, "image_size": 64, "pretrained": part}
    report = build_backbone("test_resnet", **arguments).weight_report
    assert report is not None
    assert not report.is_complete
    with pytest.raises(ValueError, match=r"frozen: true requires.*part\.pth.*missing"):
        build_backbone("test_resnet", **arguments, frozen=True)


@pytest.mark.parametrize(
    ("name", "size"),
    [("xcit_nano_12_p16_224", 32), ("xcit_nano_12_p16_224", 64), ("convit_tiny", 64)],
)
def test_class_tokens_are_removed_from_models_that_do_not_declare_them(
    name: str, size: int
) -> None:
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
