"""The worth of picking the best test epoch is a number with an interval."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from study.analyses.inflation import analyse
from study.table import TrialTable


def with_curves(table: TrialTable, curves: dict[str, list[float]]) -> TrialTable:
    """The table's first trials as confirmations with these test curves."""
    trials = table.trials.head(len(curves)).copy()
    trials["trial"] = list(curves)
    trials["loss"], trials["split"], trials["origin"] = "a", "test", "confirm"
    trials["score"] = [scores[-1] for scores in curves.values()]
    rows = [
        {"trial": trial, "epoch": i + 1, "score": score}
        for trial, scores in curves.items()
        for i, score in enumerate(scores)
    ]
    return replace(table, trials=trials, curves=pd.DataFrame(rows))


def test_best_minus_last(demo: TrialTable) -> None:
    table = with_curves(demo, {"x": [0.1, 0.5, 0.4], "y": [0.1, 0.2, 0.3], "z": [0.6, 0.2, 0.5]})
    row = analyse(table).iloc[0]
    assert row["inflation"] == pytest.approx(np.mean([0.1, 0.0, 0.1]))
    assert row["last"] == pytest.approx(0.4)
    assert row["low"] < row["inflation"] < row["high"]
    assert row["seeds"] == 3


def test_nothing_before_confirmation(demo: TrialTable) -> None:
    search = demo.trials[demo.trials["split"] != "test"]
    assert analyse(replace(demo, trials=search)).empty
