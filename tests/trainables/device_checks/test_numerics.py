"""Comparisons of a device with the CPU find no difference on a correct device, and find errors."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch

from tests.support.pretend_device import count_device_work, register_pretend_device
from trainables.data.device_transform import DeviceImageTransform
from trainables.device_checks import numerics
from trainables.device_checks.numerics import (
    MAX_GREY_LEVELS,
    LossDifference,
    compare_image_transforms,
    compare_losses,
    compare_scores,
    find_largest_difference,
)

pytestmark = pytest.mark.split

DEVICE = register_pretend_device()
LOSSES: dict[str, dict[str, Any]] = {
    "norm_softmax": {"temperature": 0.05},
    "proxy_anchor+synthesis": {
        "alpha": 32.0,
        "delta": 0.1,
        "synthesis_alpha": 0.4,
        "synthesis_mu": 1.0,
    },
    "triplet": {"margin": 0.2},
}


def test_losses_on_a_device_are_those_of_the_cpu() -> None:
    with count_device_work() as counters:
        differences = compare_losses(DEVICE, LOSSES)
    assert [difference.loss for difference in differences] == list(LOSSES)
    assert all(difference.is_exact for difference in differences), differences
    assert sum(counters.launches.values()) > 100  # the device has computed them


@pytest.mark.parametrize(
    ("dtype", "change"),
    [
        (torch.float32, lambda t: t.half().float()),  # ten bits of mantissa, as TF32 has
        (torch.float64, lambda t: t * (1 + 1e-6)),
    ],
)
def test_a_device_that_computes_coarsely_is_found(
    dtype: torch.dtype, change: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    compute = numerics._compute_loss

    def compute_coarsely(name: str, params: Any, device: torch.device, type_: torch.dtype) -> Any:
        is_coarse = device == DEVICE and type_ == dtype
        return [change(t) if is_coarse else t for t in compute(name, params, device, type_)]

    monkeypatch.setattr(numerics, "_compute_loss", compute_coarsely)
    with count_device_work():
        (difference,) = compare_losses(DEVICE, {"triplet": LOSSES["triplet"]})
    assert not difference.is_exact


def test_a_difference_that_is_not_a_number_is_never_exact() -> None:
    fine = LossDifference("triplet", 1e-12, 1e-6, 1e-6)
    assert fine.is_exact
    assert not replace(fine, float64=math.nan).is_exact
    assert not replace(fine, float32=math.nan).is_exact
    assert not replace(fine, float32=1e-3).is_exact
    one, nan = torch.ones(2), torch.tensor([1.0, math.nan])
    assert math.isnan(find_largest_difference([one, nan], [one, one]))
    assert find_largest_difference([torch.tensor([1.0, 3.0])], [torch.tensor([1.0, 2.0])]) == 0.5
    with pytest.raises(ValueError, match="shapes"):
        find_largest_difference([one], [torch.ones(3)])


def test_crops_on_a_device_are_those_of_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    with count_device_work():
        assert compare_image_transforms(DEVICE) <= MAX_GREY_LEVELS
        crop = DeviceImageTransform.crop_and_normalise

        def crop_without_flips(self: Any, images: Any, boxes: Any, flips: Any) -> Any:
            return crop(self, images, boxes)

        monkeypatch.setattr(DeviceImageTransform, "crop_and_normalise", crop_without_flips)
        assert compare_image_transforms(DEVICE) > 10


def test_scores_on_a_device_are_those_of_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    with count_device_work() as counters:
        assert compare_scores(DEVICE, n=200) == 0
        assert sum(counters.launches.values()) > 10
        monkeypatch.setattr(
            numerics, "evaluate", lambda x, y: {"map_at_r": float(x.device == DEVICE)}
        )
        assert compare_scores(DEVICE, n=200) == 1
