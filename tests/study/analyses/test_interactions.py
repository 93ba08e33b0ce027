"""Interactions: which pairs are chosen, and where a surface is supported."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest

from study.analyses import interactions
from study.analyses.findings import StudyFindings
from study.analyses.surrogate.observations import collect_observations
from study.analyses.surrogate.surrogate import SurrogateModel
from study.trials.table import TrialTable
from tests.support.analysis_contract import SurrogateAnalysisContract
from tests.support.synthetic_tables import (
    SyntheticLoss,
    make_additive_response,
    make_table,
    make_unit_space,
)


@pytest.mark.xdist_group("demo")
def test_cells_far_from_all_trials_are_unsupported(demo_findings: StudyFindings) -> None:
    model = demo_findings.losses["circle"].surrogate
    assert isinstance(model, SurrogateModel)
    assert interactions.choose_pairs(model, None) == [("gamma", "m")]
    surface = interactions.analyse_interaction(model, ("gamma", "m"))
    unsupported = surface[~surface["supported"]]
    positions = model.observations.units[model.observations.last]
    for row in unsupported.to_dict("records"):
        gap = np.abs(positions[:, :2] - [row["unit"], row["other_unit"]]).max(axis=1)
        assert gap.min() > 0.1


def test_one_trial_within_a_tenth_or_three_within_more_support_a_cell() -> None:
    table = make_table(
        [SyntheticLoss(make_unit_space("a", ["x", "y"]), make_additive_response([0.1, 0.1]))]
    )
    observations = collect_observations(table, "a")
    positions = np.array([[0.5, 0.5], [0.05, 0.9], [0.1, 0.95], [0.0, 0.95]])
    observations = replace(
        observations.select_rows(np.arange(4)), units=positions, last=np.ones(4, dtype=bool)
    )
    cells = np.array([[0.6, 0.5], [0.65, 0.5], [0.16, 0.79], [0.9, 0.1]])
    found = interactions.has_nearby_trials_2d(observations, (0, 1), cells)
    assert found.tolist() == [True, False, True, False]


def test_pairs_of_the_papers_come_first_and_weak_interactions_are_left_out() -> None:
    model: Any = SimpleNamespace(observations=SimpleNamespace(params=("x", "alpha", "y", "delta")))
    shares = pd.DataFrame(
        [("x", "y", 0.3, 0.2), ("delta", "alpha", 0.2, 0.1), ("x", "alpha", 0.1, 0.01)],
        columns=["knob", "other", "share", "low"],
    )
    assert interactions.choose_pairs(model, None) == [("alpha", "delta")]
    assert interactions.choose_pairs(model, shares) == [("alpha", "delta"), ("x", "y")]
    assert interactions.choose_pairs(model, shares, max_pairs=1) == [("alpha", "delta")]


class TestContract(SurrogateAnalysisContract):
    columns = (
        "knob",
        "other",
        "unit",
        "other_unit",
        "value",
        "other_value",
        "mean",
        "low",
        "high",
        "supported",
    )

    def analyse(self, table: TrialTable) -> pd.DataFrame:
        return interactions.analyse_interaction(self.surrogate, ("x", "y"), size=4)
