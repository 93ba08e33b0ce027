"""Do our losses equal pytorch-metric-learning 2.9's, where it computes the same thing?

Its traps are respected: ArcFace's margin is in degrees, Proxy-NCA keeps the own class, SoftTriple's
regulariser is switched on by hand and guards its square root otherwise, pair losses average only
non-zero terms unless told not to, and it drops samples whose probability underflows (so the scales
here are moderate).
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


# Our loss, its knobs, theirs, the name of their parameter, relative tolerance.
PROXY_CASES: dict[str, tuple[str, dict[str, Any], Callable[[], Any], str, float]] = {
    "proxy_anchor": (
        "proxy_anchor",
        {"alpha": 32.0, "delta": 0.1},
        lambda: pml_losses.ProxyAnchorLoss(C, D, margin=0.1, alpha=32),
        "proxies",
        1e-9,
    ),
    "proxy_nca_pp": (
        "proxy_nca_pp",
        {"temperature": 1 / 9},
        lambda: pml_losses.ProxyNCALoss(C, D, softmax_scale=9),
        "proxies",
        1e-9,
    ),
    "norm_softmax": (
        "norm_softmax",
        {"temperature": 0.05},
        lambda: pml_losses.NormalizedSoftmaxLoss(C, D, temperature=0.05),
        "W",
        1e-9,
    ),
    "am_softmax": (
        "am_softmax",
        {"gamma": 30.0, "m": 0.35},
        lambda: pml_losses.CosFaceLoss(C, D, margin=0.35, scale=30),
        "W",
        1e-9,
    ),
    "arcface": (
        "arcface",
        {"gamma": 64.0, "m": 0.5},
        lambda: pml_losses.ArcFaceLoss(C, D, margin=math.degrees(0.5), scale=64),
        "W",
        1e-9,
    ),
    "sub-centre arcface": (
        "arcface",
        {"gamma": 64.0, "m": 0.5, "proxies_per_class": 3},
        lambda: pml_losses.SubCenterArcFaceLoss(
            num_classes=C, embedding_size=D, margin=math.degrees(0.5), scale=64, sub_centers=3
        ),
        "W",
        1e-9,
    ),
    # Its guard of the square root is 1e-38 where the authors' (and ours) is 1e-5.
    "soft_triple": (
        "soft_triple",
        {"lambda_": 20.0, "gamma": 0.1, "tau": 0.2, "delta": 0.01, "centers": 3},
        soft_triple,
        "fc",
        2e-5,
    ),
}


@pytest.mark.parametrize("case", PROXY_CASES)
def test_proxy_losses(case: str, make_loss: Callable[..., Any], random_batch: Batch) -> None:
    name, knobs, build, parameter, rtol = PROXY_CASES[case]
    ours, theirs = make_loss(name, **knobs), build().double()
    matrix = ours.proxies.detach().reshape(-1, D)  # class-major, as theirs
    weight = getattr(theirs, parameter)
    transposed = parameter != "proxies"
    weight.data.copy_(matrix.T if transposed else matrix)
    x, y = random_batch[0].requires_grad_(), random_batch[1]
    value, expected = ours(x, y), theirs(x, y)
    torch.testing.assert_close(value, expected, rtol=rtol, atol=0.0)
    got = torch.autograd.grad(value, [x, ours.proxies])
    want = torch.autograd.grad(expected, [x, weight])
    torch.testing.assert_close(got[0], want[0], rtol=rtol, atol=1e-11)
    of_weight = want[1].T if transposed else want[1]
    torch.testing.assert_close(got[1].reshape(-1, D), of_weight, rtol=rtol, atol=1e-2 * rtol)


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
        {"margin": 0.2, "beta": 1.2},
        lambda: pml_losses.MarginLoss(margin=0.2, beta=1.2),
    ),
}


@pytest.mark.parametrize("case", PAIR_CASES)
def test_pair_losses(case: str, make_loss: Callable[..., Any], random_batch: Batch) -> None:
    name, knobs, build = PAIR_CASES[case]
    x, y = random_batch[0].requires_grad_(), random_batch[1]
    value, expected = make_loss(name, **knobs)(x, y), build()(x, y)
    # Its constants such as beta are float32 tensors.
    rtol = 1e-7 if name == "margin" else 1e-9
    torch.testing.assert_close(value, expected, rtol=rtol, atol=0.0)
    (got,), (want,) = torch.autograd.grad(value, x), torch.autograd.grad(expected, x)
    torch.testing.assert_close(got, want, rtol=rtol, atol=1e-11)


def test_learned_beta_of_margin(make_loss: Callable[..., Any], random_batch: Batch) -> None:
    ours = make_loss("margin", learn_beta=True, nu=0.05)
    theirs = pml_losses.MarginLoss(margin=0.2, beta=1.2, nu=0.05, learn_beta=True).double()
    x, y = random_batch
    value, expected = ours(x, y), theirs(x, y)
    torch.testing.assert_close(value, expected.squeeze(), rtol=1e-7, atol=0.0)
    (got,) = torch.autograd.grad(value, list(ours.parameters()))
    (want,) = torch.autograd.grad(expected, list(theirs.parameters()))
    torch.testing.assert_close(got, want.squeeze(), rtol=1e-7, atol=0.0)
