"""Augmentation: each image its own chance, the same chance for the same generator."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from trainables.data.augment import PRESETS, Augment, crop_boxes
from trainables.workbench import suitable_size

MEAN, STD = (0.4, 0.5, 0.6), (0.2, 0.25, 0.5)


def batch(n: int = 16, side: int = 48) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (n, side, side, 3), dtype=np.uint8)


def augment(preset: str, size: int = 48) -> Augment:
    return Augment(preset, size=size, mean=MEAN, std=STD)


def test_evaluation_normalises_and_keeps_whole_images() -> None:
    images = batch()
    out = augment("papers").evaluate(images)
    expected = (images.transpose(0, 3, 1, 2) / 255 - np.reshape(MEAN, (1, 3, 1, 1))) / np.reshape(
        STD, (1, 3, 1, 1)
    )
    assert out.dtype == torch.float32
    assert out.is_contiguous(memory_format=torch.channels_last)
    assert np.allclose(out.numpy(), expected, atol=1e-5)


def test_evaluation_of_256_px_is_the_centre_224() -> None:
    images = batch(2, 256)
    whole = Augment("none", size=256, mean=MEAN, std=STD).evaluate(images)
    centre = Augment("none", size=224, mean=MEAN, std=STD).evaluate(images)
    assert torch.equal(centre, whole[:, :, 16:240, 16:240])
    assert Augment("none", size=32, mean=MEAN, std=STD).evaluate(images).shape == (2, 3, 32, 32)


@pytest.mark.parametrize("stored", [97, 100, 108, 227, 256, 500])
def test_evaluation_never_resamples_at_the_size_that_suits_the_stored(stored: int) -> None:
    """Rounded to the network's side and back, a side may be a pixel off: it is cut, not scaled."""
    images = batch(1, stored)
    size = suitable_size(stored)
    seen = Augment("none", size=size, mean=MEAN, std=STD).evaluate(images)
    whole = Augment("none", size=stored, mean=MEAN, std=STD).evaluate(images)
    at = [round((stored - size) / 2), (stored - size) // 2]
    assert any(torch.equal(seen, whole[:, :, i : i + size, i : i + size]) for i in at)


@pytest.mark.parametrize("preset", PRESETS)
def test_same_generator_same_output(preset: str) -> None:
    images = batch()

    def run(seed: int) -> torch.Tensor:
        return augment(preset).train(images, torch.Generator().manual_seed(seed))

    assert torch.equal(run(1), run(1))
    assert torch.equal(run(1), run(2)) is (preset == "none")
    assert run(1).shape == (16, 3, 48, 48)


@pytest.mark.parametrize("preset", ["light", "papers"])
def test_every_image_of_a_batch_has_its_own_chance(preset: str) -> None:
    images = np.repeat(batch(1), 32, axis=0)
    out = augment(preset).train(images, torch.Generator().manual_seed(0))
    different = {tuple(image.flatten()[:500].tolist()) for image in out}
    assert len(different) > 16


def test_global_generator_is_not_used() -> None:
    before = torch.random.get_rng_state()
    augment("papers").train(batch(), torch.Generator().manual_seed(0))
    assert torch.equal(torch.random.get_rng_state(), before)


def test_stored_images_are_not_changed() -> None:
    images = batch()
    images.flags.writeable = False
    copy = images.copy()
    for preset in PRESETS:
        augment(preset).train(images, torch.Generator().manual_seed(0))
    assert np.array_equal(images, copy)


def test_light_moves_by_at_most_eight_percent_and_never_mirrors() -> None:
    images = np.zeros((200, 50, 50, 1), dtype=np.uint8)
    images[:, 25, 20] = 255  # one bright pixel, off the centre line
    light = Augment("light", size=50, mean=(0.0,), std=(1.0,))
    out = light.train(images, torch.Generator().manual_seed(0))[:, 0]
    places = out.flatten(1).argmax(dim=1)
    rows, columns = places // 50 - 25, places % 50 - 20
    assert set(rows.tolist()) == set(columns.tolist()) == set(range(-4, 5))


def test_papers_flip_half_of_the_images() -> None:
    images = np.zeros((400, 32, 32, 3), dtype=np.uint8)
    images[:, :, :, 0] = np.arange(32) * 8  # brighter to the right
    out = augment("papers", 32).train(images, torch.Generator().manual_seed(0))[:, 0]
    mirrored = (out[:, :, 0] > out[:, :, -1]).all(dim=1).float().mean()
    assert 0.4 < mirrored < 0.6


def test_crops_follow_the_papers() -> None:
    boxes = crop_boxes(
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
    # Against torchvision's own sampler, over the same number of draws.
    from trainables.vision import import_torchvision

    v2 = import_torchvision("torchvision.transforms.v2")
    crop = v2.RandomResizedCrop(8, scale=(0.16, 1.0), ratio=(3 / 4, 4 / 3))
    picture = torch.zeros(3, 256, 256)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        drawn = [crop.make_params([picture]) for _ in range(4000)]
    theirs = torch.tensor([[d["top"], d["left"], d["height"], d["width"]] for d in drawn])
    for ours, reference in zip(boxes.T.double(), theirs.T.double(), strict=True):
        assert abs(ours.mean() - reference.mean()) < 5
        assert abs(ours.std() - reference.std()) < 5


def test_impossible_crops_fall_back_to_the_centre() -> None:
    boxes = crop_boxes(5, 20, 400, (0.9, 1.0), (3 / 4, 4 / 3), torch.Generator().manual_seed(0))
    assert boxes.tolist() == [[0, 187, 20, 27]] * 5


def test_wrong_input_is_refused() -> None:
    with pytest.raises(ValueError, match="unknown augmentation 'paper'; did you mean 'papers'"):
        augment("paper")
    with pytest.raises(ValueError, match=r"images must be uint8 \(N, H, W, C\)"):
        augment("none").evaluate(np.zeros((2, 3, 4, 4), dtype=np.float32))
