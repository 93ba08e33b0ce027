"""The trial table and its names."""

from __future__ import annotations

from typing import get_args

import pandas as pd
import pytest

from search_spaces import get_space
from study.trials.table import (
    SEARCH_ORIGINS,
    TRIAL_COLUMNS,
    TRIAL_ORIGINS,
    TRIAL_STATES,
    TrialOrigin,
    TrialStateName,
    TrialTable,
)

pytestmark = pytest.mark.split


def test_the_tuples_list_all_names_of_their_types() -> None:
    assert get_args(TrialOrigin) == TRIAL_ORIGINS
    assert get_args(TrialStateName) == TRIAL_STATES
    assert TRIAL_ORIGINS[: len(SEARCH_ORIGINS)] == SEARCH_ORIGINS


def test_columns_are_described_and_have_no_prefix() -> None:
    assert all(TRIAL_COLUMNS.values())
    assert not [name for name in TRIAL_COLUMNS if "." in name]


def test_trials_and_hyperparameters_of_a_loss() -> None:
    spaces = {loss: get_space(loss) for loss in ("triplet", "proxy_anchor")}
    trials = pd.DataFrame(
        {"trial": ["a", "b", "c"], "loss": ["triplet", "proxy_anchor", "triplet"]}
    )
    table = TrialTable("s", trials, pd.DataFrame(), spaces, {})
    assert list(table.trials_of("triplet")["trial"]) == ["a", "c"]
    assert table.trials_of("circle").empty
    names = table.searched_param_names("proxy_anchor")
    assert names == [*spaces["proxy_anchor"].scientific, *spaces["proxy_anchor"].nuisance]
    assert table.baseline == {}
