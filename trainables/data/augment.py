"""Image transforms: stored pixels to the input of a backbone, augmented or not."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from trainables.utils.suggestions import unknown_name_error
from trainables.utils.torchvision_import import import_torchvision

ImageBatch = NDArray[Any] | Tensor
AspectRatios = NDArray[np.float32] | None
EVAL_CROP_FRACTION = 224 / 256  # evaluation: shorter side 256, centre 224, as the papers do


@dataclass(frozen=True)
class AugmentationPreset:
    """Random changes of training images.

    Args:
        crop_area: Range of the crop's share of the image; None for no crop.
        crop_ratio: Range of the crop's width / height, sampled log-uniformly.
        flip_probability: Probability of a horizontal flip.
        max_shift: Largest shift as a share of the side; edges are filled with zeros.
    """

    crop_area: tuple[float, float] | None = None
    crop_ratio: tuple[float, float] = (3 / 4, 4 / 3)
    flip_probability: float = 0.0
    max_shift: float = 0.0


AUGMENTATION_PRESETS: Mapping[str, AugmentationPreset] = {
    "none": AugmentationPreset(),
    # For characters: a flipped or cropped character may be another one.
    "light": AugmentationPreset(max_shift=0.08),
    # Random resized crop and flip of the metric-learning papers and their repositories.
    "papers": AugmentationPreset(crop_area=(0.16, 1.0), flip_probability=0.5),
}


@dataclass(frozen=True)
class AugmentationDraws:
    """Random numbers of an augmentation, one for each image; None for changes without them.

    Args:
        boxes: Crops (n, 4) as top, left, height, width.
        shifts: Shifts (2, n) down and to the right, each 0..2 * `max_shift_pixels`.
        flips: Whether each image is flipped (n,).
    """

    boxes: Tensor | None
    shifts: Tensor | None
    flips: Tensor | None

    def select(self, rows: slice) -> AugmentationDraws:
        """Return the draws of some images."""
        return AugmentationDraws(
            None if self.boxes is None else self.boxes[rows],
            None if self.shifts is None else self.shifts[:, rows],
            None if self.flips is None else self.flips[rows],
        )


class ImageTransform:
    """Transform of stored uint8 images (N, H, W, C) to normalised float32 (N, C, size, size).

    Every image of a batch has its own random crop, flip and shift, from the generator passed with
    the batch: the same generator state gives the same output, however ranks share the batch. The
    output is in channels-last memory order, which convolutions on CPUs and tensor cores prefer.

    Images with `aspects` were squashed to squares from images of these width / height ratios. Crops
    are chosen in the original image and cut at the corresponding place of the square, which undoes
    the distortion.

    Args:
        preset: A key of `AUGMENTATION_PRESETS`.
        size: Height and width of the output.
        mean: Mean per channel of pixels scaled to 0..1, as the backbone expects.
        std: Standard deviation per channel, likewise.
    """

    def __init__(
        self, preset: str, *, size: int, mean: Sequence[float], std: Sequence[float]
    ) -> None:
        if preset not in AUGMENTATION_PRESETS:
            raise unknown_name_error("augmentation", preset, AUGMENTATION_PRESETS)
        self.preset, self.size = AUGMENTATION_PRESETS[preset], size
        self.mean, self.std = tuple(mean), tuple(std)
        self.scale = torch.tensor([1 / (255 * s) for s in std])
        self.offset = torch.tensor([-m / s for m, s in zip(mean, std, strict=True)])

    def draw_augmentation(
        self,
        n: int,
        height: int,
        width: int,
        generator: torch.Generator,
        aspects: AspectRatios = None,
    ) -> AugmentationDraws:
        """Draw the random crops, shifts and flips of a batch.

        Args:
            n: Number of images.
            height: Height of the stored images.
            width: Width of the stored images.
            generator: A CPU generator.
            aspects: Aspect ratios of the images; None if they are not distorted.
        """
        boxes = shifts = flips = None
        if self.preset.crop_area is not None:
            squashed = None if aspects is None else torch.from_numpy(aspects.astype(np.float64))
            area, ratio = self.preset.crop_area, self.preset.crop_ratio
            boxes = sample_crop_boxes(n, height, width, area, ratio, generator, squashed)
        if self.preset.max_shift:
            shifts = torch.randint(0, 2 * self.max_shift_pixels + 1, (2, n), generator=generator)
        if self.preset.flip_probability:
            flips = torch.rand(n, generator=generator) < self.preset.flip_probability
        return AugmentationDraws(boxes, shifts, flips)

    @property
    def max_shift_pixels(self) -> int:
        """Largest shift in pixels of the output."""
        return round(self.preset.max_shift * self.size)

    def augment_images(
        self,
        images: ImageBatch,
        generator: torch.Generator,
        *,
        aspects: AspectRatios = None,
        part: tuple[int, int] | None = None,
    ) -> Tensor:
        """Return augmented images.

        Args:
            images: Stored images.
            generator: A CPU generator.
            aspects: Aspect ratios of the images; None if they are not distorted.
            part: Position of the first image in its batch, and size of the batch; the images look
                as they would in the complete batch. None for a complete batch.
        """
        start, total = part or (0, len(images))
        own = slice(start, start + len(images))
        if aspects is not None:  # the draws of other ranks' images are not used
            aspects = np.concatenate(
                [np.ones(start), aspects, np.ones(total - own.stop)], dtype=np.float32
            )
        height, width = images.shape[1:3]
        draws = self.draw_augmentation(total, height, width, generator, aspects)
        own_aspects = None if aspects is None else aspects[own]
        return self.apply_augmentation(images, draws.select(own), aspects=own_aspects)

    def apply_augmentation(
        self, images: ImageBatch, draws: AugmentationDraws, *, aspects: AspectRatios = None
    ) -> Tensor:
        """Return images with the crops, shifts and flips that `draw_augmentation` has drawn."""
        pixels = _to_channels_first(images)
        if draws.boxes is not None:
            pixels = self._crop_each_image(pixels, draws.boxes)
        else:
            pixels = self._resize_and_crop(pixels, aspects)
        if draws.shifts is not None:
            pixels = _shift_images(pixels, self.max_shift_pixels, draws.shifts)
        floats = self._normalise_pixels(pixels)
        if draws.flips is not None:
            for i in draws.flips.nonzero()[:, 0].tolist():
                floats[i] = floats[i].flip(-1)
        return floats

    def preprocess_images(self, images: ImageBatch, aspects: AspectRatios = None) -> Tensor:
        """Return images without augmentation: shorter side to size / 0.875, centre crop.

        Images stored at exactly `size` are not cropped, unless they have `aspects`.
        """
        return self._normalise_pixels(self._resize_and_crop(_to_channels_first(images), aspects))

    def _resize_and_crop(self, pixels: Tensor, aspects: AspectRatios) -> Tensor:
        height, width = pixels.shape[-2:]
        if aspects is not None:
            return self._crop_each_image(pixels, compute_centre_boxes(height, aspects))
        if (height, width) == (self.size, self.size):
            return pixels
        if len(pixels) == 0:  # a rank without a share of the batch; resize fails on no images
            return pixels.new_empty((0, pixels.shape[1], self.size, self.size))
        functional = import_torchvision("torchvision.transforms.v2.functional")
        shorter = round(self.size / EVAL_CROP_FRACTION)
        # A side that differs by one pixel from rounding is cropped; scaling would only blur it.
        if abs(min(height, width) - shorter) > 1 or min(height, width) < self.size:
            pixels = functional.resize(pixels, [shorter], antialias=True)
        cropped: Tensor = functional.center_crop(pixels, [self.size, self.size])
        return cropped

    def _crop_each_image(self, pixels: Tensor, boxes: Tensor) -> Tensor:
        functional = import_torchvision("torchvision.transforms.v2.functional")
        out = torch.empty(
            (len(pixels), pixels.shape[1], self.size, self.size),
            dtype=torch.uint8,
            memory_format=torch.channels_last,
        )
        # One call per image, because a batched call would crop all of them alike.
        for i, box in enumerate(boxes.tolist()):
            out[i] = functional.resized_crop(
                pixels[i], *box, [self.size, self.size], antialias=True
            )
        return out

    def _normalise_pixels(self, pixels: Tensor) -> Tensor:
        shape = (1, -1, 1, 1)
        floats = pixels.to(torch.float32, memory_format=torch.channels_last)
        return floats.mul_(self.scale.view(shape)).add_(self.offset.view(shape))


def sample_crop_boxes(
    n: int,
    height: int,
    width: int,
    area: tuple[float, float],
    ratio: tuple[float, float],
    generator: torch.Generator,
    aspects: Tensor | None = None,
) -> Tensor:
    """Return random crops (n, 4) as top, left, height, width, as in Inception training.

    For each image ten (area, ratio) pairs are sampled, and the first that fits is used; if none
    fits, the largest centre crop with an allowed ratio.

    Args:
        n: Number of crops.
        height: Height of the stored images.
        width: Width of the stored images.
        area: Range of the crop's share of the image.
        ratio: Range of the crop's width / height, in the original image.
        generator: A CPU generator; it advances equally with and without `aspects`.
        aspects: Aspect ratios of images that were squashed to squares, (n,), float64.
    """
    squashed = torch.ones(n, dtype=torch.float64) if aspects is None else aspects
    tries = 10
    areas = (
        height * width * (area[0] + (area[1] - area[0]) * _sample_uniform((n, tries), generator))
    )
    low, high = math.log(ratio[0]), math.log(ratio[1])
    ratios = (
        torch.exp(low + (high - low) * _sample_uniform((n, tries), generator)) / squashed[:, None]
    )
    widths = torch.round(torch.sqrt(areas * ratios)).long()
    heights = torch.round(torch.sqrt(areas / ratios)).long()
    fits = (widths >= 1) & (widths <= width) & (heights >= 1) & (heights <= height)
    first = fits.int().argmax(dim=1, keepdim=True)
    widths, heights = widths.gather(1, first)[:, 0], heights.gather(1, first)[:, 0]
    none = ~fits.any(dim=1)
    widest = torch.round(height * ratio[1] / squashed).long().clamp(1, width)
    highest = torch.round(width * squashed / ratio[0]).long().clamp(1, height)
    widths[none], heights[none] = widest[none], highest[none]
    at = _sample_uniform((2, n), generator)
    at[:, none] = 0.5
    tops = (at[0] * (height - heights + 1)).long().clamp(max=height - heights)
    lefts = (at[1] * (width - widths + 1)).long().clamp(max=width - widths)
    return torch.stack([tops, lefts, heights, widths], dim=1)


def compute_centre_boxes(side: int, aspects: NDArray[np.float32]) -> Tensor:
    """Return the evaluation crop in squashed squares, (n, 4) like `sample_crop_boxes`.

    In the original image the crop is a square of 0.875 of the shorter side, so in the squashed
    square its share of the longer side is smaller by the aspect ratio. Margins are integers, equal
    on both sides.
    """
    aspect = torch.from_numpy(aspects.astype(np.float64))
    shares = EVAL_CROP_FRACTION * torch.stack([aspect, 1 / aspect]).clamp(max=1)  # height, width
    margins = torch.round(side * (1 - shares) / 2).long().clamp(max=(side - 1) // 2)
    return torch.cat([margins, side - 2 * margins]).T


def _sample_uniform(shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    return torch.rand(shape, generator=generator, dtype=torch.float64)


def _to_channels_first(images: ImageBatch) -> Tensor:
    """Return stored images as (N, C, H, W); memory maps are read here."""
    if isinstance(images, np.ndarray):
        # Copied, because the map is read-only and torch has no read-only tensors.
        images = torch.from_numpy(np.array(images))
    if images.ndim != 4 or images.dtype != torch.uint8:
        raise ValueError(
            f"images must be uint8 (N, H, W, C), got {images.dtype} {tuple(images.shape)}"
        )
    return images.permute(0, 3, 1, 2)


def _shift_images(pixels: Tensor, most: int, at: Tensor) -> Tensor:
    """Shift every image by its own number of pixels; `at` is (2, n), each 0..2 * `most`."""
    n, _, height, width = pixels.shape
    padded = torch.nn.functional.pad(pixels, (most, most, most, most))
    top, left = at
    rows = top[:, None] + torch.arange(height)
    columns = left[:, None] + torch.arange(width)
    images = torch.arange(n)[:, None, None]
    return padded.permute(0, 2, 3, 1)[images, rows[:, :, None], columns[:, None, :]].permute(
        0, 3, 1, 2
    )
