"""Are losses that are one function recognised, and only those?

That equal canonical forms are equal functions is shown on numbers in test_loss_identities.py.
"""

from __future__ import annotations

import math

import pytest

from search_spaces import SPACES, aliases, canonical, get_space
from search_spaces.space import Value


def test_the_known_pair() -> None:
    losses = ["proxy_anchor", "proxy_nca_pp", "triplet", "norm_softmax", "am_softmax"]
    assert aliases(losses) == [("proxy_nca_pp", "norm_softmax")]


def test_a_library_s_names() -> None:
    losses = ["norm_softmax", "pml:NormalizedSoftmaxLoss", "pml:CosFaceLoss", "am_softmax"]
    assert aliases(losses) == [tuple(losses[:2]), tuple(losses[2:])]
    angles = ["arcface", "pml:ArcFaceLoss", "proxy_anchor", "pml:ProxyAnchorLoss"]
    assert aliases(angles) == [tuple(angles[:2]), tuple(angles[2:])]
    # Proxy-Anchor without a margin is no softmax.
    held: dict[str, dict[str, Value]] = {"proxy_anchor": {"delta": 0.0, "alpha": 20.0}}
    assert (
        aliases(["proxy_anchor", "norm_softmax"], {**held, "norm_softmax": {"temperature": 0.05}})
        == []
    )


def test_a_margin_held_at_zero_joins() -> None:
    losses = ["am_softmax", "norm_softmax", "arcface", "unified"]
    fixed: dict[str, dict[str, Value]] = {name: {"m": 0.0} for name in losses}
    assert aliases(losses, fixed) == [tuple(losses)]
    assert aliases(losses) == [("am_softmax", "unified")]
    assert aliases(losses, {"am_softmax": {"m": 0.3}}) == []
    same = {"am_softmax": {"m": 0.3}, "unified": {"m": 0.3}}
    assert aliases(losses, same) == [("am_softmax", "unified")]


def test_one_centre_is_a_margin_softmax() -> None:
    fixed: dict[str, dict[str, Value]] = {"soft_triple": {"centers": 1}}
    assert aliases(["soft_triple", "am_softmax"], fixed) == [("soft_triple", "am_softmax")]
    assert aliases(["soft_triple", "am_softmax"]) == []


def test_the_plugin_keeps_groups_apart() -> None:
    losses = ["norm_softmax", "proxy_nca_pp+synthesis", "norm_softmax+synthesis", "proxy_nca_pp"]
    assert aliases(losses) == [
        ("norm_softmax", "proxy_nca_pp"),
        ("proxy_nca_pp+synthesis", "norm_softmax+synthesis"),
    ]


def test_smoothing_on_one_side_parts_them() -> None:
    losses = ["norm_softmax", "proxy_nca_pp"]
    assert aliases(losses, {"norm_softmax": {"label_smoothing": 0.1}}) == []
    both: dict[str, dict[str, Value]] = {name: {"label_smoothing": 0.1} for name in losses}
    assert aliases(losses, both) == [tuple(losses)]


def test_smoothing_searched_on_one_side_parts_them() -> None:
    losses = ["norm_softmax", "proxy_nca_pp"]
    searched = {"norm_softmax": ["temperature", "label_smoothing"], "proxy_nca_pp": ["temperature"]}
    assert aliases(losses, searched=searched) == []
    searched["proxy_nca_pp"].append("label_smoothing")
    assert aliases(losses, searched=searched) == [tuple(losses)]


PAIR = ["norm_softmax", "proxy_nca_pp"]
PLUGIN_PAIR = [f"{name}+synthesis" for name in PAIR]


@pytest.mark.parametrize(
    ("losses", "knob", "first", "second"),
    [
        (PAIR, "temperature", 0.05, 0.05),  # cosine scales 20 and 40
        (PAIR, "anneal_ratio", 2.0, 4.0),
        (PLUGIN_PAIR, "synthesis_mu", 1.0, 2.0),
        (PLUGIN_PAIR, "synthesis_alpha", 0.4, 1.0),
    ],
)
def test_knobs_held_at_other_values_part_them(
    losses: list[str], knob: str, first: Value, second: Value
) -> None:
    mode: dict[str, Value] = {"temperature_mode": "annealed"} if knob == "anneal_ratio" else {}
    fixed = {losses[0]: {**mode, knob: first}, losses[1]: {**mode, knob: second}}
    assert aliases(losses, fixed) == []
    # What counts is the function, not the number: T of one is 2 T of the other.
    equal = {"temperature": 0.1}.get(knob, first)
    fixed[losses[1]][knob] = equal
    assert aliases(losses, fixed) == [tuple(losses)]
    # Held here and searched there is no pair of equals either.
    searched = {losses[1]: [knob]}
    assert aliases(losses, {losses[0]: fixed[losses[0]], losses[1]: mode}, searched) == []


def test_no_synthetic_class_is_the_host() -> None:
    losses = ["norm_softmax", "norm_softmax+synthesis"]
    assert aliases(losses) == []
    assert aliases(losses, {losses[1]: {"synthesis_mu": 0.0}}) == [tuple(losses)]
    point = {"temperature": 0.1, "synthesis_alpha": 0.4, "synthesis_mu": 0.0}
    assert canonical(losses[1], point) == canonical(losses[0], {"temperature": 0.1})


def test_annealing_by_one_is_no_annealing() -> None:
    point: dict[str, Value] = {"temperature": 0.1, "temperature_mode": "annealed"}
    assert canonical("norm_softmax", {**point, "anneal_ratio": 1.0}) == canonical(
        "norm_softmax", {"temperature": 0.1}
    )


@pytest.mark.parametrize("loss", SPACES)
def test_losses_of_no_such_form(loss: str) -> None:
    point = get_space(loss).published[0].values
    form = canonical(loss, point)
    softmax = {"norm_softmax", "proxy_nca_pp", "am_softmax", "unified", "arcface"}
    assert (form is not None) == (loss in softmax)


def test_canonical_numbers() -> None:
    form = canonical("proxy_nca_pp", {"temperature": 1 / 9, "head_lr": 1e-3})
    assert form is not None
    assert math.isclose(form.scale, 18.0)
    assert form.rest == ()
    with_plugin = canonical(
        "norm_softmax+synthesis",
        {"temperature": 0.1, "synthesis_alpha": 0.4, "synthesis_mu": 1.0},
    )
    assert with_plugin is not None
    assert dict(with_plugin.rest) == {"synthesis_alpha": 0.4, "synthesis_mu": 1.0}


def test_aliases_are_searched_over_the_same_range() -> None:
    """Otherwise the A/A pair would not differ by noise alone."""

    def ends(loss: str) -> list[float]:
        distribution = get_space(loss).searched["temperature"].distribution
        forms = [
            canonical(loss, {"temperature": t})
            for t in (distribution.low, distribution.high)  # type: ignore[attr-defined]
        ]
        return [form.scale for form in forms if form is not None]

    assert ends("norm_softmax") == pytest.approx(ends("proxy_nca_pp"))
