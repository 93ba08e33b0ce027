"""Claims judged by measured sweeps."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from optuna.distributions import CategoricalDistribution, FloatDistribution

from search_spaces.claims import (
    BetterValue,
    ClaimTest,
    GoodValue,
    PaperClaim,
    Sensitive,
    StableRange,
)
from search_spaces.space import Hyperparameter, PublishedPoint, SearchSpace
from study.analyses import sweeps
from study.analyses.claims import judge
from study.analyses.claims.by_sweep import combine_verdicts, judge_by_sweeps
from study.analyses.claims.values import ParamTest
from study.analyses.claims.verdict import ClaimVerdict
from study.analyses.loss_model import LossModel
from study.analyses.surrogate.surrogate import Refusal
from study.trials.table import PARAM_PREFIX, TrialTable
from tests.support.analysis_inputs import make_swept_table
from tests.support.synthetic_tables import Array, SyntheticLoss, SyntheticPlan, make_table

pytestmark = pytest.mark.split


TOLERANCE = 0.01
MODELS_WITHOUT_SURROGATE = {"a": LossModel(Refusal("too few"), Refusal("too few"), TOLERANCE)}


def _judge(table: TrialTable, test: ClaimTest) -> ClaimVerdict:
    claim = PaperClaim("c", "", "", test)
    return judge.judge_claim(table, MODELS_WITHOUT_SURROGATE, "a", claim)


@pytest.mark.parametrize(
    ("test", "verdict"),
    [
        (StableRange("x", low=0.4), "supported"),
        (StableRange("x", low=0.2), "contradicted"),
        (StableRange("x"), "contradicted"),
        (GoodValue("x", 0.8), "supported"),
        (GoodValue("x", 0.0), "contradicted"),
        (GoodValue("x", 0.3), "cannot tell"),
        (BetterValue("x", (0.6, 1.0), (0.0, 0.2)), "supported"),
        (BetterValue("x", (0.0, 0.2), (0.6, 1.0)), "contradicted"),
        (BetterValue("x", 0.6, 0.8), "cannot tell"),
        (Sensitive("x"), "supported"),
    ],
)
def test_a_clear_sweep_decides_without_any_model(test: ParamTest, verdict: str) -> None:
    found = _judge(make_swept_table(), test)
    assert found.verdict == verdict, found.evidence
    assert found.basis == ("nothing" if verdict == "cannot tell" else "sweep")
    assert (found.settle == "") == (verdict != "cannot tell")
    if verdict != "cannot tell":
        assert found.evidence.startswith("measured, 6 values x 4 seeds from the published point")


def test_a_noisy_sweep_cannot_tell_and_asks_for_seeds() -> None:
    found = _judge(make_swept_table(noise=0.03, seeds=2), StableRange("x", low=0.4))
    assert found.verdict == "cannot tell"
    assert "Sweeps alone cannot tell" in found.evidence
    assert found.settle


def test_unmeasured_values_leave_a_claim_open() -> None:
    middle = make_swept_table(positions=(0.5, 0.6, 0.7))
    assert _judge(middle, StableRange("x", low=0.4)).verdict == "cannot tell"
    assert _judge(middle, StableRange("x", 0.5, 0.7)).verdict == "supported"
    # One bad value is enough to contradict a range.
    two_values = make_swept_table(positions=(0.1, 0.6))
    assert _judge(two_values, StableRange("x")).verdict == "contradicted"


def test_a_single_seed_decides_nothing() -> None:
    table = make_swept_table(seeds=1)
    assert judge_by_sweeps(table, "a", StableRange("x"), TOLERANCE, settle="") is None


def test_opposing_sweeps_leave_a_claim_open() -> None:
    """x is flat with y at 0.5 (published) and steep with y at 0.9 (another base)."""
    table = make_swept_table()
    swept = table.trials[table.trials["origin"] == "sweep"]
    score = swept["score"].where(swept[PARAM_PREFIX + "x"] < 0.5, swept["score"] - 0.1)
    names = [f"a-9{i:03d}" for i in range(len(swept))]
    other = swept.assign(trial=names, anchor="incumbent", score=score, **{PARAM_PREFIX + "y": 0.9})
    both = replace(table, trials=pd.concat([table.trials, other], ignore_index=True))
    found = _judge(both, StableRange("x", low=0.4))
    assert found.verdict == "cannot tell"
    assert "supported by" in found.evidence
    assert "contradicted by" in found.evidence


def test_a_value_where_training_diverges_is_costly() -> None:
    table = make_swept_table()
    diverged = (table.trials["origin"] == "sweep") & (table.trials[PARAM_PREFIX + "x"] == 1.0)
    trials = table.trials.assign(
        score=table.trials["score"].mask(diverged),
        state=table.trials["state"].mask(diverged, "diverged"),
        epochs=table.trials["epochs"].mask(diverged, 3),
    )
    table = replace(table, trials=trials)
    assert _judge(table, StableRange("x", low=0.4)).verdict == "contradicted"
    assert _judge(table, StableRange("x", 0.4, 0.8)).verdict == "supported"
    rows = sweeps.analyse_sweeps(table, "a")
    assert list(rows["diverged"]) == [0, 0, 0, 0, 0, 4]
    assert list(rows["seeds"]) == [4, 4, 4, 4, 4, 0]


def test_a_choice_is_judged_by_its_values() -> None:
    params = {
        "k": Hyperparameter(CategoricalDistribution(("old", "new", "odd")), "k", "test"),
        "y": Hyperparameter(FloatDistribution(0.0, 1.0), "y", "test"),
    }
    space = SearchSpace("a", "", params, published=(PublishedPoint("", {"k": "old", "y": 0.5}),))

    def response(u: Array) -> Array:
        return np.asarray(0.5 + 0.1 * (np.abs(u[:, 0] - 0.5) < 0.1))

    plan = SyntheticPlan(trials=4, repeats=1, sweep={"k": (1 / 6, 0.5, 5 / 6)})
    table = make_table([SyntheticLoss(space, response, noise=0.002)], plan)
    assert _judge(table, BetterValue("k", "new", "old")).verdict == "supported"
    assert _judge(table, BetterValue("k", "old", "odd")).verdict == "cannot tell"
    assert _judge(table, Sensitive("k")).verdict == "supported"


def test_measurements_come_before_the_model_and_the_model_before_nothing() -> None:
    yes = ClaimVerdict("supported", 0.99, "sure", basis="sweep")
    no = ClaimVerdict("contradicted", 0.01, "not so", basis="model")
    open_ = ClaimVerdict("cannot tell", 0.5, "undecided", "more")
    assert combine_verdicts(None, no) is no
    assert combine_verdicts(yes, open_).basis == "sweep"
    disagreement = combine_verdicts(yes, no)
    assert disagreement.verdict == "supported"
    assert "The model disagrees: not so" in disagreement.evidence
    by_model = combine_verdicts(open_, no)
    assert by_model.verdict == "contradicted"
    assert by_model.basis == "model"
    assert combine_verdicts(open_, open_).verdict == "cannot tell"
