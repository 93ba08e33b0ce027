"""Device transform: the CPU path's images, from two matrix products and without a wait."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.support.pretend_device import count_device_work, register_pretend_device
from trainables.data import device_transform
from trainables.data.augment import (
    AUGMENTATION_PRESETS,
    AugmentationPreset,
    ImageTransform,
    sample_crop_boxes,
)
from trainables.data.device_transform import DeviceImageTransform, compute_evaluation_boxes
from trainables.utils.torchvision_import import import_torchvision

pytestmark = pytest.mark.split

MEAN, STD = (0.4, 0.5, 0.6), (0.2, 0.25, 0.5)
CPU, PRETEND = torch.device("cpu"), register_pretend_device()
CROP_AREA, CROP_RATIO = (0.02, 1.0), (1 / 2, 2.0)
FLOAT_LEVELS = 0.01  # largest difference from a resize in floats, in grey levels
# The CPU path rounds rows and columns to whole levels, and its weights to 16 bits.
ROUNDED_LEVELS = 1.01
MAX_LAUNCHES = 28
# Stored height and width, and size of the output: down- and upscaled, taller and wider.
SHAPES = [(24, 24, 16), (31, 20, 14), (20, 33, 24), (12, 12, 30), (40, 28, 7)]


def make_images(n: int, height: int, width: int, channels: int = 3) -> Tensor:
    """Make noise, of which a wrong position or weight changes every pixel."""
    generator = torch.Generator().manual_seed(height * width + n)
    shape = (n, height, width, channels)
    return torch.randint(0, 256, shape, dtype=torch.uint8, generator=generator)


def make_transform(size: int, *, device: torch.device = CPU, most: int = 0) -> DeviceImageTransform:
    return DeviceImageTransform(size=size, mean=MEAN, std=STD, device=device, max_shift_pixels=most)


def make_level_transform(size: int, *, channels: int = 3, most: int = 0) -> DeviceImageTransform:
    """Make a transform whose output is in grey levels."""
    return DeviceImageTransform(
        size=size,
        mean=(0.0,) * channels,
        std=(1 / 255,) * channels,
        device=CPU,
        max_shift_pixels=most,
    )


def largest_level_difference(one: Tensor, other: Tensor) -> float:
    """Return the largest difference of two normalised batches in grey levels."""
    assert one.shape == other.shape
    levels = (one.double() - other.double()) * 255 * torch.tensor(STD).view(1, -1, 1, 1)
    return float(levels.abs().max())


def resize_crops(images: Tensor, boxes: Tensor, size: int) -> Tensor:
    """Crop and resize float images with torchvision, in grey levels."""
    functional = import_torchvision("torchvision.transforms.v2.functional")
    floats = images.permute(0, 3, 1, 2).float()
    crops = [
        functional.resized_crop(image, *box, [size, size], antialias=True)
        for image, box in zip(floats, boxes.tolist(), strict=True)
    ]
    return torch.stack(crops)


def sample_boxes(n: int, height: int, width: int) -> Tensor:
    generator = torch.Generator().manual_seed(n + height + width)
    return sample_crop_boxes(n, height, width, CROP_AREA, CROP_RATIO, generator)


@pytest.mark.parametrize(("height", "width", "size"), SHAPES)
def test_crops_are_those_of_torchvision(height: int, width: int, size: int) -> None:
    n = 200
    images, boxes = make_images(n, height, width), sample_boxes(n, height, width)
    flips = torch.arange(n) % 3 == 0
    expected = resize_crops(images, boxes, size)
    expected[flips] = expected[flips].flip(-1)
    out = make_level_transform(size).crop_and_normalise(images, boxes, flips)
    assert (out - expected).abs().max() < FLOAT_LEVELS


@pytest.mark.parametrize(("height", "width", "size"), SHAPES)
def test_crops_at_edges_and_of_single_pixels_are_those_of_torchvision(
    height: int, width: int, size: int
) -> None:
    boxes = torch.tensor(
        [
            [0, 0, height, width],
            [0, 0, 5, 7],
            [height - 5, width - 7, 5, 7],
            [0, width - 1, height, 1],
            [height - 1, 0, 1, width],
            [height - 1, width - 1, 1, 1],
            [3, 2, 1, 1],
        ]
    )
    images = make_images(len(boxes), height, width)
    out = make_level_transform(size).crop_and_normalise(images, boxes)
    assert (out - resize_crops(images, boxes, size)).abs().max() < FLOAT_LEVELS


def test_large_images_are_as_exact_as_small_ones() -> None:
    """Positions of hundreds of pixels have fewer bits left for their fraction."""
    images = make_images(2, 500, 375)
    boxes = torch.tensor([[1, 3, 497, 371], [211, 150, 289, 225]])
    out = make_level_transform(224).crop_and_normalise(images, boxes)
    assert (out - resize_crops(images, boxes, 224)).abs().max() < FLOAT_LEVELS


@pytest.mark.parametrize(("height", "width", "size"), SHAPES)
def test_augmentation_is_that_of_the_cpu_path(
    monkeypatch: pytest.MonkeyPatch, height: int, width: int, size: int
) -> None:
    n, most = 60, 3
    preset = AugmentationPreset(
        crop_area=CROP_AREA, crop_ratio=CROP_RATIO, flip_probability=0.5, max_shift=most / size
    )
    monkeypatch.setitem(AUGMENTATION_PRESETS, "all", preset)
    images = make_images(n, height, width)
    generator = torch.Generator().manual_seed(1)
    on_host = ImageTransform("all", size=size, mean=MEAN, std=STD)
    expected = on_host.augment_images(images, generator)
    generator.manual_seed(1)
    boxes = sample_crop_boxes(n, height, width, CROP_AREA, CROP_RATIO, generator)
    shifts = torch.randint(0, 2 * most + 1, (2, n), generator=generator)
    flips = torch.rand(n, generator=generator) < 0.5
    out = make_transform(size, most=most).crop_and_normalise(images, boxes, flips, shifts)
    assert largest_level_difference(out, expected) < ROUNDED_LEVELS


@pytest.mark.parametrize("stored", [25, 28, 40])
def test_shifts_of_complete_images_are_those_of_the_cpu_path(stored: int) -> None:
    n, size, most = 20, 25, 2
    images = make_images(n, stored, stored)
    on_host = ImageTransform("light", size=size, mean=MEAN, std=STD)
    expected = on_host.augment_images(images, torch.Generator().manual_seed(1))
    shifts = torch.randint(0, 2 * most + 1, (2, n), generator=torch.Generator().manual_seed(1))
    boxes = compute_evaluation_boxes(n, stored, stored, size)
    out = make_transform(size, most=most).crop_and_normalise(images, boxes, None, shifts)
    assert largest_level_difference(out, expected) < ROUNDED_LEVELS


@pytest.mark.parametrize(
    ("height", "width"),
    # Of the output's size; cropped only; within one pixel of that; enlarged; reduced.
    [(28, 28), (32, 32), (31, 31), (33, 40), (40, 33), (28, 29), (27, 27), (27, 50), (97, 64)],
)
def test_evaluation_is_that_of_the_cpu_path(height: int, width: int) -> None:
    size, images = 28, make_images(5, height, width)
    boxes = compute_evaluation_boxes(5, height, width, size)
    out = make_transform(size).crop_and_normalise(images, boxes)
    on_host = ImageTransform("none", size=size, mean=MEAN, std=STD)
    expected = on_host.preprocess_images(images)
    is_resized = min(height, width) not in (31, 32, 33) and (height, width) != (size, size)
    assert boxes.is_floating_point() is is_resized
    assert largest_level_difference(out, expected) < (ROUNDED_LEVELS if is_resized else 1e-4)


@pytest.mark.parametrize(
    ("height", "width", "size"),
    # (71, 40): the longer side is rounded down; (2, 2): within one pixel, but too small to crop.
    [(40, 40, 28), (27, 50, 28), (97, 64, 28), (71, 40, 28), (500, 375, 224), (2, 2, 3)],
)
def test_evaluation_is_that_of_torchvision(height: int, width: int, size: int) -> None:
    functional = import_torchvision("torchvision.transforms.v2.functional")
    images = make_images(3, height, width)
    floats = images.permute(0, 3, 1, 2).float()
    resized = functional.resize(floats, [round(size / 0.875)], antialias=True)
    expected = functional.center_crop(resized, [size, size])
    boxes = compute_evaluation_boxes(3, height, width, size)
    out = make_level_transform(size).crop_and_normalise(images, boxes)
    assert (out - expected).abs().max() < FLOAT_LEVELS


@pytest.mark.parametrize(("height", "width", "size"), SHAPES)
def test_float_boxes_at_the_edges_end_with_the_image(height: int, width: int, size: int) -> None:
    images, boxes = make_images(2, height, width), torch.tensor([[0, 0, height, width]] * 2)
    out = make_level_transform(size).crop_and_normalise(images, boxes.double())
    assert (out - resize_crops(images, boxes, size)).abs().max() < FLOAT_LEVELS


@pytest.mark.parametrize("stored", [28, 32, 50])
def test_evaluation_of_squashed_images_is_that_of_the_cpu_path(stored: int) -> None:
    size, aspects = 28, np.array([0.5, 0.8, 1.0, 1.7, 3.0], dtype=np.float32)
    images = make_images(len(aspects), stored, stored)
    on_host = ImageTransform("none", size=size, mean=MEAN, std=STD)
    expected = on_host.preprocess_images(images, aspects)
    boxes = compute_evaluation_boxes(len(aspects), stored, stored, size, aspects)
    out = make_transform(size).crop_and_normalise(images, boxes)
    assert largest_level_difference(out, expected) < ROUNDED_LEVELS


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize(("height", "width"), [(40, 30), (30, 40)])
def test_boxes_of_the_output_size_are_exact(height: int, width: int, dtype: torch.dtype) -> None:
    """Flips and shifts too: every output pixel is one stored pixel, or zero."""
    n, size, most = 12, 16, 2
    images = make_images(n, height, width)
    tops, lefts = torch.randint(0, 15, (2, n), generator=torch.Generator().manual_seed(0))
    boxes = torch.stack([tops, lefts, *torch.full((2, n), size)], dim=1)
    flips = torch.arange(n) % 2 == 0
    shifts = torch.stack([torch.arange(n) % 5, torch.arange(n) % 3])
    expected = torch.zeros((n, 3, size, size))
    for i in range(n):
        crop = images[i, tops[i] : tops[i] + size, lefts[i] : lefts[i] + size].permute(2, 0, 1)
        padded = torch.nn.functional.pad(crop, (most,) * 4)
        down, right = shifts[:, i].tolist()
        moved = padded[:, down : down + size, right : right + size]
        expected[i] = moved.flip(-1) if flips[i] else moved
    transform = make_level_transform(size, most=most)
    out = transform.crop_and_normalise(images, boxes, flips, shifts, dtype)
    assert torch.equal(out.float(), expected)


@pytest.mark.parametrize(("dtype", "levels"), [(torch.float16, 0.3), (torch.bfloat16, 0.9)])
def test_half_types_keep_levels(dtype: torch.dtype, levels: float) -> None:
    """A product in bfloat16 would differ by more than a level."""
    images, boxes = make_images(40, 30, 30), sample_boxes(40, 30, 30)
    transform = make_level_transform(24)
    out = transform.crop_and_normalise(images, boxes, dtype=dtype)
    assert out.dtype == dtype
    assert out.is_contiguous(memory_format=torch.channels_last)
    expected = transform.crop_and_normalise(images, boxes)
    assert 0 < (out.float() - expected).abs().max() < levels


def test_autocast_does_not_change_the_images() -> None:
    images, boxes = make_images(8, 30, 30), sample_boxes(8, 30, 30)
    transform = make_transform(24)
    expected = transform.crop_and_normalise(images, boxes)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(transform.crop_and_normalise(images, boxes), expected)


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("n", [0, 2])
def test_grey_images_and_empty_batches(n: int, channels: int) -> None:
    images, boxes = make_images(n, 20, 26, channels), sample_boxes(n, 20, 26)
    transform = make_level_transform(12, channels=channels)
    out = transform.crop_and_normalise(images, boxes, torch.ones(n, dtype=torch.bool))
    assert out.shape == (n, channels, 12, 12)
    assert out.is_contiguous(memory_format=torch.channels_last)
    assert compute_evaluation_boxes(n, 20, 26, 12).shape == (n, 4)
    if n:
        expected = resize_crops(images, boxes, 12).flip(-1)
        assert (out - expected).abs().max() < FLOAT_LEVELS


@pytest.mark.parametrize(
    ("images", "boxes", "message"),
    [
        (torch.zeros(2, 9, 9, 3), torch.ones(2, 4), "images must be uint8"),
        (torch.zeros(2, 9, 9, 1, dtype=torch.uint8), torch.ones(2, 4), "images must be uint8"),
        (torch.zeros(2, 9, 9, 3, dtype=torch.uint8), torch.ones(1, 4), "boxes must be"),
    ],
)
def test_wrong_shapes_are_errors(images: Tensor, boxes: Tensor, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make_transform(8).crop_and_normalise(images, boxes)


def put_on_device(*tensors: Tensor | None) -> list[Any]:
    with count_device_work():
        return [None if tensor is None else tensor.to(PRETEND) for tensor in tensors]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("is_augmented", [True, False])
@pytest.mark.parametrize("is_evaluation", [True, False])
@pytest.mark.parametrize(("height", "width"), [(40, 40), (30, 40), (40, 30)])
def test_a_batch_needs_few_launches_and_no_wait(
    height: int, width: int, is_evaluation: bool, is_augmented: bool, dtype: torch.dtype
) -> None:
    n, size, most = 6, 20, 2
    images, boxes = make_images(n, height, width), sample_boxes(n, height, width)
    if is_evaluation:
        boxes = compute_evaluation_boxes(n, height, width, size)
    flips = torch.arange(n) % 2 == 0 if is_augmented else None
    shifts = torch.arange(2 * n).view(2, n) % (2 * most + 1) if is_augmented else None
    remote_images, remote_boxes, remote_flips, remote_shifts = put_on_device(
        images, boxes, flips, shifts
    )
    with count_device_work():
        transform = make_transform(size, device=PRETEND, most=most)
    with count_device_work() as counters:
        out = transform.crop_and_normalise(
            remote_images, remote_boxes, remote_flips, remote_shifts, dtype
        )
    assert out.device == PRETEND
    assert not counters.waits
    assert not counters.uploads
    assert counters.launches["bmm"] == 2
    assert counters.launches.total() <= MAX_LAUNCHES
    expected = make_transform(size, most=most).crop_and_normalise(
        images, boxes, flips, shifts, dtype
    )
    with count_device_work():
        assert torch.equal(out.cpu(), expected)


def test_parts_of_a_large_batch_look_as_in_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    n, size = 7, 20
    images, boxes = make_images(n, 40, 30), sample_boxes(n, 40, 30)
    flips, shifts = torch.arange(n) % 2 == 0, torch.arange(2 * n).view(2, n) % 5
    whole = make_transform(size, most=2).crop_and_normalise(images, boxes, flips, shifts)
    inputs = put_on_device(images, boxes, flips, shifts)
    with count_device_work():
        transform = make_transform(size, device=PRETEND, most=2)
    one_image = 4 * (2 * 20 * 40 + 3 * (40 * 30 + 20 * 30 + 20 * 20))
    for images_per_part, parts in ((0.5, 7), (3.5, 3), (7, 1)):
        limit = int(images_per_part * one_image)
        monkeypatch.setattr(device_transform, "MAX_TEMPORARY_BYTES", limit)
        with count_device_work() as counters:
            out = transform.crop_and_normalise(*inputs)
        assert counters.launches["bmm"] == 2 * parts
        with count_device_work():
            assert torch.allclose(out.cpu(), whole, atol=1e-6)


@pytest.mark.parametrize(
    ("height", "width", "is_first"), [(40, 20, True), (20, 40, False), (30, 30, True)]
)
def test_the_longer_side_is_reduced_first(
    monkeypatch: pytest.MonkeyPatch, height: int, width: int, is_first: bool
) -> None:
    operations = []
    multiply = device_transform._multiply_batches

    def count_operations(left: Tensor, right: Tensor) -> Tensor:
        operations.append(left.numel() * right.shape[2])
        return multiply(left, right)

    monkeypatch.setattr(device_transform, "_multiply_batches", count_operations)
    size, boxes = 10, sample_boxes(2, height, width)
    make_transform(size).crop_and_normalise(make_images(2, height, width), boxes)
    rows_first = 2 * 3 * size * width * (height + size)
    columns_first = 2 * 3 * size * height * (width + size)
    assert sum(operations) == (rows_first if is_first else columns_first)
    assert sum(operations) == min(rows_first, columns_first)
