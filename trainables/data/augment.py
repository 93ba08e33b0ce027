"""How do stored pixels become the input of a backbone, with and without chance?"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from trainables.names import unknown_name
from trainables.vision import import_torchvision

Images = NDArray[Any] | Tensor
Aspects = NDArray[np.float32] | None
CROP_FRACTION = 224 / 256  # evaluation: shorter side 256, centre 224, as the papers do


@dataclass(frozen=True)
class Preset:
    """Random changes of training images.

    Args:
        crop_area: Range of the crop's share of the picture; None crops nothing.
        crop_ratio: Range of the crop's width / height, drawn log-uniformly.
        flip: Probability of a mirror image.
        shift: Largest shift as a share of the side, edges filled with zeros.
    """

    crop_area: tuple[float, float] | None = None
    crop_ratio: tuple[float, float] = (3 / 4, 4 / 3)
    flip: float = 0.0
    shift: float = 0.0


PRESETS: Mapping[str, Preset] = {
    "none": Preset(),
    # Characters: a mirror image or a part of one is another character.
    "light": Preset(shift=0.08),
    # Random resized crop and flip of the metric-learning papers (losses' repositories and MLRC).
    "papers": Preset(crop_area=(0.16, 1.0), flip=0.5),
}


class Augment:
    """Batches of stored uint8 images (N, H, W, C) as normalised float32 (N, C, size, size).

    Every image of a batch draws its own crop, flip and shift, from the generator given with the
    batch: same generator state, same output, however the batch is shared out over ranks. The
    output is in channels-last memory order, which convolutions on CPUs and tensor cores prefer.

    Images with `aspects` are squares that pictures of these width / height were squashed to; crops
    are chosen in the picture and cut where they lie in the square, which undoes the squashing.

    Args:
        preset: A key of `PRESETS`.
        size: Height and width of the output.
        mean: Per channel, of pixels scaled to 0..1; the backbone knows it.
        std: Per channel, likewise.
    """

    def __init__(
        self, preset: str, *, size: int, mean: Sequence[float], std: Sequence[float]
    ) -> None:
        if preset not in PRESETS:
            raise unknown_name("augmentation", preset, PRESETS)
        self.preset, self.size = PRESETS[preset], size
        self.scale = torch.tensor([1 / (255 * s) for s in std])
        self.offset = torch.tensor([-m / s for m, s in zip(mean, std, strict=True)])

    def train(
        self,
        images: Images,
        generator: torch.Generator,
        *,
        aspects: Aspects = None,
        part: tuple[int, int] | None = None,
    ) -> Tensor:
        """Augmented images; the generator is a CPU generator.

        Args:
            aspects: Of these images; None when they are to be seen as stored.
            part: These images are those from position `part[0]` on of a batch of `part[1]`, and
                look as they would in the whole batch; None is a whole batch.
        """
        pixels = _channels_first(images)
        start, total = part or (0, len(pixels))
        own = slice(start, start + len(pixels))
        if self.preset.crop_area is not None:
            height, width = pixels.shape[-2:]
            squashed = torch.ones(total, dtype=torch.float64)
            if aspects is not None:  # the boxes of other ranks' images are not looked at
                squashed[own] = torch.from_numpy(aspects.astype(np.float64))
            area, ratio = self.preset.crop_area, self.preset.crop_ratio
            boxes = crop_boxes(total, height, width, area, ratio, generator, squashed)
            pixels = self._crops(pixels, boxes[own])
        else:
            pixels = self._fit(pixels, aspects)
        if self.preset.shift:
            most = round(self.preset.shift * self.size)
            at = torch.randint(0, 2 * most + 1, (2, total), generator=generator)
            pixels = _shifted(pixels, most, at[:, own])
        floats = self._normalise(pixels)
        if self.preset.flip:
            flips = torch.rand(total, generator=generator)[own] < self.preset.flip
            for i in flips.nonzero()[:, 0].tolist():
                floats[i] = floats[i].flip(-1)
        return floats

    def evaluate(self, images: Images, aspects: Aspects = None) -> Tensor:
        """The same images every time: shorter side to size / 0.875, centre crop.

        Images stored at exactly `size` stay whole, unless they have `aspects`.
        """
        return self._normalise(self._fit(_channels_first(images), aspects))

    def _fit(self, pixels: Tensor, aspects: Aspects) -> Tensor:
        height, width = pixels.shape[-2:]
        if aspects is not None:
            return self._crops(pixels, centre_boxes(height, aspects))
        if (height, width) == (self.size, self.size):
            return pixels
        if len(pixels) == 0:  # a rank without a share of the batch; resizing refuses nothing
            return pixels.new_empty((0, pixels.shape[1], self.size, self.size))
        functional = import_torchvision("torchvision.transforms.v2.functional")
        shorter = round(self.size / CROP_FRACTION)
        # A stored side that is a pixel off by rounding is cropped: scaling would only blur it.
        if abs(min(height, width) - shorter) > 1 or min(height, width) < self.size:
            pixels = functional.resize(pixels, [shorter], antialias=True)
        cropped: Tensor = functional.center_crop(pixels, [self.size, self.size])
        return cropped

    def _crops(self, pixels: Tensor, boxes: Tensor) -> Tensor:
        functional = import_torchvision("torchvision.transforms.v2.functional")
        out = torch.empty(
            (len(pixels), pixels.shape[1], self.size, self.size),
            dtype=torch.uint8,
            memory_format=torch.channels_last,
        )
        # One call per image: a batched call would give all of them the same crop.
        for i, box in enumerate(boxes.tolist()):
            out[i] = functional.resized_crop(
                pixels[i], *box, [self.size, self.size], antialias=True
            )
        return out

    def _normalise(self, pixels: Tensor) -> Tensor:
        shape = (1, -1, 1, 1)
        floats = pixels.to(torch.float32, memory_format=torch.channels_last)
        return floats.mul_(self.scale.view(shape)).add_(self.offset.view(shape))


def crop_boxes(
    n: int,
    height: int,
    width: int,
    area: tuple[float, float],
    ratio: tuple[float, float],
    generator: torch.Generator,
    aspects: Tensor | None = None,
) -> Tensor:
    """Random crops (n, 4) as top, left, height, width, in the common way of Inception training.

    Each image tries ten (area, ratio) pairs and takes the first that fits; when none does it takes
    the largest centre crop whose ratio is allowed.

    Args:
        aspects: Of pictures that were squashed to squares, (n,), float64; ratios are those in the
            picture. The generator draws the same with and without.
    """
    squashed = torch.ones(n, dtype=torch.float64) if aspects is None else aspects
    tries = 10
    areas = height * width * (area[0] + (area[1] - area[0]) * _uniform((n, tries), generator))
    low, high = math.log(ratio[0]), math.log(ratio[1])
    ratios = torch.exp(low + (high - low) * _uniform((n, tries), generator)) / squashed[:, None]
    widths = torch.round(torch.sqrt(areas * ratios)).long()
    heights = torch.round(torch.sqrt(areas / ratios)).long()
    fits = (widths >= 1) & (widths <= width) & (heights >= 1) & (heights <= height)
    first = fits.int().argmax(dim=1, keepdim=True)
    widths, heights = widths.gather(1, first)[:, 0], heights.gather(1, first)[:, 0]
    none = ~fits.any(dim=1)
    widest = torch.round(height * ratio[1] / squashed).long().clamp(1, width)
    highest = torch.round(width * squashed / ratio[0]).long().clamp(1, height)
    widths[none], heights[none] = widest[none], highest[none]
    at = _uniform((2, n), generator)
    at[:, none] = 0.5
    tops = (at[0] * (height - heights + 1)).long().clamp(max=height - heights)
    lefts = (at[1] * (width - widths + 1)).long().clamp(max=width - widths)
    return torch.stack([tops, lefts, heights, widths], dim=1)


def centre_boxes(side: int, aspects: NDArray[np.float32]) -> Tensor:
    """Where the evaluation's crop lies in a squashed square, (n, 4) as `crop_boxes`.

    In the picture it is a square of 0.875 of the shorter side, so in the square the longer side's
    share is smaller by the aspect. Margins are whole pixels, equal on both sides.
    """
    aspect = torch.from_numpy(aspects.astype(np.float64))
    shares = CROP_FRACTION * torch.stack([aspect, 1 / aspect]).clamp(max=1)  # height, width
    margins = torch.round(side * (1 - shares) / 2).long().clamp(max=(side - 1) // 2)
    return torch.cat([margins, side - 2 * margins]).T


def _uniform(shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    return torch.rand(shape, generator=generator, dtype=torch.float64)


def _channels_first(images: Images) -> Tensor:
    """A view (N, C, H, W) of stored images; memory maps are read here."""
    if isinstance(images, np.ndarray):
        # Copied: the map is read-only, and torch has no read-only tensors.
        images = torch.from_numpy(np.array(images))
    if images.ndim != 4 or images.dtype != torch.uint8:
        raise ValueError(
            f"images must be uint8 (N, H, W, C), got {images.dtype} {tuple(images.shape)}."
        )
    return images.permute(0, 3, 1, 2)


def _shifted(pixels: Tensor, most: int, at: Tensor) -> Tensor:
    """Every image moved by its own whole number of pixels; `at` is (2, n) of 0..2 most."""
    n, _, height, width = pixels.shape
    padded = torch.nn.functional.pad(pixels, (most, most, most, most))
    top, left = at
    rows = top[:, None] + torch.arange(height)
    columns = left[:, None] + torch.arange(width)
    images = torch.arange(n)[:, None, None]
    return padded.permute(0, 2, 3, 1)[images, rows[:, :, None], columns[:, None, :]].permute(
        0, 3, 1, 2
    )
