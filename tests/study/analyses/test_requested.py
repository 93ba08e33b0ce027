"""Trials that an analysis asks for: which are they, and what do the analyses make of them?"""

from __future__ import annotations

from dataclasses import replace

import pandas as pd

from study.analyses import sweeps
from study.analyses.findings import find
from study.table import TrialTable
from tests.study.synthetic import Plan, Problem, additive, make_table, unit_space


def _asked(table: TrialTable, reason: str) -> TrialTable:
    """The table with its best trial run again for `reason`, as a point without a swept knob."""
    best = table.trials.loc[[table.trials["score"].idxmax()]]
    extra = best.assign(trial="a-9999", origin="sweep", anchor=reason, swept="", seed=77)
    return replace(table, trials=pd.concat([table.trials, extra], ignore_index=True))


def test_points_that_were_asked_for_are_no_sweep() -> None:
    plan = Plan(trials=12, sweep={"x": (0.1, 0.9)})
    table = make_table([Problem(unit_space("a", ["x", "y"]), additive([0.2, 0.1]))], plan)
    before, after = (sweeps.analyse(t, "a") for t in (table, _asked(table, "refine")))
    assert set(after["swept"]) == {"x"}
    pd.testing.assert_frame_equal(before, after)
    assert len(find(_asked(table, "claim"), advised=1).losses["a"].sweeps) == len(before)


def test_a_sweep_counts_seeds_not_trials() -> None:
    plan = Plan(trials=4, sweep={"x": (0.1,)})
    table = make_table([Problem(unit_space("a", ["x"]), additive([0.2]))], plan)
    swept = table.trials[table.trials["origin"] == "sweep"]
    again = swept.assign(trial=[f"a-{900 + i}" for i in range(len(swept))])
    twice = replace(table, trials=pd.concat([table.trials, again], ignore_index=True))
    pd.testing.assert_frame_equal(sweeps.analyse(table, "a"), sweeps.analyse(twice, "a"))
