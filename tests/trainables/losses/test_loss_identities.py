"""Losses are equal to each other where the papers say so."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from search_spaces import canonical_form

pytestmark = pytest.mark.split

Batch = tuple[Tensor, Tensor]
Make = Callable[..., Any]


def check_same_function(first: nn.Module, second: nn.Module, batch: Batch) -> None:
    """Assert that two losses with the same proxies have the same value and gradients."""
    x, y = batch[0].requires_grad_(), batch[1]
    second.load_state_dict(first.state_dict(), strict=False)
    values = [loss(x, y) for loss in (first, second)]
    torch.testing.assert_close(values[0], values[1], rtol=1e-12, atol=1e-13)
    gradients = [
        torch.autograd.grad(value, [x, *loss.parameters()])
        for value, loss in zip(values, (first, second), strict=True)
    ]
    for a, b in zip(*gradients, strict=True):
        torch.testing.assert_close(a.squeeze(), b.squeeze(), rtol=1e-10, atol=1e-12)


SAME: list[tuple[str, dict[str, Any], str, dict[str, Any]]] = [
    ("norm_softmax", {"temperature": 1 / 18}, "proxy_nca_pp", {"temperature": 1 / 9}),
    ("norm_softmax", {"temperature": 1 / 18}, "am_softmax", {"gamma": 18.0, "m": 0.0}),
    ("am_softmax", {"gamma": 30.0, "m": 0.35}, "unified", {"gamma": 30.0, "m": 0.35}),
    ("am_softmax", {"gamma": 64.0, "m": 0.0}, "arcface", {"gamma": 64.0, "m": 0.0}),
    (
        "am_softmax",
        {"gamma": 20.0, "m": 0.01},
        "soft_triple",
        {"lambda_": 20.0, "delta": 0.01, "gamma": 0.1, "tau": 0.2, "centers": 1},
    ),
    (
        "norm_softmax",
        {"temperature": 0.1, "label_smoothing": 0.1},
        "proxy_nca_pp",
        {"temperature": 0.2, "label_smoothing": 0.1},
    ),
]


@pytest.mark.parametrize(("first", "params", "second", "other_params"), SAME)
def test_equivalent_losses_are_the_same_function(
    first: str,
    params: dict[str, Any],
    second: str,
    other_params: dict[str, Any],
    make_loss: Make,
    batch: Batch,
) -> None:
    check_same_function(make_loss(first, **params), make_loss(second, **other_params), batch)
    one, two = canonical_form(first, params), canonical_form(second, other_params)
    assert one is not None
    assert two is not None
    assert one[1:] == two[1:]
    assert math.isclose(one.scale, two.scale, rel_tol=1e-12)


@pytest.mark.parametrize(
    ("first", "params", "second", "other_params"),
    [
        ("norm_softmax", {"temperature": 0.1}, "proxy_nca_pp", {"temperature": 0.1}),
        ("am_softmax", {"gamma": 30.0, "m": 0.3}, "arcface", {"gamma": 30.0, "m": 0.3}),
        (
            "norm_softmax",
            {"temperature": 0.1},
            "norm_softmax",
            {"temperature": 0.1, "label_smoothing": 0.1},
        ),
        (
            "norm_softmax",
            {"temperature": 0.1, "temperature_mode": "annealed"},
            "norm_softmax",
            {"temperature": 0.1, "temperature_mode": "annealed", "anneal_ratio": 2.0},
        ),
    ],
)
def test_different_forms_are_different_functions(
    first: str,
    params: dict[str, Any],
    second: str,
    other_params: dict[str, Any],
    make_loss: Make,
    random_batch: Batch,
) -> None:
    assert canonical_form(first, params) != canonical_form(second, other_params)
    values = [
        make_loss(n, **k)(*random_batch) for n, k in ((first, params), (second, other_params))
    ]
    assert not torch.isclose(values[0], values[1], rtol=1e-3)


def test_am_softmax_on_the_sphere_is_softmax(make_loss: Make, random_batch: Batch) -> None:
    """With m = 0 and gamma = 1, on vectors of unit length."""
    softmax = make_loss("softmax")
    unit = nn.functional.normalize
    softmax.proxies.data = unit(softmax.proxies.data)
    am = make_loss("am_softmax", gamma=1.0, m=0.0)
    am.load_state_dict(softmax.state_dict())
    x, y = unit(random_batch[0]), random_batch[1]
    torch.testing.assert_close(softmax(x, y), am(x, y), rtol=1e-13, atol=0.0)
    expected = nn.functional.cross_entropy(random_batch[0] @ softmax.proxies.T, y)
    torch.testing.assert_close(softmax(random_batch[0], y), expected, rtol=1e-13, atol=0.0)


def test_the_unified_loss_converges_to_hard_triplets(make_loss: Make, random_batch: Batch) -> None:
    """lim 1/gamma L = max(0, max_ij (s_n^j - s_p^i + m)), from above, at the rate log(pairs)."""
    x, y = random_batch
    unit = nn.functional.normalize(x)
    s = unit @ unit.T
    same = (y[:, None] == y) & ~torch.eye(len(y), dtype=torch.bool)
    hard = []
    for i in range(len(y)):
        if same[i].any():
            gap = s[i][y != y[i]].max() - s[i][same[i]].min() + 0.2
            hard.append(gap.clamp(min=0.0))
    limit = torch.stack(hard).mean()
    distances = []
    for gamma in (10.0, 100.0, 1000.0, 1e4):
        value = make_loss("unified_pair", gamma=gamma, m=0.2)(x, y) / gamma
        distances.append(float(value - limit))
        rounding = 4 * torch.finfo(x.dtype).eps  # at the last gammas only rounding remains
    assert -rounding <= distances[-1] <= math.log(1 + len(y) ** 2) / gamma
    assert distances == sorted(distances, reverse=True)


def test_triplet_limit_keeps_the_hinge(make_loss: Make) -> None:
    """Without violations the limit is zero, not negative."""
    x = torch.eye(4, dtype=torch.float64)[[0, 0, 1, 1]]
    y = torch.tensor([0, 0, 1, 1])
    value = make_loss("unified_pair", gamma=1000.0, m=0.2, dim=4)(x, y)
    assert 0 <= float(value) < 1e-300


@pytest.mark.parametrize("gamma", [16.0, 256.0])
@pytest.mark.parametrize("m", [0.1, 0.25, 0.4])
def test_circle_gradients_of_the_paper(gamma: float, m: float, make_loss: Make) -> None:
    """Section 3.3, with s_n > -m and s_p < 1 + m so that no weight is clipped.

    dL/ds_n^j = Z softmax_j(gamma (s_n^2 - m^2)) gamma (s_n^j + m),
    dL/ds_p = Z gamma (s_p - 1 - m), Z = 1 - exp(-L).
    """
    # One sample along the first axis: a proxy (cos t, sin t, 0...) has similarity cos t.
    s = torch.tensor([0.55, 0.35, 0.2, -0.05], dtype=torch.float64)
    proxies = torch.zeros(4, 5, dtype=torch.float64)
    proxies[:, 0], proxies[range(4), range(1, 5)] = s, (1 - s**2).sqrt()
    loss = make_loss("circle", gamma=gamma, m=m, n_classes=4)
    loss.proxies.data = proxies
    x = torch.zeros(1, 5, dtype=torch.float64)
    x[0, 0] = 1.0
    x.requires_grad_()
    value = loss(x, torch.tensor([0]))
    z = 1.0 - torch.exp(-value.detach())
    of_n = z * torch.softmax(gamma * (s[1:] ** 2 - m**2), 0) * gamma * (s[1:] + m)
    of_p = z * gamma * (s[0] - 1.0 - m)
    expected = torch.cat([of_p[None], of_n])
    (of_x,) = torch.autograd.grad(value, x)
    # Moving the sample along axis k >= 1 changes only one similarity, at the rate sin t.
    computed = of_x[0, 1:] / proxies[range(4), range(1, 5)]
    torch.testing.assert_close(computed, expected, rtol=1e-9, atol=1e-12)


def test_circle_pair_equals_circle_for_one_anchor(make_loss: Make) -> None:
    """At class level, with the other samples of the batch as proxies."""
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(5, 5, dtype=torch.float64, generator=generator)
    circle = make_loss("circle", n_classes=4)
    circle.proxies.data = x[1:].clone()
    pair = make_loss("circle_pair", gamma=256.0, m=0.25, reduction="valid")
    # Labels 0 0 1 2 3: the two samples of class 0 are the only valid anchors.
    y = torch.tensor([0, 0, 1, 2, 3])
    swapped = make_loss("circle", n_classes=4)
    swapped.proxies.data = x[[0, 2, 3, 4]].clone()
    first = circle(x[:1], torch.tensor([0]))
    second = swapped(x[1:2], torch.tensor([0]))
    torch.testing.assert_close(pair(x, y), (first + second) / 2, rtol=1e-12, atol=0.0)


def test_reductions_of_circle_pairs_differ(make_loss: Make, random_batch: Batch) -> None:
    values = {
        reduction: float(make_loss("circle_pair", reduction=reduction)(*random_batch))
        for reduction in ("valid", "all", "batch")
    }
    assert len({round(v, 6) for v in values.values()}) == 3


def test_classic_proxy_nca_may_be_negative(make_loss: Make) -> None:
    loss = make_loss("proxy_nca", scale=9.0, n_classes=2, dim=2)
    loss.proxies.data = torch.eye(2, dtype=torch.float64)
    x, y = torch.eye(2, dtype=torch.float64)[:1], torch.tensor([0])
    assert math.isclose(float(loss(x, y)), -18.0, rel_tol=1e-12)
    with pytest.raises(ValueError, match="n_classes >= 2"):
        make_loss("proxy_nca", n_classes=1)
