"""Backbones: one contract for every kind of timm model, and an honest report on weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from trainables.backbone import Backbone, backbone_names, build_backbone
from trainables.weights import load_weights


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
def test_every_model_gives_a_feature_map(name: str, channels: int, size: int, layout: str) -> None:
    backbone = build_backbone(name, in_channels=channels, image_size=size)
    features = backbone(torch.randn(2, channels, size, size))
    assert backbone.layout == layout
    assert features.ndim == 4
    assert features.shape[:2] == (2, backbone.num_features)
    assert len(backbone.mean) == len(backbone.std) == channels
    features.sum().backward()
    assert any(p.grad is not None for p in backbone.parameters())


def test_tokens_lie_on_their_grid() -> None:
    torch.manual_seed(0)
    backbone = build_backbone("test_vit", in_channels=3, image_size=64).eval()
    image = torch.zeros(1, 3, 64, 64)
    image[..., :16, -16:] = 5.0  # top right patch
    with torch.no_grad():
        change = (backbone(image) - backbone(torch.zeros_like(image))).norm(dim=1)[0]
    assert change.shape == (4, 4)
    assert change.argmax() == 3


def test_weights_depend_on_the_seed_and_on_nothing_else() -> None:
    def weight(seed: int) -> torch.Tensor:
        torch.manual_seed(seed)
        return next(build_backbone("conv4", in_channels=1, image_size=28).parameters())

    assert torch.equal(weight(1), weight(1))
    assert not torch.equal(weight(1), weight(2))


def test_probing_the_size_leaves_statistics_alone() -> None:
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
        ({"name": "conv4", "image_size": 4}, "'conv4' cannot take 4 px images"),
        ({"name": "test_resnet", "image_size": 0}, "must be positive"),
        ({"name": "conv4", "pretrained": True}, "no published weights for 'conv4'"),
        ({"name": "conv4", "pretrained": "/no/such.pth"}, "/no/such.pth does not exist"),
        ({"name": "conv4", "bn_freeze": "some"}, "unknown bn_freeze 'some'"),
        ({"name": "test_resnet.no_such_tag"}, "no_such_tag"),
    ],
)
def test_wrong_requests_are_one_clear_line(arguments: dict[str, Any], message: str) -> None:
    arguments = {"in_channels": 3, "image_size": 64, **arguments}
    with pytest.raises(ValueError, match=message) as caught:
        build_backbone(**arguments)
    assert "\n" not in str(caught.value)


def test_names_cover_timm_and_ours() -> None:
    names = backbone_names()
    assert {"conv4", "bn_inception", "resnet50", "vit_small_patch16_224"} <= set(names)
    assert len(names) > 1000
    import timm  # the test asks timm itself; the package has one door

    assert isinstance(timm.create_model("conv4", in_chans=1, num_classes=0), nn.Module)


# --- local weights -----------------------------------------------------------------------------


def conv4() -> Backbone:
    return build_backbone("conv4", in_channels=1, image_size=28)


@pytest.mark.parametrize("ending", [".pth", ".safetensors"])
@pytest.mark.parametrize("wrapped", [False, True])
def test_local_weights_load(tmp_path: Path, ending: str, wrapped: bool) -> None:
    torch.manual_seed(1)
    state = dict(conv4().model.state_dict())
    if wrapped:  # as DataParallel and training scripts write them
        state = {f"module.backbone.{name}": value for name, value in state.items()}
    path = tmp_path / f"weights{ending}"
    if ending == ".pth":
        torch.save({"state_dict": state, "epoch": 3} if wrapped else state, path)
    else:
        save_file({name: value.contiguous() for name, value in state.items()}, path)
    backbone = build_backbone("conv4", in_channels=1, image_size=28, pretrained=path)
    report = backbone.weight_report
    assert report is not None
    assert report.complete
    assert not report.unexpected
    wanted = next(iter(state.values()))
    assert torch.equal(next(backbone.model.parameters()), wanted)


def test_the_report_says_what_did_not_match(tmp_path: Path) -> None:
    state = dict(conv4().model.state_dict())
    first = next(iter(state))
    state[first] = torch.zeros(16, 3, 3, 3)
    del state["blocks.13.bias"]
    state["fc.weight"] = torch.zeros(10, 128)
    state["extra.weight"] = torch.zeros(1)
    torch.save(state, tmp_path / "w.pth")
    model = conv4().model
    kept = model.state_dict()[first].clone()
    report = load_weights(model, tmp_path / "w.pth")
    assert report.mismatched == (f"{first} (16, 3, 3, 3) for (16, 1, 3, 3)",)
    assert report.missing == ("blocks.13.bias",)
    assert report.unexpected == ("extra.weight",)
    assert report.ignored == ("fc.weight",)
    assert not report.complete
    assert torch.equal(model.state_dict()[first], kept)
    text = str(report)
    for word in ("1 missing", "1 mismatched", "1 unexpected", "fc.weight", "w.pth"):
        assert word in text


class Evil:
    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.touch, (Path("executed"),))


def test_weights_files_execute_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    torch.save({"weight": Evil()}, tmp_path / "evil.pth")
    with pytest.raises(ValueError, match="cannot be read as weights"):
        load_weights(conv4().model, tmp_path / "evil.pth")
    assert not (tmp_path / "executed").exists()


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("a.pth", b"nonsense", "cannot be read as weights"),
        ("a.safetensors", b"nonsense", "cannot be read as weights"),
        ("a.onnx", b"", "weights must be one of .pth"),
    ],
)
def test_unreadable_weights(tmp_path: Path, file: str, content: bytes, message: str) -> None:
    (tmp_path / file).write_bytes(content)
    with pytest.raises(ValueError, match=message):
        load_weights(conv4().model, tmp_path / file)


def test_weights_of_another_model_are_refused(tmp_path: Path) -> None:
    torch.save({"layer1.0.conv1.weight": torch.zeros(3)}, tmp_path / "r.pth")
    with pytest.raises(ValueError, match="only 0 of the model's 24 weights are in"):
        load_weights(conv4().model, tmp_path / "r.pth")


def renamed(state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """As another library would call the same layers."""
    return {f"_layer{i}.{n.rpartition('.')[2]}": v for i, (n, v) in enumerate(state.items())}


def test_other_names_of_the_same_model_are_taken_in_order(tmp_path: Path) -> None:
    torch.manual_seed(3)
    state = dict(conv4().model.state_dict())
    torch.save({**renamed(state), "_fc.weight": torch.zeros(10, 128)}, tmp_path / "w.pth")
    model = conv4().model
    report = load_weights(model, tmp_path / "w.pth")
    assert report.complete
    assert report.in_order
    assert "taken in order" in str(report)
    assert report.ignored == ("_fc.weight",)
    for name, value in model.state_dict().items():
        assert "num_batches" in name or torch.equal(value, state[name]), name


@pytest.mark.parametrize("change", ["shape", "kind", "one more", "one less"])
def test_other_names_are_refused_unless_every_weight_pairs_up(tmp_path: Path, change: str) -> None:
    state = renamed(dict(conv4().model.state_dict()))
    names = list(state)
    if change == "shape":
        state[names[0]] = torch.zeros(16, 3, 3, 3)
    elif change == "kind":  # weight and bias of a batch norm in the other order
        at = next(i for i, name in enumerate(names) if name.endswith(".bias"))
        names[at - 1], names[at] = names[at], names[at - 1]
        state = {name: state[name] for name in names}
    elif change == "one more":
        state["_last.weight"] = torch.zeros(1)
    else:
        del state[names[0]]
    torch.save(state, tmp_path / "w.pth")
    with pytest.raises(ValueError, match="only 0 of the model's"):
        load_weights(conv4().model, tmp_path / "w.pth")


# --- BN-Inception ------------------------------------------------------------------------------

# Names and shapes as the public file has them (converted from Caffe), a sample of each kind.
PUBLIC = {
    "conv1_7x7_s2.weight": (64, 3, 7, 7),
    "conv1_7x7_s2.bias": (64,),
    "conv1_7x7_s2_bn.running_var": (64,),
    "conv2_3x3_reduce.weight": (64, 64, 1, 1),
    "conv2_3x3.weight": (192, 64, 3, 3),
    "inception_3a_1x1.weight": (64, 192, 1, 1),
    "inception_3a_double_3x3_2.weight": (96, 96, 3, 3),
    "inception_3a_pool_proj.weight": (32, 192, 1, 1),
    "inception_3c_3x3.weight": (160, 128, 3, 3),
    "inception_3c_3x3_reduce.weight": (128, 320, 1, 1),
    "inception_4a_1x1.weight": (224, 576, 1, 1),
    "inception_4e_double_3x3_2_bn.weight": (256,),
    "inception_5a_1x1.weight": (352, 1056, 1, 1),
    "inception_5b_pool_proj.weight": (128, 1024, 1, 1),
    "inception_5b_double_3x3_1.bias": (224,),
}


def test_bn_inception_has_the_public_names_and_shapes() -> None:
    backbone = build_backbone("bn_inception", in_channels=3, image_size=224)
    state = backbone.model.state_dict()
    for name, shape in PUBLIC.items():
        assert tuple(state[name].shape) == shape, name
    # 69 convolutions; 10,270,240 weights without the classifier's 1,025,000.
    assert sum(1 for m in backbone.modules() if isinstance(m, nn.Conv2d)) == 69
    assert sum(p.numel() for p in backbone.parameters()) == 10_270_240
    with torch.no_grad():
        assert backbone(torch.zeros(1, 3, 224, 224)).shape == (1, 1024, 7, 7)
    # Pixels 0..255 in BGR order less 104, 117, 128.
    assert [round(255 * m) for m in backbone.mean] == [128, 117, 104]
    assert [round(255 * s) for s in backbone.std] == [1, 1, 1]


def test_bn_inception_sees_bgr_and_loads_old_batch_norms(tmp_path: Path) -> None:
    torch.manual_seed(0)
    source = build_backbone("bn_inception", in_channels=3, image_size=64).model
    state = {}
    for name, value in source.state_dict().items():
        if "num_batches" in name:
            continue
        # The older public file keeps batch norms as (1, C).
        state[name] = value[None] if "_bn." in name else value
    state["last_linear.weight"] = torch.zeros(1000, 1024)
    torch.save(state, tmp_path / "bn_inception.pth")
    backbone = build_backbone(
        "bn_inception", in_channels=3, image_size=64, pretrained=str(tmp_path / "bn_inception.pth")
    )
    assert backbone.weight_report is not None
    assert backbone.weight_report.complete
    assert backbone.weight_report.ignored == ("last_linear.weight",)
    backbone.eval()
    image = torch.randn(1, 3, 64, 64)
    first = backbone.model.get_submodule("conv1_7x7_s2")
    seen: list[torch.Tensor] = []
    first.register_forward_hook(lambda module, inputs, output: seen.append(inputs[0]))
    with torch.no_grad():
        backbone(image)
    assert torch.equal(seen[0], image.flip(1))
