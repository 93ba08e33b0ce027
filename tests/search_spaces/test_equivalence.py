"""Losses that are the same function are recognised, and only those.

test_loss_identities.py shows with numbers that equal canonical forms are equal functions.
"""

from __future__ import annotations

import math

import pytest
from optuna.distributions import BaseDistribution

from search_spaces import SPACES, canonical_form, get_space, group_equivalent_losses
from search_spaces.equivalence import describe_proxy_init, function_params, function_ranges
from search_spaces.space import Choice, Float, Int, ParamValue

pytestmark = pytest.mark.split


def test_norm_softmax_and_proxy_nca_pp_are_the_same_function() -> None:
    losses = ["proxy_anchor", "proxy_nca_pp", "triplet", "norm_softmax", "am_softmax"]
    assert group_equivalent_losses(losses) == [("proxy_nca_pp", "norm_softmax")]


def test_library_losses_are_recognised() -> None:
    losses = ["norm_softmax", "pml:NormalizedSoftmaxLoss", "pml:CosFaceLoss", "am_softmax"]
    assert group_equivalent_losses(losses) == [tuple(losses[:2]), tuple(losses[2:])]
    angles = ["arcface", "pml:ArcFaceLoss", "proxy_anchor", "pml:ProxyAnchorLoss"]
    assert group_equivalent_losses(angles) == [tuple(angles[:2]), tuple(angles[2:])]
    # Proxy-Anchor without a margin is not a softmax.
    fixed: dict[str, dict[str, ParamValue]] = {
        "proxy_anchor": {"delta": 0.0, "alpha": 20.0},
        "norm_softmax": {"temperature": 0.05},
    }
    assert group_equivalent_losses(["proxy_anchor", "norm_softmax"], fixed) == []


def test_margin_losses_with_a_margin_of_zero_are_equivalent() -> None:
    losses = ["am_softmax", "norm_softmax", "arcface", "unified"]
    fixed: dict[str, dict[str, ParamValue]] = {name: {"m": 0.0} for name in losses}
    assert group_equivalent_losses(losses, fixed) == [tuple(losses)]
    assert group_equivalent_losses(losses) == [("am_softmax", "unified")]
    assert group_equivalent_losses(losses, {"am_softmax": {"m": 0.3}}) == []
    same = {"am_softmax": {"m": 0.3}, "unified": {"m": 0.3}}
    assert group_equivalent_losses(losses, same) == [("am_softmax", "unified")]


def test_soft_triple_with_one_centre_is_am_softmax() -> None:
    fixed: dict[str, dict[str, ParamValue]] = {"soft_triple": {"centers": 1}}
    assert group_equivalent_losses(["soft_triple", "am_softmax"], fixed) == [
        ("soft_triple", "am_softmax")
    ]
    assert group_equivalent_losses(["soft_triple", "am_softmax"]) == []


def test_losses_with_and_without_the_plugin_are_in_different_groups() -> None:
    losses = ["norm_softmax", "proxy_nca_pp+synthesis", "norm_softmax+synthesis", "proxy_nca_pp"]
    assert group_equivalent_losses(losses) == [
        ("norm_softmax", "proxy_nca_pp"),
        ("proxy_nca_pp+synthesis", "norm_softmax+synthesis"),
    ]


def test_label_smoothing_of_one_loss_separates_a_pair() -> None:
    losses = ["norm_softmax", "proxy_nca_pp"]
    assert group_equivalent_losses(losses, {"norm_softmax": {"label_smoothing": 0.1}}) == []
    both: dict[str, dict[str, ParamValue]] = {name: {"label_smoothing": 0.1} for name in losses}
    assert group_equivalent_losses(losses, both) == [tuple(losses)]


def test_label_smoothing_searched_for_one_loss_separates_a_pair() -> None:
    losses = ["norm_softmax", "proxy_nca_pp"]
    searched = {"norm_softmax": ["temperature", "label_smoothing"], "proxy_nca_pp": ["temperature"]}
    assert group_equivalent_losses(losses, searched=searched) == []
    searched["proxy_nca_pp"].append("label_smoothing")
    assert group_equivalent_losses(losses, searched=searched) == [tuple(losses)]


PAIR = ["norm_softmax", "proxy_nca_pp"]
PLUGIN_PAIR = [f"{name}+synthesis" for name in PAIR]


@pytest.mark.parametrize(
    ("losses", "param", "first", "second"),
    [
        (PAIR, "temperature", 0.05, 0.05),  # cosine scales 20 and 40
        (PAIR, "anneal_ratio", 2.0, 4.0),
        (PLUGIN_PAIR, "synthesis_mu", 1.0, 2.0),
        (PLUGIN_PAIR, "synthesis_alpha", 0.4, 1.0),
    ],
)
def test_params_fixed_at_different_values_separate_a_pair(
    losses: list[str], param: str, first: ParamValue, second: ParamValue
) -> None:
    annealed: dict[str, ParamValue] = {"temperature_mode": "annealed"}
    mode = annealed if param == "anneal_ratio" else {}
    fixed = {losses[0]: {**mode, param: first}, losses[1]: {**mode, param: second}}
    assert group_equivalent_losses(losses, fixed) == []
    # The function counts, not the number: T of one is 2 T of the other.
    equal = {"temperature": 0.1}.get(param, first)
    fixed[losses[1]][param] = equal
    assert group_equivalent_losses(losses, fixed) == [tuple(losses)]
    # Fixed for one loss and searched for the other: not equivalent either.
    fixed[losses[1]] = dict(mode)
    assert group_equivalent_losses(losses, fixed, {losses[1]: [param]}) == []


def test_synthesis_without_synthetic_classes_is_the_host() -> None:
    losses = ["norm_softmax", "norm_softmax+synthesis"]
    assert group_equivalent_losses(losses) == []
    assert group_equivalent_losses(losses, {losses[1]: {"synthesis_mu": 0.0}}) == [tuple(losses)]
    point = {"temperature": 0.1, "synthesis_alpha": 0.4, "synthesis_mu": 0.0}
    assert canonical_form(losses[1], point) == canonical_form(losses[0], {"temperature": 0.1})


def test_an_anneal_ratio_of_one_is_a_fixed_temperature() -> None:
    point: dict[str, ParamValue] = {"temperature": 0.1, "temperature_mode": "annealed"}
    assert canonical_form("norm_softmax", {**point, "anneal_ratio": 1.0}) == canonical_form(
        "norm_softmax", {"temperature": 0.1}
    )


@pytest.mark.parametrize("loss", SPACES)
def test_only_softmax_losses_have_a_canonical_form(loss: str) -> None:
    point = get_space(loss).published[0].values
    form = canonical_form(loss, point)
    softmax = {"norm_softmax", "proxy_nca_pp", "am_softmax", "unified", "arcface"}
    assert (form is not None) == (loss in softmax)


def test_scale_and_other_params_of_known_points() -> None:
    form = canonical_form("proxy_nca_pp", {"temperature": 1 / 9, "head_lr": 1e-3})
    assert form is not None
    assert math.isclose(form.scale, 18.0)
    assert form.other_params == ()
    with_plugin = canonical_form(
        "norm_softmax+synthesis",
        {"temperature": 0.1, "synthesis_alpha": 0.4, "synthesis_mu": 1.0},
    )
    assert with_plugin is not None
    assert dict(with_plugin.other_params) == {"synthesis_alpha": 0.4, "synthesis_mu": 1.0}


def test_equivalent_losses_are_searched_over_the_same_range() -> None:
    """Otherwise the gap between them would not be noise alone."""

    def ends(loss: str) -> list[float]:
        distribution = get_space(loss).searched_params["temperature"].distribution
        forms = [
            canonical_form(loss, {"temperature": t})
            for t in (distribution.low, distribution.high)  # type: ignore[attr-defined]
        ]
        return [form.scale for form in forms if form is not None]

    assert ends("norm_softmax") == pytest.approx(ends("proxy_nca_pp"))


@pytest.mark.parametrize(
    ("loss", "param", "distribution", "expected"),
    [
        # Cosine scales 2 / 1 to 2 / 0.01.
        ("proxy_nca_pp", "temperature", Float(0.01, 1.0, log=True), Float(2.0, 200.0, log=True)),
        ("norm_softmax", "temperature", Choice([0.05, 0.1]), Choice([20.0, 10.0])),
        ("am_softmax", "gamma", Float(2.0, 200.0), Float(2.0, 200.0)),
        ("pml:ProxyNCALoss", "softmax_scale", Int(1, 5), Float(2.0, 10.0, step=2.0)),
        (
            "norm_softmax",
            "temperature",
            Float(0.1, 0.3),
            "searched as the reciprocal of [0.1, 0.3]",
        ),
        (
            "proxy_nca_pp",
            "temperature",
            Float(0.2, 0.6),
            "searched as the reciprocal of [0.1, 0.3]",
        ),
    ],
)
def test_ranges_in_units_of_the_cosine_scale(
    loss: str, param: str, distribution: BaseDistribution, expected: BaseDistribution | str
) -> None:
    smoothing = Float(0.0, 0.5)
    searched = {param: distribution, "head_lr": Float(1e-4, 1e-2), "label_smoothing": smoothing}
    ranges = function_ranges(loss, searched)
    assert ranges == {"cosine scale": expected, "label_smoothing": smoothing}


def test_a_margin_in_degrees_is_converted_to_radians() -> None:
    ranges = function_ranges("pml:ArcFaceLoss", {"margin": Float(0.0, 90.0)})
    distribution = ranges["margin"]
    assert isinstance(distribution, Float)
    assert distribution.high == pytest.approx(math.pi / 2, rel=1e-11)


def test_params_of_the_function_exclude_those_of_the_training() -> None:
    assert {"temperature", "label_smoothing", "synthesis_mu"} <= function_params("norm_softmax")
    assert {"lambda_", "delta", "centers", "tau"} <= function_params("soft_triple")
    assert "head_lr" not in function_params("am_softmax+synthesis")


def test_library_losses_initialise_their_proxies_differently() -> None:
    ours, library = describe_proxy_init("norm_softmax"), describe_proxy_init("pml:CosFaceLoss")
    assert ours == describe_proxy_init("norm_softmax+synthesis")
    assert ours != library
