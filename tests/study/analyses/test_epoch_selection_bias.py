"""The worth of picking the best test epoch is a number with an interval."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from study.analyses.comparison import confirmed
from study.analyses.inflation import analyse
from study.table import TrialTable

LOSS = "proxy_anchor"


def with_curves(table: TrialTable, curves: dict[str, list[float]]) -> TrialTable:
    """The best trial of a loss, confirmed with these test curves, one seed each."""
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
    row = analyse(with_curves(demo, CURVES)).iloc[0]
    assert row["inflation"] == pytest.approx(np.mean([0.1, 0.0, 0.1]))
    assert row["last"] == pytest.approx(0.4)
    assert row["low"] < row["inflation"] < row["high"]
    assert row["seeds"] == 3


def test_it_is_that_of_the_tuned_scores_and_of_no_other_point(demo: TrialTable) -> None:
    for row in analyse(demo).to_dict("records"):
        (tuned,) = (
            confirmed(demo).query("loss == @row['loss'] and point == 'tuned'").to_dict("records")
        )
        assert row["last"] == pytest.approx(tuned["mean"])
        assert row["seeds"] == tuned["seeds"]


def test_a_trial_without_a_curve_has_no_best_epoch(demo: TrialTable) -> None:
    table = with_curves(demo, CURVES)
    known = table.curves[table.curves["trial"] != "y"]
    assert analyse(replace(table, curves=known)).iloc[0]["seeds"] == 2


def test_nothing_before_confirmation(demo: TrialTable) -> None:
    search = demo.trials[demo.trials["split"] != "test"]
    assert analyse(replace(demo, trials=search)).empty
