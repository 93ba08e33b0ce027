"""Trials that an analysis asks for: which are they, and what do the analyses make of them?"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from optuna.distributions import CategoricalDistribution, FloatDistribution

from search_spaces.claims import BetterLoss, Claim, StableRange, Test
from search_spaces.space import Knob, Space
from study.analyses import claims, settle, sweeps
from study.analyses.findings import find
from study.analyses.leaderboard import incumbent
from study.analyses.loss_model import LossModel
from study.analyses.samples import gather
from study.analyses.surrogate import Refusal, Surrogate, fit
from study.errors import StudyError
from study.home import create_study, new_study
from study.running import run_points, runnable
from study.table import KNOB, TrialTable
from tests.study.synthetic import Array, Plan, Problem, additive, make_table, unit_space
from tests.study.tuning_simulation import make_plan

Models = Mapping[str, LossModel]


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


# Claims that trials could settle


def _open(space: Space, test: Test, *, plan: Plan | None = None) -> tuple[TrialTable, Models]:
    """A study with one claim that its model cannot judge."""
    space = replace(space, claims=(Claim("c", "", "", test),))
    width = len(space.distributions)
    table = make_table([Problem(space, additive([0.2] * width))], plan or Plan(trials=12))
    few = Refusal("few")
    return table, {"a": LossModel(few, few, 0.02)}


@pytest.mark.parametrize(
    ("choices", "low", "swept"),
    [
        ((16, 32, 64), 32.0, {16, 32, 64}),
        ((16, 32, 64), 100.0, set()),
        (("avg", "max"), 0.1, set()),
    ],
)
def test_a_claimed_range_of_a_choice_is_swept_over_the_choices(
    choices: tuple[int | str, ...], low: float, swept: set[int]
) -> None:
    knob = Knob(CategoricalDistribution(choices), "k", "test")
    space = Space(loss="a", paper="", scientific={"k": knob})
    points = settle.settle(*_open(space, StableRange("k", low=low)))
    assert (set(points[KNOB + "k"]) if len(points) else set()) == swept


def test_a_claimed_range_of_a_choice_is_judged_over_its_choices() -> None:
    knobs = {
        "k": Knob(CategoricalDistribution((16, 32, 64)), "k", "test"),
        "y": Knob(FloatDistribution(0.0, 1.0), "y", "test"),
    }
    space = Space(loss="a", paper="", scientific=knobs)

    def response(u: Array) -> Array:
        return np.asarray(0.6 - 0.2 * (u[:, 0] < 1 / 3) - 0.1 * (u[:, 1] - 0.5) ** 2)

    table = make_table([Problem(space, response, noise=0.002)], Plan(trials=60))
    model = fit(gather(table, "a"))
    assert isinstance(model, Surrogate)
    models = {"a": LossModel(model, None, 0.02)}
    for low, verdict in ((32.0, "supported"), (None, "contradicted"), (100.0, "cannot tell")):
        said = Claim("c", "", "", StableRange("k", low=low))
        assert claims.judge(table, models, "a", said).verdict == verdict


@pytest.mark.parametrize("test", [BetterLoss("b"), StableRange("x", 0.2, 0.6)])
def test_test_scores_choose_no_point(test: Test) -> None:
    """The published point is the best on test classes, and must not become the base."""
    table, models = _open(unit_space("a", ["x", "y"]), test, plan=Plan(trials=12, confirm=3))
    space = unit_space("b", ["x", "y"])
    other = make_table([Problem(space, additive([0.2, 0.2]))], Plan(trials=12, confirm=3))
    trials = pd.concat([table.trials, other.trials], ignore_index=True)
    at_published = (trials[KNOB + "x"] == 0.5) & (trials[KNOB + "y"] == 0.5)
    high = (trials["split"] == "test") & at_published
    assert high.any()
    trials["score"] = trials["score"].mask(high, 0.99)
    trials["seed"] += np.where(trials["split"] == "test", np.arange(len(trials)), 0)
    table = replace(table, trials=trials, spaces={**table.spaces, "b": space})
    points = settle.settle(table, {**models, "b": models["a"]})
    assert len(points)
    for loss, rows in points.groupby("loss"):
        best = incumbent(table, str(loss))
        assert best is not None
        assert best[KNOB + "y"] != 0.5
        assert set(rows[KNOB + "y"]) == {best[KNOB + "y"]}


def test_sweeps_that_settle_are_labelled_by_the_point_they_vary() -> None:
    table, _ = _open(unit_space("a", ["x", "y"]), StableRange("x", 0.2, 0.6), plan=Plan(trials=60))
    model = fit(gather(table, "a"))
    assert isinstance(model, Surrogate)
    points = settle.settle(table, {"a": LossModel(model, Refusal("no curves"), 0.02)})
    assert len(points)
    (anchor,) = set(points["anchor"])
    base = sweeps.anchor_values(table, "a", str(anchor))
    assert base is not None
    assert set(points[KNOB + "y"]) == {base["y"]}


def test_no_test_score_is_asked_for_before_the_search_ends(tmp_path: Path) -> None:
    create_study(new_study("s", tmp_path), make_plan())
    points = pd.DataFrame([{"loss": "triplet", "origin": "confirm", "anchor": "", "swept": ""}])
    with pytest.raises(StudyError, match="search of s is not finished; first: study resume s"):
        run_points("s", tmp_path, points, reason="claim", address=None)


def test_what_needs_no_test_score_is_run_before_the_search_ends(tmp_path: Path) -> None:
    home, plan = new_study("s", tmp_path), make_plan()
    create_study(home, plan)
    rows = [
        {"loss": "triplet", "origin": "sweep", "why": "triplet: margin-stable"},
        {"loss": "triplet", "origin": "confirm", "why": "triplet: better"},
        {"loss": "contrastive", "origin": "confirm", "why": "triplet: better"},
    ]
    points, waiting = runnable(home, plan, pd.DataFrame(rows))
    assert list(points["why"]) == ["triplet: margin-stable"]
    assert "2 trials on test classes wait (triplet: better)" in waiting
    assert "study resume s" in waiting
    alone, nothing = runnable(home, plan, points)
    assert len(alone) == 1
    assert nothing == ""
