"""Selections of a trial table: full length, validation trials and the published point."""

from __future__ import annotations

from dataclasses import replace

import pytest
from optuna.distributions import FloatDistribution

from search_spaces.space import PublishedPoint
from study.trials.selection import (
    get_full_epochs,
    get_published_params,
    select_validation_trials,
)
from tests.support.analysis_inputs import make_space
from tests.support.demo_study import make_demo_problems
from tests.support.synthetic_tables import (
    SyntheticLoss,
    SyntheticPlan,
    make_additive_response,
    make_table,
    make_unit_space,
)

pytestmark = pytest.mark.split


def test_each_loss_has_its_own_full_length() -> None:
    table = make_table(make_demo_problems()[1:], SyntheticPlan(trials=8, bayes=False))
    shorter = table.trials["loss"] == "triplet"
    epochs = table.trials["epochs"].where(~shorter, 9)
    table = replace(table, trials=table.trials.assign(epochs=epochs))
    assert get_full_epochs(table, "triplet") == 9
    assert get_full_epochs(table, "circle") == 27


def test_the_protocol_gives_the_full_length_before_a_trial_finishes() -> None:
    table = make_table(
        [SyntheticLoss(make_unit_space("a", ["x"]), make_additive_response([0.1]))],
        SyntheticPlan(trials=4),
    )
    empty = replace(table, trials=table.trials.iloc[:0])
    assert get_full_epochs(empty, "a") == 27
    unstated = replace(empty, protocol={})
    assert get_full_epochs(unstated, "a") == 1


def test_confirmations_are_not_validation_trials() -> None:
    problem = SyntheticLoss(make_unit_space("a", ["x"]), make_additive_response([0.1]))
    table = make_table([problem], SyntheticPlan(trials=4, confirm=3))
    selected = select_validation_trials(table, "a")
    assert set(selected["split"]) == {"validation"}
    assert len(selected) == len(table.trials) - 6


def test_the_published_point_is_the_first_of_several() -> None:
    space = make_space(x=FloatDistribution(0.0, 1.0))
    points = tuple(PublishedPoint(str(x), {"x": x}) for x in (0.4, 0.6))
    table = make_table(
        [SyntheticLoss(space, make_additive_response([0.1]))], SyntheticPlan(trials=4)
    )
    assert get_published_params(table, "a") is None
    published = replace(table, spaces={"a": replace(space, published=points)})
    assert get_published_params(published, "a") == {"x": 0.4}
