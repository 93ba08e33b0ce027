"""Is a pair of names a noise floor exactly where nothing but its names differs?"""

from __future__ import annotations

import math
from typing import Any

import pytest
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution

from search_spaces import get_space
from search_spaces.space import Space, Value
from search_spaces.training import PROXY_RATES
from study.analyses.twins import one_function, trained_apart

Float = FloatDistribution
Case = tuple[str, dict[str, BaseDistribution], dict[str, Value]]


def spaces(*pairs: Case) -> dict[str, Space]:
    """Spaces by loss; each is (loss, what is searched, what is held)."""
    found = {}
    for loss, search, fixed in pairs:
        base = get_space(loss)
        if loss.startswith("pml:"):
            base = Space(loss=loss, paper="", scientific={}, nuisance=PROXY_RATES)
        found[loss] = base.with_changes(search=search, fixed=fixed)
    return found


def test_the_three_names_of_one_function_pair_as_they_come() -> None:
    three = spaces(
        ("norm_softmax", {}, {}), ("proxy_nca_pp", {}, {}), ("am_softmax", {}, {"m": 0.0})
    )
    assert one_function(three) == [("norm_softmax", "proxy_nca_pp", "am_softmax")]
    assert trained_apart(three) == []


@pytest.mark.parametrize(
    ("one", "other", "why"),
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
def test_a_function_searched_elsewhere_is_no_noise_floor(one: Case, other: Case, why: str) -> None:
    pair = spaces(one, other)
    assert one_function(pair) == []
    assert trained_apart(pair) == [(one[0], other[0], why)]


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
def test_what_counts_is_the_function_and_not_the_number(one: Case, other: Case) -> None:
    assert one_function(spaces(one, other)) == [(one[0], other[0])]


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
def test_a_library_s_name_of_one_of_ours_is_apart_by_its_start_alone(
    ours: Any, theirs: Any
) -> None:
    name, search, fixed = theirs
    ranges: dict[str, BaseDistribution] = {
        knob: Float(low, high, log=True) for knob, (low, high) in search.items()
    }
    pair = spaces(ours, (f"pml:{name}", ranges, fixed))
    assert one_function(pair) == []
    (apart,) = trained_apart(pair)
    assert apart.why.startswith("start of the proxies at length one and ")


def test_a_library_s_loss_left_at_its_default_is_no_searched_one() -> None:
    assert trained_apart(spaces(("norm_softmax", {}, {}), ("pml:ProxyNCALoss", {}, {}))) == []


def test_two_of_the_library_s_names_pair() -> None:
    pair = spaces(
        ("pml:NormalizedSoftmaxLoss", {"temperature": Float(0.005, 0.5, log=True)}, {}),
        ("pml:CosFaceLoss", {"scale": Float(2.0, 200.0, log=True)}, {"margin": 0.0}),
    )
    assert one_function(pair) == [("pml:NormalizedSoftmaxLoss", "pml:CosFaceLoss")]
