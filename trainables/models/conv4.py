"""Conv4, a small network of four convolutions for small images."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn


class Conv4Net(nn.Module):
    """Four blocks of 3x3 convolution, batch norm and ReLU, with 2x2 max pooling after three.

    28 x 28 pixels become a 3 x 3 map of 128 channels. The network has 0.1 million parameters, and
    one training step with a batch of 96 takes about 40 ms on one core. The first block, which
    works at full resolution and costs most per channel, is narrow.

    Args:
        in_chans: Channels of the input.
        widths: Channels of the four blocks.
        num_classes: Must be 0; there is no classifier (timm's `create_model` passes it).
        global_pool: Must be empty; there is no pooling.
        timm_extras: Further arguments of timm; only `pretrained_cfg` is used.
    """

    def __init__(
        self,
        in_chans: int = 3,
        num_classes: int = 0,
        widths: tuple[int, int, int, int] = (16, 32, 64, 128),
        global_pool: str = "",
        **timm_extras: Any,
    ) -> None:
        super().__init__()
        if num_classes or global_pool:
            raise ValueError(
                "conv4 has no classifier and no pooling; leave out `num_classes` and `global_pool`"
            )
        self.pretrained_cfg = timm_extras.get("pretrained_cfg")
        self.num_features = widths[-1]
        blocks: list[nn.Module] = []
        for i, (before, after) in enumerate(zip((in_chans, *widths), widths, strict=False)):
            blocks += [
                nn.Conv2d(before, after, 3, padding=1, bias=False),
                nn.BatchNorm2d(after),
                nn.ReLU(inplace=True),
            ]
            if i < len(widths) - 1:
                blocks.append(nn.MaxPool2d(2))
        self.blocks = nn.Sequential(*blocks)

    def forward_features(self, images: Tensor) -> Tensor:
        """Return features (N, 128, H // 8, W // 8) of images (N, in_chans, H, W)."""
        features: Tensor = self.blocks(images)
        return features

    forward = forward_features
