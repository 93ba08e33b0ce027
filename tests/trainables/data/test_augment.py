"""Image transforms: random per image, reproducible, and undistorted for squashed images."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.gradient_images import make_gradient, make_level_transform, store_image
from trainables.data.augment import AUGMENTATION_PRESETS, ImageTransform, sample_crop_boxes
from trainables.training.context import choose_input_size
from trainables.utils.torchvision_import import import_torchvision

pytestmark = pytest.mark.split

MEAN, STD = (0.4, 0.5, 0.6), (0.2, 0.25, 0.5)
CROP_AREA, CROP_RATIO = (0.16, 1.0), (3 / 4, 4 / 3)
SHAPES = [(512, 384), (384, 512), (512, 128), (256, 256)]


def make_batch(n: int = 16, side: int = 48) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (n, side, side, 3), dtype=np.uint8)


def make_transform(preset: str, size: int = 48) -> ImageTransform:
    return ImageTransform(preset, size=size, mean=MEAN, std=STD)


def test_evaluation_normalises_and_does_not_crop_images_of_its_size() -> None:
    images = make_batch()
    out = make_transform("papers").preprocess_images(images)
    expected = (images.transpose(0, 3, 1, 2) / 255 - np.reshape(MEAN, (1, 3, 1, 1))) / np.reshape(
        STD, (1, 3, 1, 1)
    )
    assert out.dtype == torch.float32
    assert out.is_contiguous(memory_format=torch.channels_last)
    assert np.allclose(out.numpy(), expected, atol=1e-5)


def test_evaluation_of_256_px_is_the_centre_224() -> None:
    images = make_batch(2, 256)
    complete = ImageTransform("none", size=256, mean=MEAN, std=STD).preprocess_images(images)
    centre = ImageTransform("none", size=224, mean=MEAN, std=STD).preprocess_images(images)
    assert torch.equal(centre, complete[:, :, 16:240, 16:240])
    assert ImageTransform("none", size=32, mean=MEAN, std=STD).preprocess_images(images).shape == (
        2,
        3,
        32,
        32,
    )


@pytest.mark.parametrize("stored", [97, 100, 108, 227, 256, 500])
def test_evaluation_never_resamples_at_the_size_that_suits_the_stored(stored: int) -> None:
    """A side may differ by one pixel from rounding; the image is then cropped and not scaled."""
    images = make_batch(1, stored)
    size = choose_input_size(stored)
    cropped = ImageTransform("none", size=size, mean=MEAN, std=STD).preprocess_images(images)
    complete = ImageTransform("none", size=stored, mean=MEAN, std=STD).preprocess_images(images)
    at = [round((stored - size) / 2), (stored - size) // 2]
    assert any(torch.equal(cropped, complete[:, :, i : i + size, i : i + size]) for i in at)


@pytest.mark.parametrize("preset", AUGMENTATION_PRESETS)
def test_same_generator_same_output(preset: str) -> None:
    images = make_batch()

    def run(seed: int) -> torch.Tensor:
        return make_transform(preset).augment_images(images, torch.Generator().manual_seed(seed))

    assert torch.equal(run(1), run(1))
    assert torch.equal(run(1), run(2)) is (preset == "none")
    assert run(1).shape == (16, 3, 48, 48)


@pytest.mark.parametrize("preset", ["light", "papers"])
def test_every_image_of_a_batch_is_augmented_on_its_own(preset: str) -> None:
    images = np.repeat(make_batch(1), 32, axis=0)
    out = make_transform(preset).augment_images(images, torch.Generator().manual_seed(0))
    different = {tuple(image.flatten()[:500].tolist()) for image in out}
    assert len(different) > 16


def test_global_generator_is_not_used() -> None:
    before = torch.random.get_rng_state()
    make_transform("papers").augment_images(make_batch(), torch.Generator().manual_seed(0))
    assert torch.equal(torch.random.get_rng_state(), before)


def test_stored_images_are_not_changed() -> None:
    images = make_batch()
    images.flags.writeable = False
    copy = images.copy()
    for preset in AUGMENTATION_PRESETS:
        make_transform(preset).augment_images(images, torch.Generator().manual_seed(0))
    assert np.array_equal(images, copy)


def test_light_shifts_by_at_most_eight_percent_and_never_flips() -> None:
    images = np.zeros((200, 50, 50, 1), dtype=np.uint8)
    images[:, 25, 20] = 255  # one bright pixel, off the centre line
    light = ImageTransform("light", size=50, mean=(0.0,), std=(1.0,))
    out = light.augment_images(images, torch.Generator().manual_seed(0))[:, 0]
    places = out.flatten(1).argmax(dim=1)
    rows, columns = places // 50 - 25, places % 50 - 20
    assert set(rows.tolist()) == set(columns.tolist()) == set(range(-4, 5))


def test_papers_flip_half_of_the_images() -> None:
    images = np.zeros((400, 32, 32, 3), dtype=np.uint8)
    images[:, :, :, 0] = np.arange(32) * 8  # brighter to the right
    out = make_transform("papers", 32).augment_images(images, torch.Generator().manual_seed(0))[
        :, 0
    ]
    flipped = (out[:, :, 0] > out[:, :, -1]).all(dim=1).float().mean()
    assert 0.4 < flipped < 0.6


def test_crops_follow_the_papers() -> None:
    boxes = sample_crop_boxes(
        4000, 256, 256, (0.16, 1.0), (3 / 4, 4 / 3), torch.Generator().manual_seed(0)
    )
    top, left, height, width = boxes.unbind(1)
    assert (top >= 0).all()
    assert (left >= 0).all()
    assert (top + height <= 256).all()
    assert (left + width <= 256).all()
    area, ratio = height * width / 256**2, width / height
    assert 0.155 < area.min() < 0.18
    assert area.max() > 0.95
    assert ratio.min() >= 0.74
    assert ratio.max() <= 1.35
    # Compared with torchvision's own sampler, over the same number of samples.
    v2 = import_torchvision("torchvision.transforms.v2")
    crop = v2.RandomResizedCrop(8, scale=(0.16, 1.0), ratio=(3 / 4, 4 / 3))
    image = torch.zeros(3, 256, 256)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        samples = [crop.make_params([image]) for _ in range(4000)]
    torchvision_boxes = torch.tensor(
        [[d["top"], d["left"], d["height"], d["width"]] for d in samples]
    )
    for ours, reference in zip(boxes.T.double(), torchvision_boxes.T.double(), strict=True):
        assert abs(ours.mean() - reference.mean()) < 5
        assert abs(ours.std() - reference.std()) < 5


def test_impossible_crops_fall_back_to_the_centre() -> None:
    boxes = sample_crop_boxes(
        5, 20, 400, (0.9, 1.0), (3 / 4, 4 / 3), torch.Generator().manual_seed(0)
    )
    assert boxes.tolist() == [[0, 187, 20, 27]] * 5


def test_invalid_input_is_refused() -> None:
    with pytest.raises(ValueError, match="unknown augmentation 'paper'; did you mean 'papers'"):
        make_transform("paper")
    with pytest.raises(ValueError, match=r"images must be uint8 \(N, H, W, C\)"):
        make_transform("none").preprocess_images(np.zeros((2, 3, 4, 4), dtype=np.float32))


@settings(max_examples=40, deadline=None)
@given(
    aspect=st.floats(0.1, 10.0), seed=st.integers(0, 999), share=st.sampled_from([0.16, 0.5, 0.9])
)
def test_boxes_of_squashed_images_are_those_of_the_original(
    aspect: float, seed: int, share: float
) -> None:
    """The same random numbers give the same region, and the same fallback if none fits."""
    side = 2**20  # large, so that rounding is small
    height, width = round(side / aspect**0.5), round(side * aspect**0.5)
    generators = [torch.Generator().manual_seed(seed) for _ in range(2)]
    original = sample_crop_boxes(
        64, height, width, (share, 1.0), CROP_RATIO, generators[0]
    ).double()
    aspects = torch.full((64,), width / height, dtype=torch.float64)
    squashed = sample_crop_boxes(
        64, side, side, (share, 1.0), CROP_RATIO, generators[1], aspects
    ).double()
    assert torch.equal(generators[0].get_state(), generators[1].get_state())
    scale = torch.tensor([height, width, height, width]) / side
    apart = (squashed * scale - original).abs().amax(dim=1) > 2 + 2 * scale.max()
    assert apart.sum() <= 1, "except for a box that fits or not because of rounding"


@pytest.mark.parametrize(("width", "height"), SHAPES)
def test_crops_of_squashed_images_show_the_same_as_crops_of_the_original(
    width: int, height: int
) -> None:
    n, side, size = 24, 128, 64
    image = make_gradient(width, height)
    pixels, aspect = store_image(image, side, "whole")
    aspects = np.full(n, aspect, dtype=np.float32)
    images = np.repeat(pixels[None], n, axis=0)
    seen = make_level_transform("papers", size).augment_images(
        images, torch.Generator().manual_seed(1), aspects=aspects
    )
    generator = torch.Generator().manual_seed(1)
    boxes = sample_crop_boxes(
        n, side, side, CROP_AREA, CROP_RATIO, generator, torch.from_numpy(aspects).double()
    )
    flips = torch.rand(n, generator=generator) < 0.5
    functional = import_torchvision("torchvision.transforms.v2.functional")
    original = torch.from_numpy(np.array(image)).permute(2, 0, 1)
    for i, (top, left, high, wide) in enumerate(boxes.tolist()):
        x, y = width // side, height // side
        box = (top * y, left * x, high * y, wide * x)
        assert CROP_AREA[0] - 0.02 < box[2] * box[3] / (width * height) <= 1
        loose = 1 + 2 / min(high, wide)  # sides are integers
        assert CROP_RATIO[0] / loose < box[3] / box[2] < CROP_RATIO[1] * loose
        expected = functional.resized_crop(original, *box, [size, size], antialias=True)
        expected = expected.flip(-1) if flips[i] else expected
        assert (seen[i] - expected).abs().max() <= 3


def test_the_largest_allowed_crop_is_the_fallback_for_squashed_images() -> None:
    wide, tall, square = torch.tensor([[20.0], [1 / 20], [1.0]], dtype=torch.float64)
    aspects = torch.cat([wide, tall])
    boxes = sample_crop_boxes(
        2, 300, 300, (0.9, 1.0), CROP_RATIO, torch.Generator().manual_seed(0), aspects
    )
    assert boxes.tolist() == [[0, 140, 300, 20], [140, 0, 20, 300]]  # 20 / 300 * 20 = 4 / 3
    thin = sample_crop_boxes(1, 8, 8, (0.9, 1.0), CROP_RATIO, torch.Generator(), 1e4 * square)
    assert thin[0, 2:].tolist() == [8, 1]


@pytest.mark.parametrize(("width", "height"), [*SHAPES, (500, 333), (333, 500)])
def test_evaluation_of_squashed_images_shows_the_same_as_of_cropped_ones(
    width: int, height: int
) -> None:
    seen = []
    for fit in ("whole", "crop", "squash"):
        pixels, aspect = store_image(make_gradient(width, height), 256, fit)
        aspects = np.array([aspect], dtype=np.float32) if fit == "whole" else None
        seen.append(make_level_transform("none", 224).preprocess_images(pixels[None], aspects))
    whole, crop, squash = seen
    assert (whole - crop).abs().max() <= 2
    assert width == height or (squash - crop).abs().max() > 10


@pytest.mark.parametrize("side", [8, 9])
def test_evaluation_of_images_thinner_than_a_stored_pixel(side: int) -> None:
    aspects = np.array([1e4, 1e-4], dtype=np.float32)
    images = np.full((2, side, side, 3), 7, dtype=np.uint8)
    assert (make_level_transform("none", 16).preprocess_images(images, aspects) == 7).all()


@pytest.mark.parametrize("preset", ["none", "light"])
def test_without_crops_training_images_are_those_of_the_evaluation(preset: str) -> None:
    images = np.stack([store_image(make_gradient(*shape), 64, "whole")[0] for shape in SHAPES])
    aspects = np.array([w / h for w, h in SHAPES], dtype=np.float32)
    augment = make_level_transform(
        preset, 64
    )  # the stored size, at which an undistorted image is not cropped
    seen = augment.augment_images(images, torch.Generator().manual_seed(0), aspects=aspects)
    most = round(augment.preset.max_shift * 64)
    at = torch.randint(0, 2 * most + 1, (2, 4), generator=torch.Generator().manual_seed(0)) - most
    expected = augment.preprocess_images(images, aspects)
    for i, (down, right) in enumerate(at.T.tolist()):
        moved = expected[i].roll((-down, -right), (1, 2))
        assert torch.equal(seen[i, :, 8:-8, 8:-8], moved[:, 8:-8, 8:-8])
    assert not torch.equal(expected, augment.preprocess_images(images))
