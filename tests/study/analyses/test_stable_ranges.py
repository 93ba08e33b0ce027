"""Stable ranges: where they end, and what they are when trials are missing."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution

from study.analyses import importance, response_curves, stable_ranges
from study.trials.table import TrialTable
from tests.support.analysis_contract import SurrogateAnalysisContract
from tests.support.analysis_inputs import fit_model
from tests.support.synthetic_tables import (
    Array,
    SyntheticLoss,
    SyntheticPlan,
    make_table,
    make_unit_space,
)

pytestmark = pytest.mark.split


def _cliff(u: Array) -> Array:
    """A plateau that drops beyond 0.75 of the first hyperparameter."""
    plateau = 0.6 - 0.05 * (u[:, 1] - 0.5) ** 2
    return np.where(u[:, 0] > 0.75, 0.1, plateau)


@pytest.mark.slow
def test_a_stable_range_ends_before_a_cliff() -> None:
    table = make_table(
        [SyntheticLoss(make_unit_space("a", list("abcd")), _cliff, noise=0.006)],
        SyntheticPlan(trials=120, sobol_share=0.5),
    )
    model = fit_model(table)
    shares = importance.analyse_importance(model).params.set_index("knob")["total"]
    assert shares["a"] > 0.8
    curves = response_curves.analyse_response_curves(model, tolerance=0.02, regions=("good",))
    row = stable_ranges.analyse_stable_ranges(curves, model, tolerance=0.02).iloc[0]
    assert row["knob"] == "a"
    assert row["status"] == "stable"
    assert row["high"] <= 0.75 + 1e-9, "the stable range extends beyond the cliff"
    assert row["outer_high"] <= 0.85


def _range_of(
    distribution: BaseDistribution, values: list[Any], statuses: list[str], means: list[float]
) -> dict[str, Any]:
    """Return the row of one hyperparameter from a curve written by hand."""
    surrogate: Any = SimpleNamespace(
        observations=SimpleNamespace(params=("x",), distributions=(distribution,))
    )
    curve = pd.DataFrame(
        {
            "region": "good",
            "knob": "x",
            "unit": np.linspace(0.0, 1.0, len(values)),
            "value": pd.Series(values, dtype=object),
            "mean": means,
            "supported": [status != "no data" for status in statuses],
            "status": statuses,
        }
    )
    rows = stable_ranges.analyse_stable_ranges(curve, surrogate, tolerance=0.1)
    (row,) = rows.to_dict("records")
    return {str(k): v for k, v in row.items()}


def test_the_range_is_the_run_of_safe_values_around_the_best() -> None:
    row = _range_of(
        FloatDistribution(1e-4, 1.0, log=True),
        [1e-4, 1e-3, 1e-2, 1e-1, 1.0],
        ["safe", "costly", "safe", "safe", "undetermined"],
        [0.5, 0.1, 0.6, 0.58, 0.4],
    )
    assert row["status"] == "stable"
    assert (row["best"], row["low"], row["high"]) == (1e-2, 1e-2, 1e-1)
    assert row["decades"] == pytest.approx(1.0)
    assert row["share"] == pytest.approx(0.25)
    assert (row["outer_low"], row["outer_high"]) == (1e-2, 1.0)
    assert row["cost"] == pytest.approx(0.5)


def test_a_best_value_that_is_not_safe_leaves_the_range_undetermined() -> None:
    row = _range_of(
        FloatDistribution(0.0, 1.0),
        [0.0, 0.5, 1.0],
        ["undetermined", "undetermined", "no data"],
        [0.5, 0.6, 0.9],
    )
    assert row["status"] == "undetermined"
    assert row["best"] == 0.5, "values without trials do not compete"
    assert row["low"] is None
    assert (row["outer_low"], row["outer_high"]) == (0.0, 0.5)


def test_safe_choices_are_listed_and_missing_trials_are_reported() -> None:
    choices = CategoricalDistribution(["avg", "max", "both"])
    row = _range_of(choices, ["avg", "max", "both"], ["safe", "costly", "safe"], [0.5, 0.1, 0.6])
    assert (row["status"], row["values"]) == ("stable", "avg, both")
    assert row["share"] == pytest.approx(2 / 3)
    row = _range_of(choices, ["avg", "max", "both"], ["no data"] * 3, [0.5, 0.1, 0.6])
    assert row["status"] == "no data"
    assert row["best"] is None


class TestContract(SurrogateAnalysisContract):
    columns = (
        "knob",
        "status",
        "best",
        "low",
        "high",
        "values",
        "share",
        "decades",
        "outer_low",
        "outer_high",
        "cost",
        "tolerance",
    )

    def analyse(self, table: TrialTable) -> pd.DataFrame:
        curves = response_curves.analyse_response_curves(self.surrogate, tolerance=0.02)
        return stable_ranges.analyse_stable_ranges(curves, self.surrogate, tolerance=0.02)
