"""Contracts of the analyses: what every function of a trial table or of a surrogate guarantees.

The test of a new analysis inherits a contract, names the columns and calls the analysis:

    class TestContract(TableAnalysisContract):
        columns = ("loss", "seconds")

        def analyse(self, table: TrialTable) -> pd.DataFrame:
            return summarise_seconds(table)

Override the fixture `table` if the analysis needs more than the study of `make_contract_table`.
"""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import ClassVar

import pandas as pd
import pytest

from search_spaces.claims import BetterLoss, PaperClaim, StableRange
from study.analyses.loss_model import LossModel
from study.analyses.surrogate.surrogate import Refusal, SurrogateModel
from study.trials.table import TrialTable
from tests.support.synthetic_tables import (
    Array,
    SyntheticLoss,
    SyntheticPlan,
    make_additive_response,
    make_table,
    make_unit_space,
)


def _divergence_probability(u: Array) -> Array:
    """Return 1 in the top tenth of the first hyperparameter, else 0."""
    return (u[:, 0] > 0.9).astype(float)


def make_contract_table() -> TrialTable:
    """Return a study of losses `a` and `b` with trials of every origin and state."""
    claims = (
        PaperClaim("stable", "", "", StableRange("x", 0.3, 0.6)),
        PaperClaim("better", "", "", BetterLoss("b")),
    )
    problems = [
        SyntheticLoss(
            make_unit_space("a", ["x", "y"], claims=claims),
            make_additive_response([0.2, 0.1]),
            diverges=_divergence_probability,
        ),
        SyntheticLoss(
            make_unit_space("b", ["x", "y"]), make_additive_response([0.1, 0.2], top=0.55)
        ),
    ]
    plan = SyntheticPlan(
        trials=32, sobol_share=0.6, confirm=3, sweep={"x": (0.1, 0.5, 0.8)}, running=1
    )
    return make_table(problems, plan, tolerance=0.02)


def make_models_without_surrogates(table: TrialTable) -> dict[str, LossModel]:
    """Return loss models in which every surrogate is a refusal."""
    refusal = Refusal("There are too few trials.")
    return {loss: LossModel(refusal, refusal, 0.02) for loss in table.spaces}


class AnalysisContract:
    """Tests that an analysis has the documented columns, is deterministic and keeps its input."""

    columns: ClassVar[tuple[str, ...]]

    @pytest.fixture
    def table(self, contract_table: TrialTable) -> TrialTable:
        """Return the study to analyse."""
        return contract_table

    def analyse(self, table: TrialTable) -> pd.DataFrame:
        """Call the analysis."""
        raise NotImplementedError

    def test_columns_are_the_documented_ones(self, table: TrialTable) -> None:
        frame = self.analyse(table)
        assert tuple(frame.columns) == self.columns
        assert len(frame), "an empty result does not test the contract"

    def test_results_are_deterministic(self, table: TrialTable) -> None:
        pd.testing.assert_frame_equal(self.analyse(table), self.analyse(copy.deepcopy(table)))

    def test_the_input_is_not_modified(self, table: TrialTable) -> None:
        before = copy.deepcopy(table)
        self.analyse(table)
        pd.testing.assert_frame_equal(table.trials, before.trials)
        pd.testing.assert_frame_equal(table.curves, before.curves)
        assert dict(table.spaces) == dict(before.spaces)
        assert dict(table.protocol) == dict(before.protocol)
        assert dict(table.baseline) == dict(before.baseline)


class TableAnalysisContract(AnalysisContract):
    """Tests of an analysis of a trial table, which must also accept a table without trials."""

    def test_a_study_without_trials_has_the_same_columns(self, table: TrialTable) -> None:
        empty = replace(table, trials=table.trials.iloc[:0], curves=table.curves.iloc[:0])
        assert tuple(self.analyse(empty).columns) == self.columns


class SurrogateAnalysisContract(AnalysisContract):
    """Tests of an analysis of a surrogate; `self.surrogate` is the one of loss `a`."""

    pytestmark = pytest.mark.xdist_group("analysis_contract")
    surrogate: SurrogateModel

    @pytest.fixture(autouse=True)
    def _set_surrogate(self, contract_surrogate: SurrogateModel) -> None:
        self.surrogate = contract_surrogate
