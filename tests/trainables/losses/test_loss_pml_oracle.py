"""Losses equal those of pytorch-metric-learning 2.9 where both compute the same function.

Value and gradients are compared on every kind of batch of the `batch` fixture. Peculiarities of the
library: the margin of ArcFace is in degrees, and it has no gradient at cosines of exactly 1 and -1;
Proxy-NCA keeps the own class; the regulariser of SoftTriple is enabled explicitly and has another
guard for its root; pair losses average only non-zero terms by default; samples whose probability
underflows are dropped, so the scales here are moderate.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

pml_losses = pytest.importorskip("pytorch_metric_learning.losses")
from pytorch_metric_learning import miners, reducers, regularizers  # noqa: E402

from search_spaces import canonical_form  # noqa: E402
from trainables.losses.kernels import centre_spread  # noqa: E402

pytestmark = pytest.mark.split

C, D = 7, 5
Batch = tuple[Tensor, Tensor]


def soft_triple() -> Any:
    return pml_losses.SoftTripleLoss(
        C,
        D,
        centers_per_class=3,
        la=20,
        gamma=0.1,
        margin=0.01,
        weight_regularizer=regularizers.SparseCentersRegularizer(C, 3),
        weight_reg_weight=0.2,
    )


# Our loss, its hyperparameters, the library's loss, the name of its proxies.
PROXY_CASES: dict[str, tuple[str, dict[str, Any], Callable[[], Any], str]] = {
    "proxy_anchor": (
        "proxy_anchor",
        {"alpha": 32.0, "delta": 0.1},
        lambda: pml_losses.ProxyAnchorLoss(C, D, margin=0.1, alpha=32),
        "proxies",
    ),
    "proxy_nca_pp": (
        "proxy_nca_pp",
        {"temperature": 1 / 9},
        lambda: pml_losses.ProxyNCALoss(C, D, softmax_scale=9),
        "proxies",
    ),
    "norm_softmax": (
        "norm_softmax",
        {"temperature": 0.05},
        lambda: pml_losses.NormalizedSoftmaxLoss(C, D, temperature=0.05),
        "W",
    ),
    "am_softmax": (
        "am_softmax",
        {"gamma": 30.0, "m": 0.35},
        lambda: pml_losses.CosFaceLoss(C, D, margin=0.35, scale=30),
        "W",
    ),
    "unified": (
        "unified",
        {"gamma": 16.0, "m": -0.1},
        lambda: pml_losses.CosFaceLoss(C, D, margin=-0.1, scale=16),
        "W",
    ),
    "arcface": (
        "arcface",
        {"gamma": 64.0, "m": 0.5},
        lambda: pml_losses.ArcFaceLoss(C, D, margin=math.degrees(0.5), scale=64),
        "W",
    ),
    "sub-centre arcface": (
        "arcface",
        {"gamma": 64.0, "m": 0.5, "proxies_per_class": 3},
        lambda: pml_losses.SubCenterArcFaceLoss(
            num_classes=C, embedding_size=D, margin=math.degrees(0.5), scale=64, sub_centers=3
        ),
        "W",
    ),
    "soft_triple": (
        "soft_triple",
        {"lambda_": 20.0, "gamma": 0.1, "tau": 0.2, "delta": 0.01, "centers": 3},
        soft_triple,
        "fc",
    ),
}


def per_distinct_row(x: Tensor, gradient: Tensor) -> Tensor:
    """Return the gradients summed over equal vectors: a maximum may pick any of the copies."""
    _, index = torch.unique(x.detach(), dim=0, return_inverse=True)
    return torch.zeros_like(gradient).index_add(0, index, gradient)


def assert_same_gradients(gradient: Tensor, want: Tensor) -> None:
    scale = float(want.abs().max().clamp(min=1.0))
    torch.testing.assert_close(gradient, want, rtol=1e-9, atol=1e-11 * scale)


def make_pair(case: str, make_loss: Callable[..., Any]) -> tuple[Any, Any, Tensor, bool]:
    """Return our loss, the library's with our proxies, its proxies, and if they are transposed."""
    name, params, build, parameter = PROXY_CASES[case]
    ours, library = make_loss(name, **params), build().double()
    matrix = ours.proxies.detach().reshape(-1, D)  # class-major, as in the library
    weight: Tensor = getattr(library, parameter)
    transposed = parameter != "proxies"
    weight.data.copy_(matrix.T if transposed else matrix)
    return ours, library, weight, transposed


def compare(case: str, make_loss: Callable[..., Any], x: Tensor, y: Tensor) -> None:
    ours, library, weight, transposed = make_pair(case, make_loss)
    x = x.clone().requires_grad_()
    value, expected = ours(x, y), library(x, y)
    torch.testing.assert_close(value, expected, rtol=1e-9, atol=1e-14)
    gradients = torch.autograd.grad(value, [x, ours.proxies])
    want = torch.autograd.grad(expected, [x, weight])
    assert_same_gradients(gradients[0], want[0])
    assert_same_gradients(gradients[1].reshape(-1, D), want[1].T if transposed else want[1])


@pytest.mark.parametrize("case", PROXY_CASES)
def test_proxy_losses(
    case: str, make_loss: Callable[..., Any], batch: Batch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        centre_spread, "SQUARED_DISTANCE_GUARD", torch.finfo(torch.float32).tiny
    )  # as in the library
    compare(case, make_loss, *batch)


@pytest.mark.parametrize("sign", [1.0, -1.0])
@pytest.mark.parametrize("case", [c for c in PROXY_CASES if "arcface" not in c])
def test_samples_on_and_opposite_proxies(
    case: str, sign: float, make_loss: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cosines of exactly 1 and -1; the library's ArcFace has no gradient there."""
    monkeypatch.setattr(centre_spread, "SQUARED_DISTANCE_GUARD", torch.finfo(torch.float32).tiny)
    proxies = make_loss(PROXY_CASES[case][0], **PROXY_CASES[case][1]).proxies.detach()
    own = proxies if proxies.dim() == 2 else proxies[:, 0]
    compare(case, make_loss, sign * own, torch.arange(C))


def mined(loss: Any, miner: Any) -> Callable[[Tensor, Tensor], Tensor]:
    return lambda x, y: loss(x, y, miner(x, y))


PAIR_CASES: dict[str, tuple[str, dict[str, Any], Callable[[], Callable[..., Tensor]]]] = {
    "circle_pair": (
        "circle_pair",
        {"gamma": 80.0, "m": 0.4},
        lambda: pml_losses.CircleLoss(m=0.4, gamma=80),
    ),
    "triplet hard": (
        "triplet",
        {"margin": 0.3},
        lambda: mined(
            pml_losses.TripletMarginLoss(margin=0.3, reducer=reducers.MeanReducer()),
            miners.BatchHardMiner(),
        ),
    ),
    "triplet semihard": (
        "triplet",
        {"margin": 0.3, "mining": "semihard"},
        lambda: mined(
            pml_losses.TripletMarginLoss(margin=0.3),
            miners.TripletMarginMiner(margin=0.3, type_of_triplets="semihard"),
        ),
    ),
    "contrastive": (
        "contrastive",
        {"margin": 1.0, "pos_margin": 0.2},
        lambda: pml_losses.ContrastiveLoss(pos_margin=0.2, neg_margin=1.0),
    ),
    "multi_similarity": (
        "multi_similarity",
        {"alpha": 2.0, "beta": 50.0, "base": 0.5, "mining": "none"},
        lambda: pml_losses.MultiSimilarityLoss(alpha=2, beta=50, base=0.5),
    ),
    "multi_similarity mined": (
        "multi_similarity",
        {"alpha": 2.0, "beta": 50.0, "base": 0.5, "epsilon": 0.1},
        lambda: mined(
            pml_losses.MultiSimilarityLoss(alpha=2, beta=50, base=0.5),
            miners.MultiSimilarityMiner(epsilon=0.1),
        ),
    ),
    "margin": (
        "margin",
        # The library stores constants as float32 tensors: numbers that are exact there.
        {"margin": 0.25, "beta": 1.25},
        lambda: pml_losses.MarginLoss(margin=0.25, beta=1.25),
    ),
}


@pytest.mark.parametrize("case", PAIR_CASES)
def test_pair_losses(case: str, make_loss: Callable[..., Any], batch: Batch) -> None:
    name, params, build = PAIR_CASES[case]
    x, y = batch[0].requires_grad_(), batch[1]
    value, expected = make_loss(name, **params)(x, y), build()(x, y)
    torch.testing.assert_close(value, expected.squeeze(), rtol=1e-9, atol=1e-14)
    (gradient,) = torch.autograd.grad(value, x)
    (want,) = torch.autograd.grad(expected, x, allow_unused=True)
    want = torch.zeros_like(x) if want is None else want
    assert_same_gradients(per_distinct_row(x, gradient), per_distinct_row(x, want))


def test_learned_beta_of_margin(make_loss: Callable[..., Any], random_batch: Batch) -> None:
    ours = make_loss("margin", learn_beta=True, nu=0.0625, margin=0.25, beta=1.25)
    library = pml_losses.MarginLoss(margin=0.25, beta=1.25, nu=0.0625, learn_beta=True).double()
    x, y = random_batch
    value, expected = ours(x, y), library(x, y)
    torch.testing.assert_close(value, expected.squeeze(), rtol=1e-9, atol=0.0)
    (gradient,) = torch.autograd.grad(value, list(ours.parameters()))
    (want,) = torch.autograd.grad(expected, list(library.parameters()))
    torch.testing.assert_close(gradient, want.squeeze(), rtol=1e-9, atol=0.0)


@pytest.mark.parametrize(
    ("case", "library_name", "params"),
    [
        ("norm_softmax", "pml:NormalizedSoftmaxLoss", ["temperature"]),
        ("proxy_nca_pp", "pml:ProxyNCALoss", ["softmax_scale"]),
        ("am_softmax", "pml:CosFaceLoss", ["scale", "margin"]),
        ("arcface", "pml:ArcFaceLoss", ["scale", "margin"]),
    ],
)
def test_equal_losses_have_the_same_canonical_form(
    case: str, library_name: str, params: list[str]
) -> None:
    """The cases above show that their values are equal."""
    name, ours, build, _ = PROXY_CASES[case]
    built = build()
    point = {param: float(getattr(built, param)) for param in params}
    if library_name == "pml:ArcFaceLoss":
        point["margin"] = math.degrees(point["margin"])  # the constructor converts to radians
    one, two = canonical_form(name, ours), canonical_form(library_name, point)
    assert one is not None
    assert two is not None
    assert one.kind == two.kind
    assert one[:2] == pytest.approx(two[:2])
