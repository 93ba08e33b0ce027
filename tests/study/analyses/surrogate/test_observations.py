"""Observations: rows of a trial table, their positions, and which are left out."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

from study.analyses.surrogate.observations import (
    collect_observations,
    frame_to_unit_cube,
    get_unit_levels,
    point_to_unit_cube,
    snap_to_levels,
)
from tests.support import known_responses
from tests.support.synthetic_tables import (
    SyntheticLoss,
    SyntheticPlan,
    make_additive_response,
    make_table,
    make_unit_space,
)


@pytest.mark.parametrize("extra_rows", [20, 0, -20])
def test_trials_chosen_by_the_sampler_are_left_out_first(extra_rows: int) -> None:
    table = known_responses.make_case_table(
        "ishigami", known_responses.PLANS["40% sobol, TPE, early stopping"], 0
    )
    chosen = table.trials_of("a").set_index("trial")["origin"] == "bayes"
    every = collect_observations(table, "a", max_rows=10_000)
    unchosen = every.n_trials - int(chosen.sum())
    assert 20 < unchosen < every.n_trials - 20
    some = collect_observations(table, "a", max_rows=unchosen + extra_rows)
    assert len(some.scores) == some.n_trials == unchosen + extra_rows
    assert (every.n_excluded_trials, some.n_excluded_trials) == (0, every.n_trials - some.n_trials)
    blind = int((every.blind & every.last).sum())
    assert some.blind.sum() == blind if extra_rows >= 0 else 0 < some.blind.sum() < blind


def test_diverged_trials_have_the_worst_score_and_failed_ones_are_left_out() -> None:
    problem = SyntheticLoss(make_unit_space("a", ["x"]), make_additive_response([0.3]))
    table = make_table([problem], SyntheticPlan(trials=10, sobol_share=1.0, bayes=False, repeats=1))
    trials = table.trials.copy()
    trials.loc[1, "state"], trials.loc[2, "state"] = "diverged", "failed"
    trials.loc[[1, 2], "score"] = np.nan
    trials.loc[1, "epochs"] = 3
    observations = collect_observations(replace(table, trials=trials), "a")
    assert observations.n_trials == len(trials) - 1
    assert observations.diverged.sum() == 1
    row = int(np.flatnonzero(observations.diverged)[0])
    assert observations.scores[row] == trials["score"].min()
    assert observations.epochs[row] == 27, "as if trained to the end"


def test_longer_trials_are_also_observed_where_others_were_stopped() -> None:
    problem = SyntheticLoss(make_unit_space("a", ["x"]), make_additive_response([0.3]))
    table = make_table([problem], SyntheticPlan(trials=30))
    stopped = table.trials.loc[table.trials["state"] == "stopped", "epochs"]
    assert len(stopped)
    observations = collect_observations(table, "a")
    early = observations.select_rows(~observations.last)
    assert set(early.epochs) == set(stopped)
    assert observations.n_trials == len(table.trials)
    without = collect_observations(replace(table, curves=table.curves.iloc[:0]), "a")
    assert len(without) == without.n_trials


def test_trials_that_differ_only_in_their_seed_share_a_point() -> None:
    problem = SyntheticLoss(make_unit_space("a", ["x"]), make_additive_response([0.3]))
    observations = collect_observations(
        make_table([problem], SyntheticPlan(trials=8, repeats=3)), "a"
    )
    last = observations.select_rows(observations.last)
    assert len(np.unique(last.point)) < len(np.unique(last.trial)) == len(last)
    for point in np.unique(last.point):
        assert len(np.unique(last.units[last.point == point], axis=0)) == 1


def test_levels_are_the_positions_of_discrete_values() -> None:
    assert get_unit_levels(CategoricalDistribution(["a", "b"])) == pytest.approx([0.25, 0.75])
    integers = get_unit_levels(IntDistribution(1, 3))
    assert integers is not None
    assert len(integers) == 3
    assert get_unit_levels(FloatDistribution(0.0, 1.0)) is None
    assert get_unit_levels(IntDistribution(0, 1000)) is None
    assert get_unit_levels(IntDistribution(0, 20), max_levels=9) is None


def test_snapping_moves_positions_to_the_nearest_level() -> None:
    distributions = (CategoricalDistribution(["a", "b"]), FloatDistribution(0.0, 1.0))
    units = np.array([[0.1, 0.123], [0.6, 0.9]])
    assert snap_to_levels(distributions, units).tolist() == [[0.25, 0.123], [0.75, 0.9]]
    assert units[0, 0] == 0.1, "the input is not modified"


def test_choices_that_a_storage_returned_as_text_or_floats_are_recognised() -> None:
    distributions = [CategoricalDistribution([True, False]), CategoricalDistribution([16, 32])]
    frame = pd.DataFrame({"knob.flag": ["False", True], "knob.size": [32.0, "16"]})
    units = frame_to_unit_cube(frame, ["flag", "size"], distributions)
    assert units.tolist() == [[0.75, 0.75], [0.25, 0.25]]
    point = point_to_unit_cube({"flag": False, "size": 16}, ["flag", "size"], distributions)
    assert point.tolist() == [0.75, 0.25]


def test_values_outside_the_range_are_clipped_to_the_cube() -> None:
    frame = pd.DataFrame({"knob.x": [-1.0, 0.5, 9.0]})
    units = frame_to_unit_cube(frame, ["x"], [FloatDistribution(0.0, 1.0)])
    assert units[:, 0].tolist() == [0.0, 0.5, 1.0]
    assert frame_to_unit_cube(frame, [], []).shape == (3, 0)
