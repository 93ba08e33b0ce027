"""Equivalent losses: two names of one function, trained identically or differently."""

from __future__ import annotations

import math
from typing import Any

import pytest
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution

from search_spaces import get_space
from search_spaces.equivalence import describe_proxy_init
from search_spaces.shared.training import PROXY_RATE_PARAMS
from search_spaces.space import ParamValue, SearchSpace
from study.analyses.equivalent_losses import find_differently_trained_pairs, find_equivalent_losses

Float = FloatDistribution
Case = tuple[str, dict[str, BaseDistribution], dict[str, ParamValue]]


def spaces(*pairs: Case) -> dict[str, SearchSpace]:
    """Return spaces by loss, each from (loss, searched ranges, fixed values)."""
    by_loss = {}
    for loss, search, fixed in pairs:
        base = get_space(loss)
        if loss.startswith("pml:"):
            base = SearchSpace(loss=loss, paper="", scientific={}, nuisance=PROXY_RATE_PARAMS)
        by_loss[loss] = base.with_changes(search=search, fixed=fixed)
    return by_loss


def test_three_names_of_one_function_are_one_group() -> None:
    three = spaces(
        ("norm_softmax", {}, {}), ("proxy_nca_pp", {}, {}), ("am_softmax", {}, {"m": 0.0})
    )
    assert find_equivalent_losses(three) == [("norm_softmax", "proxy_nca_pp", "am_softmax")]
    assert find_differently_trained_pairs(three) == []


@pytest.mark.parametrize(
    ("one", "other", "difference"),
    [
        (
            ("norm_softmax", {"temperature": Float(0.005, 0.5, log=True)}, {}),
            ("proxy_nca_pp", {"temperature": Float(0.5, 1.0, log=True)}, {}),
            "cosine scale searched in [2, 200] log and searched in [2, 4] log",
        ),
        (
            ("norm_softmax", {"temperature": Float(0.005, 0.5, log=True)}, {}),
            ("am_softmax", {"gamma": Float(2.0, 200.0)}, {"m": 0.0}),
            "cosine scale searched in [2, 200] log and searched in [2, 200]",
        ),
        (
            ("norm_softmax", {"temperature": Float(0.005, 0.5)}, {}),
            ("am_softmax", {"gamma": Float(2.0, 200.0)}, {"m": 0.0}),
            "cosine scale searched as the reciprocal of [0.005, 0.5] and searched in [2, 200]",
        ),
        (
            ("am_softmax", {"m": Float(0.0, 0.7)}, {}),
            ("unified", {"m": Float(0.0, 0.001)}, {}),
            "margin searched in [0, 0.7] and searched in [0, 0.001]",
        ),
        (
            ("norm_softmax", {"label_smoothing": Float(0.0, 0.01)}, {}),
            ("proxy_nca_pp", {"label_smoothing": Float(0.0, 0.5)}, {}),
            "label_smoothing searched in [0, 0.01] and searched in [0, 0.5]",
        ),
    ],
)
def test_a_function_searched_in_another_range_is_not_a_noise_floor(
    one: Case, other: Case, difference: str
) -> None:
    pair = spaces(one, other)
    assert find_equivalent_losses(pair) == []
    assert find_differently_trained_pairs(pair) == [(one[0], other[0], difference)]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (
            ("norm_softmax", {"temperature": Float(0.01, 0.3, log=True)}, {}),
            ("proxy_nca_pp", {"temperature": Float(0.02, 0.6, log=True)}, {}),
        ),
        (
            ("norm_softmax", {"temperature": Float(0.01, 0.3)}, {}),
            ("proxy_nca_pp", {"temperature": Float(0.02, 0.6)}, {}),
        ),
        (
            ("norm_softmax", {"temperature": CategoricalDistribution([0.05, 0.1])}, {}),
            ("am_softmax", {"gamma": CategoricalDistribution([20.0, 10.0])}, {"m": 0.0}),
        ),
    ],
)
def test_ranges_are_compared_by_the_function_they_give(one: Case, other: Case) -> None:
    assert find_equivalent_losses(spaces(one, other)) == [(one[0], other[0])]


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (("norm_softmax", {}, {}), ("NormalizedSoftmaxLoss", {"temperature": (0.005, 0.5)}, {})),
        (("norm_softmax", {}, {}), ("ProxyNCALoss", {"softmax_scale": (1.0, 100.0)}, {})),
        (("norm_softmax", {}, {"temperature": 0.05}), ("NormalizedSoftmaxLoss", {}, {})),
        (("am_softmax", {}, {"m": 0.35}), ("CosFaceLoss", {"scale": (2.0, 200.0)}, {})),
        (
            ("arcface", {}, {"m": 0.5}),
            ("ArcFaceLoss", {"scale": (4.0, 256.0)}, {"margin": math.degrees(0.5)}),
        ),
        (
            ("proxy_anchor", {}, {"delta": 0.1}),
            ("ProxyAnchorLoss", {"alpha": (4.0, 128.0)}, {}),
        ),
    ],
)
def test_a_library_loss_differs_from_ours_only_in_its_initialisation(
    ours: Any, theirs: Any
) -> None:
    name, search, fixed = theirs
    ranges: dict[str, BaseDistribution] = {
        param: Float(low, high, log=True) for param, (low, high) in search.items()
    }
    pair = spaces(ours, (f"pml:{name}", ranges, fixed))
    assert find_equivalent_losses(pair) == []
    (apart,) = find_differently_trained_pairs(pair)
    start = f"proxy initialisation {describe_proxy_init(ours[0])} and "
    assert apart.difference.startswith(start)


def test_a_library_loss_at_its_default_is_not_equivalent_to_a_searched_one() -> None:
    pair = spaces(("norm_softmax", {}, {}), ("pml:ProxyNCALoss", {}, {}))
    assert find_differently_trained_pairs(pair) == []


def test_two_library_losses_can_be_equivalent() -> None:
    pair = spaces(
        ("pml:NormalizedSoftmaxLoss", {"temperature": Float(0.005, 0.5, log=True)}, {}),
        ("pml:CosFaceLoss", {"scale": Float(2.0, 200.0, log=True)}, {"margin": 0.0}),
    )
    assert find_equivalent_losses(pair) == [("pml:NormalizedSoftmaxLoss", "pml:CosFaceLoss")]
