"""BN-Inception, the backbone of the metric-learning papers (Ioffe and Szegedy 2015).

The layer names are those of the public weights (converted from Caffe), so that these files load by
name.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

# Channels of each module's branches: 1x1; 3x3 (reduce, out); double 3x3 (reduce, out); pool
# projection. A module with neither 1x1 nor projection halves the resolution.
INCEPTION_MODULES: dict[str, tuple[int, tuple[int, int], tuple[int, int], int, str]] = {
    "3a": (64, (64, 64), (64, 96), 32, "avg"),
    "3b": (64, (64, 96), (64, 96), 64, "avg"),
    "3c": (0, (128, 160), (64, 96), 0, "max"),
    "4a": (224, (64, 96), (96, 128), 128, "avg"),
    "4b": (192, (96, 128), (96, 128), 128, "avg"),
    "4c": (160, (128, 160), (128, 160), 128, "avg"),
    "4d": (96, (128, 192), (160, 192), 128, "avg"),
    "4e": (0, (128, 192), (192, 256), 0, "max"),
    "5a": (352, (192, 320), (160, 224), 128, "avg"),
    "5b": (352, (192, 320), (192, 224), 128, "max"),
}


class BNInception(nn.Module):
    """BN-Inception without classifier: 1024 feature channels at 1/32 of the resolution.

    The input is RGB, as for every other backbone, and is converted to the BGR order that the public
    weights were trained with. `mean` and `std` of its timm entry belong to these weights (pixels
    0..255 minus 104, 117, 128).

    Args:
        in_chans: Channels of the input.
        num_classes: Must be 0; there is no classifier (timm's `create_model` passes it).
        global_pool: Must be empty; there is no pooling.
        timm_extras: Further arguments of timm; only `pretrained_cfg` is used.
    """

    def __init__(
        self, in_chans: int = 3, num_classes: int = 0, global_pool: str = "", **timm_extras: Any
    ) -> None:
        super().__init__()
        if num_classes or global_pool:
            raise ValueError(
                "bn_inception has no classifier and no pooling; leave out "
                "`num_classes` and `global_pool`"
            )
        self.pretrained_cfg = timm_extras.get("pretrained_cfg")
        self.num_features = 1024
        self._add_conv_unit("conv1_7x7_s2", in_chans, 64, kernel=7, stride=2)
        self._add_conv_unit("conv2_3x3_reduce", 64, 64, kernel=1)
        self._add_conv_unit("conv2_3x3", 64, 192, kernel=3)
        channels = 192
        for name, (one, three, double, projection, _) in INCEPTION_MODULES.items():
            block, stride = f"inception_{name}", 1 if one else 2
            if one:
                self._add_conv_unit(f"{block}_1x1", channels, one, kernel=1)
            self._add_conv_unit(f"{block}_3x3_reduce", channels, three[0], kernel=1)
            self._add_conv_unit(f"{block}_3x3", three[0], three[1], kernel=3, stride=stride)
            self._add_conv_unit(f"{block}_double_3x3_reduce", channels, double[0], kernel=1)
            self._add_conv_unit(f"{block}_double_3x3_1", double[0], double[1], kernel=3)
            self._add_conv_unit(
                f"{block}_double_3x3_2", double[1], double[1], kernel=3, stride=stride
            )
            if projection:
                self._add_conv_unit(f"{block}_pool_proj", channels, projection, kernel=1)
            rest = projection or channels
            channels = one + three[1] + double[1] + rest

    def forward_features(self, images: Tensor) -> Tensor:
        """Return features (N, 1024, H / 32, W / 32) of RGB images (N, 3, H, W)."""
        x = images.flip(1) if images.shape[1] == 3 else images
        x = self._run_conv_unit("conv1_7x7_s2", x)
        x = functional.max_pool2d(x, 3, stride=2, ceil_mode=True)
        x = self._run_conv_unit("conv2_3x3", self._run_conv_unit("conv2_3x3_reduce", x))
        x = functional.max_pool2d(x, 3, stride=2, ceil_mode=True)
        for name, (one, _, _, _, pool) in INCEPTION_MODULES.items():
            x = self._run_inception_module(f"inception_{name}", x, one=bool(one), pool=pool)
        return x

    forward = forward_features

    def _run_inception_module(self, block: str, x: Tensor, *, one: bool, pool: str) -> Tensor:
        branches = [self._run_conv_unit(f"{block}_1x1", x)] if one else []
        branches.append(
            self._run_conv_unit(f"{block}_3x3", self._run_conv_unit(f"{block}_3x3_reduce", x))
        )
        double = self._run_conv_unit(
            f"{block}_double_3x3_1", self._run_conv_unit(f"{block}_double_3x3_reduce", x)
        )
        branches.append(self._run_conv_unit(f"{block}_double_3x3_2", double))
        if not one:
            branches.append(functional.max_pool2d(x, 3, stride=2, ceil_mode=True))
        elif pool == "max":
            pooled = functional.max_pool2d(x, 3, stride=1, padding=1, ceil_mode=True)
            branches.append(self._run_conv_unit(f"{block}_pool_proj", pooled))
        else:
            pooled = functional.avg_pool2d(x, 3, stride=1, padding=1, ceil_mode=True)
            branches.append(self._run_conv_unit(f"{block}_pool_proj", pooled))
        return torch.cat(branches, dim=1)

    def _add_conv_unit(
        self, name: str, before: int, after: int, *, kernel: int, stride: int = 1
    ) -> None:
        padding = kernel // 2
        self.add_module(name, nn.Conv2d(before, after, kernel, stride, padding))
        self.add_module(f"{name}_bn", nn.BatchNorm2d(after))

    def _run_conv_unit(self, name: str, x: Tensor) -> Tensor:
        convolved = self.get_submodule(name)(x)
        return functional.relu(self.get_submodule(f"{name}_bn")(convolved), inplace=True)
