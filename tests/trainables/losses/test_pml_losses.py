"""Can any loss of pytorch-metric-learning be studied by its name?"""

from __future__ import annotations

import sys

import pytest
import torch
from torch import Tensor

from trainables.losses import build_loss, loss_knobs

pytest.importorskip("pytorch_metric_learning")

Batch = tuple[Tensor, Tensor]


def test_a_loss_with_proxies(random_batch: Batch) -> None:
    loss = build_loss("pml:ProxyAnchorLoss", n_classes=7, dim=5, margin=0.2, alpha=16.0).double()
    assert [tuple(p.shape) for p in loss.parameters()] == [(7, 5)]
    ours = build_loss("proxy_anchor", n_classes=7, dim=5, delta=0.2, alpha=16.0).double()
    ours.proxies.data = next(loss.parameters()).data.clone()
    torch.testing.assert_close(loss(*random_batch), ours(*random_batch))


def test_a_loss_of_pairs(random_batch: Batch) -> None:
    loss = build_loss("pml:NTXentLoss", n_classes=7, dim=5, temperature=0.1)
    assert list(loss.parameters()) == []
    x = random_batch[0].float().requires_grad_()
    loss(x, random_batch[1]).backward()
    assert x.grad is not None
    assert x.grad.abs().sum() > 0


def test_knobs_are_the_constructor_s() -> None:
    knobs = loss_knobs("pml:SoftTripleLoss")
    assert set(knobs) == {"centers_per_class", "la", "gamma", "margin"}
    assert knobs["la"].default == 20
    assert not knobs["la"].required
    assert loss_knobs("pml:MarginLoss")["learn_beta"].type is bool
    with pytest.raises(ValueError, match=r"unknown knob 'gama'.*did you mean 'gamma'"):
        build_loss("pml:SoftTripleLoss", n_classes=7, dim=5, gama=1.0)


def test_unknown_class_names_the_nearest() -> None:
    with pytest.raises(ValueError, match="did you mean 'pml:TripletMarginLoss'"):
        build_loss("pml:TripletMarginLos", n_classes=7, dim=5)


def test_refused_arguments_are_one_clear_line() -> None:
    with pytest.raises(ValueError, match="pml:SoftTripleLoss refuses"):
        build_loss("pml:SoftTripleLoss", n_classes=7, dim=5, centers_per_class=2.5)


def test_whole_numbers_reach_the_library_as_counts() -> None:
    loss = build_loss("pml:SoftTripleLoss", n_classes=7, dim=5, centers_per_class=3.0)
    assert [tuple(p.shape) for p in loss.parameters()] == [(5, 21)]


def test_without_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pytorch_metric_learning.losses", None)
    with pytest.raises(ValueError, match=r"not installed.*pip install"):
        loss_knobs("pml:TripletMarginLoss")
