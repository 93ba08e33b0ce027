"""Ranges of the training hyperparameters."""

from __future__ import annotations

from dataclasses import fields

import pytest

from search_spaces.shared.training import (
    COMMON_PAIR_RATES,
    COMMON_PROXY_RATES,
    PAIR_RATE_PARAMS,
    PROXY_RATE_PARAMS,
    TRAINING_PARAMS,
)
from search_spaces.space import in_range
from trainables.config import TrainingSettings

pytestmark = pytest.mark.split


def test_training_params_have_reasons() -> None:
    for param in TRAINING_PARAMS.values():
        assert param.reason.endswith(".")


def test_training_params_are_settings_of_the_training() -> None:
    assert set(TRAINING_PARAMS) <= {field.name for field in fields(TrainingSettings)}


def test_common_rates_are_inside_the_searched_ranges() -> None:
    assert set(COMMON_PAIR_RATES) == set(PAIR_RATE_PARAMS)
    assert set(COMMON_PROXY_RATES) == set(PROXY_RATE_PARAMS) == {*PAIR_RATE_PARAMS, "proxy_lr"}
    for name, value in COMMON_PROXY_RATES.items():
        assert in_range(TRAINING_PARAMS[name].distribution, value), name
