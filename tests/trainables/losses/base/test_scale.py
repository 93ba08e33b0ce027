"""Scale of the similarities: fixed, learned and annealed."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from trainables.losses import set_progress
from trainables.losses.base.scale import MIN_LEARNED_SCALE, ScaleMode, SimilarityScale

pytestmark = pytest.mark.split


def test_annealing_is_geometric(
    make_loss: Callable[..., Any], random_batch: tuple[Tensor, Tensor]
) -> None:
    annealed = make_loss("norm_softmax", temperature_mode="annealed", anneal_ratio=8.0)
    for fraction, ratio in ((0.0, 8.0), (0.5, 8.0**0.5), (1.0, 1.0)):
        set_progress(annealed, fraction)
        other = make_loss("norm_softmax", temperature=0.05 * ratio)
        torch.testing.assert_close(annealed(*random_batch), other(*random_batch))


def test_an_annealed_scale_ends_at_its_value() -> None:
    scale = SimilarityScale(20.0, mode="annealed", ratio=4.0)
    values = []
    for fraction in (-1.0, 0.0, 0.5, 1.0, 2.0):  # clipped to [0, 1]
        scale.set_progress(fraction)
        values.append(scale())
    assert values == pytest.approx([5.0, 5.0, 10.0, 20.0, 20.0])
    assert list(scale.parameters()) == []


def test_a_fixed_scale_ignores_the_progress() -> None:
    scale = SimilarityScale(20.0)
    scale.set_progress(0.5)
    assert scale() == 20.0


def test_a_learned_scale_is_stored_as_a_logarithm_with_a_lower_bound() -> None:
    scale = SimilarityScale(20.0, mode="learned")
    (parameter,) = scale.parameters()
    assert float(parameter.detach()) == pytest.approx(math.log(20.0))
    assert float(scale().detach()) == pytest.approx(20.0)
    parameter.data.fill_(-100.0)
    assert float(scale().detach()) == pytest.approx(MIN_LEARNED_SCALE)


@pytest.mark.parametrize(
    ("value", "mode", "ratio", "words"),
    [
        (0.0, "fixed", 4.0, "`gamma > 0`.*0"),
        (math.inf, "fixed", 4.0, "`gamma > 0`.*inf"),
        (1.0, "warm", 4.0, "`temperature_mode`.*'warm'"),
        (1.0, "annealed", 0.5, r"`anneal_ratio >= 1`.*0\.5"),
    ],
)
def test_impossible_scales_are_refused(
    value: float, mode: ScaleMode, ratio: float, words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        SimilarityScale(value, mode=mode, ratio=ratio, param="gamma")
