"""BN-Inception: names and shapes of the public weights, and their input format."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn

from trainables.models.backbone import build_backbone

# A sample of the names and shapes in the public file (converted from Caffe).
PUBLIC_SHAPES = {
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
    for name, shape in PUBLIC_SHAPES.items():
        assert tuple(state[name].shape) == shape, name
    # 69 convolutions; 10,270,240 weights without the classifier's 1,025,000.
    assert sum(1 for m in backbone.modules() if isinstance(m, nn.Conv2d)) == 69
    assert sum(p.numel() for p in backbone.parameters()) == 10_270_240
    with torch.no_grad():
        assert backbone(torch.zeros(1, 3, 224, 224)).shape == (1, 1024, 7, 7)
    # Pixels 0..255 in BGR order minus 104, 117, 128.
    assert [round(255 * m) for m in backbone.mean] == [128, 117, 104]
    assert [round(255 * s) for s in backbone.std] == [1, 1, 1]


def test_bn_inception_receives_bgr_and_loads_old_batch_norms(tmp_path: Path) -> None:
    torch.manual_seed(0)
    source = build_backbone("bn_inception", in_channels=3, image_size=64).model
    state = {}
    for name, value in source.state_dict().items():
        if "num_batches" in name:
            continue
        # The older public file stores batch norms as (1, C).
        state[name] = value[None] if "_bn." in name else value
    state["last_linear.weight"] = torch.zeros(1000, 1024)
    torch.save(state, tmp_path / "bn_inception.pth")
    backbone = build_backbone(
        "bn_inception", in_channels=3, image_size=64, pretrained=str(tmp_path / "bn_inception.pth")
    )
    assert backbone.weight_report is not None
    assert backbone.weight_report.is_complete
    assert backbone.weight_report.ignored == ("last_linear.weight",)
    backbone.eval()
    image = torch.randn(1, 3, 64, 64)
    first = backbone.model.get_submodule("conv1_7x7_s2")
    first_inputs: list[torch.Tensor] = []
    first.register_forward_hook(lambda module, inputs, output: first_inputs.append(inputs[0]))
    with torch.no_grad():
        backbone(image)
    assert torch.equal(first_inputs[0], image.flip(1))
