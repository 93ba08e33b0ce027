"""Epoch selection bias: best minus last epoch, with an interval over seeds."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from study.analyses.epoch_selection_bias import (
    EPOCH_SELECTION_BIAS_COLUMNS,
    analyse_epoch_selection_bias,
)
from study.analyses.loss_comparison import summarise_confirmed_scores
from study.trials.table import TrialTable
from tests.support.analysis_contract import TableAnalysisContract

LOSS = "proxy_anchor"


def with_curves(table: TrialTable, curves: dict[str, list[float]]) -> TrialTable:
    """Return the study with its best trial confirmed with these test curves, one seed each."""
    search = table.trials[(table.trials["loss"] == LOSS) & (table.trials["split"] != "test")]
    best = search.sort_values("score").iloc[[-1]]
    trials = pd.concat([best] * len(curves), ignore_index=True)
    trials["trial"], trials["seed"] = list(curves), range(len(curves))
    trials["split"], trials["origin"], trials["anchor"] = "test", "confirm", "incumbent"
    trials["score"] = [scores[-1] for scores in curves.values()]
    rows = [
        {"trial": trial, "epoch": i + 1, "score": score}
        for trial, scores in curves.items()
        for i, score in enumerate(scores)
    ]
    return replace(table, trials=pd.concat([best, trials]), curves=pd.DataFrame(rows))


CURVES = {"x": [0.1, 0.5, 0.4], "y": [0.1, 0.2, 0.3], "z": [0.6, 0.2, 0.5]}


def test_best_minus_last(demo: TrialTable) -> None:
    row = analyse_epoch_selection_bias(with_curves(demo, CURVES)).iloc[0]
    assert row["inflation"] == pytest.approx(np.mean([0.1, 0.0, 0.1]))
    assert row["last"] == pytest.approx(0.4)
    assert row["low"] < row["inflation"] < row["high"]
    assert row["seeds"] == 3


def test_the_bias_is_that_of_the_tuned_point_only(demo: TrialTable) -> None:
    for row in analyse_epoch_selection_bias(demo).to_dict("records"):
        (tuned,) = (
            summarise_confirmed_scores(demo)
            .query("loss == @row['loss'] and point == 'tuned'")
            .to_dict("records")
        )
        assert row["last"] == pytest.approx(tuned["mean"])
        assert row["seeds"] == tuned["seeds"]


def test_a_trial_without_a_curve_has_no_best_epoch(demo: TrialTable) -> None:
    table = with_curves(demo, CURVES)
    curves = table.curves[table.curves["trial"] != "y"]
    assert analyse_epoch_selection_bias(replace(table, curves=curves)).iloc[0]["seeds"] == 2


def test_there_is_no_result_before_a_confirmation(demo: TrialTable) -> None:
    search = demo.trials[demo.trials["split"] != "test"]
    assert analyse_epoch_selection_bias(replace(demo, trials=search)).empty


class TestContract(TableAnalysisContract):
    columns = EPOCH_SELECTION_BIAS_COLUMNS

    def analyse(self, table: TrialTable) -> pd.DataFrame:
        return analyse_epoch_selection_bias(table)
