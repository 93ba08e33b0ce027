"""Tests of `study losses`: the list, one loss in full, losses of pytorch-metric-learning."""

from __future__ import annotations

import json
import sys

import pytest

from tests.support.command_line import RunCommand

pytestmark = pytest.mark.split


def test_losses_are_listed_for_scripts(study: RunCommand) -> None:
    losses = {item["loss"]: item for item in json.loads(study("losses", "--json").out)}
    assert losses["proxy_anchor"]["knobs"]["alpha"]["symbol"] == "α"
    one = json.loads(study("losses", "circle+synthesis", "--json").out)
    assert "synthesis_mu" in one["knobs"]
    assert one["optional"]["temperature_mode"]["default"] == "fixed"
    assert set(one["optional"]) >= {"label_smoothing", "proxies_per_class", "synthesis_draw"}
    assert study("losses", "circel").code == 2
    assert one["spaces"] == []
    assert "`space: official` in a study file" in study("losses", "proxy_nca_pp").out


def test_losses_are_listed_with_everything_that_can_be_searched(study: RunCommand) -> None:
    overview = study("losses").out
    assert "+synthesis" in overview
    assert "pml:" in overview
    for word in ("proxy_anchor", "arXiv:2003.13911", "α", "published 32"):
        assert word in overview
    one = study("losses", "soft_triple").out
    for word in ("label_smoothing", "temperature_mode", "anneal_ratio", "optional, default 0"):
        assert word in one


def test_a_library_loss_is_listed_with_its_own_hyperparameters(study: RunCommand) -> None:
    pytest.importorskip("pytorch_metric_learning")
    text = study("losses", "pml:CircleLoss").out
    for words in ("m                  default 0.4, your range", "gamma              default 80"):
        assert words in text
    one = json.loads(study("losses", "pml:ProxyNCALoss", "--json").out)
    # As a study would search them.
    assert set(one["knobs"]) == {"backbone_lr", "head_lr", "proxy_lr"}
    assert one["optional"] == {
        "softmax_scale": {"default": 1, "required": False, "symbol": "", "range": None}
    }


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("pml:Nope", "'Nope'"),
        ("pml:ManifoldLoss", "labels"),
        ("pml:ProxyAnchorLoss+synthesis", "plug-in"),
    ],
)
def test_a_library_loss_that_cannot_be_studied_is_one_line(
    study: RunCommand, name: str, message: str
) -> None:
    pytest.importorskip("pytorch_metric_learning")
    done = study("losses", name)
    assert (done.code, done.err.count("\n")) == (2, 1)
    assert message in done.err


def test_a_library_that_is_not_installed_is_one_line(
    study: RunCommand, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pytorch_metric_learning.losses", None)
    done = study("losses", "pml:CircleLoss")
    assert (done.code, done.err.count("\n")) == (2, 1)
    assert "pip install 'dml-study[pml]'" in done.err
