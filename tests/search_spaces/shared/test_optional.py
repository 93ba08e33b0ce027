"""Ranges of optional hyperparameters of the losses."""

from __future__ import annotations

import pytest

from search_spaces.shared.optional import OPTIONAL_PARAMS, find_optional_param

pytestmark = pytest.mark.split


def test_optional_params_have_reasons() -> None:
    for param in OPTIONAL_PARAMS.values():
        assert param.reason.endswith(".")


def test_choices_may_depend_on_the_loss() -> None:
    triplet, pairs = (find_optional_param(n, "mining") for n in ("triplet", "multi_similarity"))
    assert triplet is not None
    assert pairs is not None
    assert triplet.distribution != pairs.distribution
    assert find_optional_param("proxy_anchor", "mining") is None


def test_a_plugin_name_finds_the_params_of_its_host() -> None:
    smoothing = find_optional_param("norm_softmax+synthesis", "label_smoothing")
    assert smoothing is OPTIONAL_PARAMS["label_smoothing"]
    assert find_optional_param("norm_softmax+synthesis", "no_such_param") is None
