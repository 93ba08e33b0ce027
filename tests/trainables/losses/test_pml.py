"""Losses of pytorch-metric-learning by name: arguments, sizes and refused classes."""

from __future__ import annotations

import sys
from typing import Any

import pytest
import torch
from torch import Tensor

from trainables.losses import build_loss, loss_params

pytestmark = pytest.mark.split

pml_losses = pytest.importorskip("pytorch_metric_learning.losses")

Batch = tuple[Tensor, Tensor]


def test_a_loss_with_proxies(random_batch: Batch) -> None:
    loss = build_loss("pml:ProxyAnchorLoss", n_classes=7, dim=5, margin=0.2, alpha=16.0).double()
    assert [tuple(p.shape) for p in loss.parameters()] == [(7, 5)]
    ours = build_loss("proxy_anchor", n_classes=7, dim=5, delta=0.2, alpha=16.0).double()
    ours.proxies.data = next(loss.parameters()).data.clone()
    torch.testing.assert_close(loss(*random_batch), ours(*random_batch))


def test_a_pair_loss(random_batch: Batch) -> None:
    loss = build_loss("pml:NTXentLoss", n_classes=7, dim=5, temperature=0.1)
    assert list(loss.parameters()) == []
    x = random_batch[0].float().requires_grad_()
    loss(x, random_batch[1]).backward()
    assert x.grad is not None
    assert x.grad.abs().sum() > 0


def test_hyperparameters_are_the_arguments_of_the_constructor() -> None:
    params = loss_params("pml:SoftTripleLoss")
    assert set(params) == {"centers_per_class", "la", "gamma", "margin"}
    assert params["la"].default == 20
    assert not params["la"].required
    assert loss_params("pml:MarginLoss")["learn_beta"].type is bool
    with pytest.raises(ValueError, match=r"unknown hyperparameter 'gama'.*'gamma'"):
        build_loss("pml:SoftTripleLoss", n_classes=7, dim=5, gama=1.0)


NEEDED: dict[str, dict[str, Any]] = {"RankedListLoss": {"margin": 0.4, "Tn": 10.0}}
REFUSED = {
    "CrossBatchMemory": "wraps a loss object",
    "SelfSupervisedLoss": "wraps a loss object",
    "MultipleLosses": "wraps a loss object",
    "GenericPairLoss": "base of other losses",
    "ManifoldLoss": "uses no labels",
    "VICRegLoss": "two views",
}
NAMES = sorted(
    name
    for name, value in vars(pml_losses).items()
    if isinstance(value, type)
    and issubclass(value, torch.nn.Module)
    and not name.startswith("Base")
)


@pytest.mark.parametrize("name", NAMES)
def test_every_class_of_the_library_trains_or_is_refused(name: str) -> None:
    if name in REFUSED:
        for use in (loss_params, lambda n: build_loss(n, n_classes=4, dim=6)):
            with pytest.raises(ValueError, match=f"pml:{name} cannot be used.*{REFUSED[name]}"):
                use(f"pml:{name}")
        return
    torch.manual_seed(0)
    loss = build_loss(f"pml:{name}", n_classes=4, dim=6, **NEEDED.get(name, {}))
    x = torch.randn(12, 6, requires_grad=True)
    loss(x, torch.arange(12) % 4).backward()
    assert x.grad is not None
    assert x.grad.isfinite().all()
    assert x.grad.abs().sum() > 0


def test_sizes_reach_the_constructors_of_bases() -> None:
    shapes = {
        name: [tuple(p.shape) for p in build_loss(name, n_classes=7, dim=5).parameters()]
        for name in ("pml:CosFaceLoss", "pml:SubCenterArcFaceLoss", "pml:P2SGradLoss")
    }
    assert shapes == {
        "pml:CosFaceLoss": [(5, 7)],
        "pml:SubCenterArcFaceLoss": [(5, 21)],
        "pml:P2SGradLoss": [(5, 7)],
    }


def test_an_optional_number_of_classes_is_not_set() -> None:
    # With it, the boundary would have one value per class.
    loss = build_loss("pml:MarginLoss", n_classes=7, dim=5, learn_beta=True)
    assert [p.numel() for p in loss.parameters()] == [1]


def test_an_unknown_class_suggests_the_nearest() -> None:
    with pytest.raises(ValueError, match="did you mean 'pml:TripletMarginLoss'"):
        build_loss("pml:TripletMarginLos", n_classes=7, dim=5)


def test_rejected_arguments_are_named() -> None:
    with pytest.raises(ValueError, match=r"pml:SoftTripleLoss.*centers_per_class"):
        build_loss("pml:SoftTripleLoss", n_classes=7, dim=5, centers_per_class=2.5)


def test_integral_floats_reach_the_library_as_integers() -> None:
    loss = build_loss("pml:SoftTripleLoss", n_classes=7, dim=5, centers_per_class=3.0)
    assert [tuple(p.shape) for p in loss.parameters()] == [(5, 21)]


def test_without_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pytorch_metric_learning.losses", None)
    with pytest.raises(ValueError, match=r"not installed.*pip install"):
        loss_params("pml:TripletMarginLoss")


def test_arguments_that_a_class_passes_on_to_its_base_are_hyperparameters() -> None:
    assert loss_params("pml:ProxyNCALoss")["softmax_scale"].default == 1
    loss = build_loss("pml:ProxyNCALoss", n_classes=7, dim=5, softmax_scale=9.0)
    assert getattr(loss.loss, "softmax_scale") == 9.0  # noqa: B009
    assert set(loss_params("pml:SignalToNoiseRatioContrastiveLoss")) == {"pos_margin", "neg_margin"}
