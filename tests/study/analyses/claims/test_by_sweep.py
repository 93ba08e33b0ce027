"""Do measured sweeps decide claims they can decide, and no others?"""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from optuna.distributions import CategoricalDistribution, FloatDistribution

from search_spaces.claims import BetterValue, Claim, GoodValue, Sensitive, StableRange, Test
from search_spaces.space import Knob, Published, Space
from study.analyses import claims, settle, sweeps
from study.analyses.claimed import KnobTest
from study.analyses.loss_model import LossModel
from study.analyses.surrogate import Refusal
from study.analyses.sweep_claims import combine, judge
from study.analyses.sweep_draws import draw
from study.analyses.verdicts import Judgement, swing
from study.table import KNOB, TrialTable
from tests.study.synthetic import Array, Plan, Problem, make_table, unit_space

PLACES = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
TOLERANCE = 0.01
REFUSED = {"a": LossModel(Refusal("too few"), Refusal("too few"), TOLERANCE)}


def _knee(u: Array) -> Array:
    """Bad below 0.4 of x, flat above; y does nothing."""
    return np.asarray(0.6 - 0.5 * np.maximum(0.4 - u[:, 0], 0.0))


def _swept(
    *, noise: float = 0.002, places: tuple[float, ...] = PLACES, seeds: int = 4, seed: int = 0
) -> TrialTable:
    problem = Problem(unit_space("a", ["x", "y"]), _knee, noise=noise)
    plan = Plan(trials=4, repeats=1, sweep={"x": places}, sweep_seeds=seeds)
    return make_table([problem], plan, seed=seed)


def _said(table: TrialTable, test: Test) -> Judgement:
    return claims.judge(table, REFUSED, "a", Claim("c", "", "", test))


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
def test_a_clear_sweep_decides_without_any_model(test: KnobTest, verdict: str) -> None:
    found = _said(_swept(), test)
    assert found.verdict == verdict, found.evidence
    assert found.basis == ("nothing" if verdict == "cannot tell" else "sweep")
    assert (found.settle == "") == (verdict != "cannot tell")
    if verdict != "cannot tell":
        assert found.evidence.startswith("measured, 6 values x 4 seeds from the published point")


def test_a_noisy_sweep_cannot_tell_and_asks_for_seeds() -> None:
    found = _said(_swept(noise=0.03, seeds=2), StableRange("x", low=0.4))
    assert found.verdict == "cannot tell"
    assert "Sweeps alone cannot tell" in found.evidence
    assert found.settle


def test_what_was_not_measured_is_not_vouched_for() -> None:
    middle = _swept(places=(0.5, 0.6, 0.7))
    assert _said(middle, StableRange("x", low=0.4)).verdict == "cannot tell"
    assert _said(middle, StableRange("x", 0.5, 0.7)).verdict == "supported"
    # One bad value is enough against a range.
    assert _said(_swept(places=(0.1, 0.6)), StableRange("x")).verdict == "contradicted"


def test_one_seed_knows_no_noise() -> None:
    assert judge(_swept(seeds=1), "a", StableRange("x"), TOLERANCE, settle="") is None


def test_sweeps_that_oppose_each_other_leave_it_open() -> None:
    """x is flat with y at 0.5 (published) and steep with y at 0.9 (another base)."""
    table = _swept()
    swept = table.trials[table.trials["origin"] == "sweep"]
    score = swept["score"].where(swept[KNOB + "x"] < 0.5, swept["score"] - 0.1)
    names = [f"a-9{i:03d}" for i in range(len(swept))]
    other = swept.assign(trial=names, anchor="incumbent", score=score, **{KNOB + "y": 0.9})
    both = replace(table, trials=pd.concat([table.trials, other], ignore_index=True))
    found = _said(both, StableRange("x", low=0.4))
    assert found.verdict == "cannot tell"
    assert "supported by" in found.evidence
    assert "contradicted by" in found.evidence


def test_a_value_where_training_diverges_is_costly() -> None:
    table = _swept()
    lost = (table.trials["origin"] == "sweep") & (table.trials[KNOB + "x"] == 1.0)
    trials = table.trials.assign(
        score=table.trials["score"].mask(lost),
        state=table.trials["state"].mask(lost, "diverged"),
        epochs=table.trials["epochs"].mask(lost, 3),
    )
    broken = replace(table, trials=trials)
    assert _said(broken, StableRange("x", low=0.4)).verdict == "contradicted"
    assert _said(broken, StableRange("x", 0.4, 0.8)).verdict == "supported"
    rows = sweeps.analyse(broken, "a")
    assert list(rows["diverged"]) == [0, 0, 0, 0, 0, 4]
    assert list(rows["seeds"]) == [4, 4, 4, 4, 4, 0]


def test_a_choice_is_judged_by_its_values() -> None:
    knobs = {
        "k": Knob(CategoricalDistribution(("old", "new", "odd")), "k", "test"),
        "y": Knob(FloatDistribution(0.0, 1.0), "y", "test"),
    }
    space = Space("a", "", knobs, published=(Published("", {"k": "old", "y": 0.5}),))

    def response(u: Array) -> Array:
        return np.asarray(0.5 + 0.1 * (np.abs(u[:, 0] - 0.5) < 0.1))

    plan = Plan(trials=4, repeats=1, sweep={"k": (1 / 6, 0.5, 5 / 6)})
    table = make_table([Problem(space, response, noise=0.002)], plan)
    assert _said(table, BetterValue("k", "new", "old")).verdict == "supported"
    assert _said(table, BetterValue("k", "old", "odd")).verdict == "cannot tell"
    assert _said(table, Sensitive("k")).verdict == "supported"


def test_the_winning_trial_is_no_evidence_for_the_point_it_won_with() -> None:
    table = _swept()
    base = table.trials[(table.trials["origin"] == "published")]
    lucky = base.assign(trial="a-9999", origin="bayes", score=0.9, seed=99)
    more = replace(table, trials=pd.concat([table.trials, lucky], ignore_index=True))
    pd.testing.assert_frame_equal(sweeps.analyse(more, "a"), sweeps.analyse(table, "a"))


def test_sweeps_around_the_incumbents_of_two_searches_stay_apart() -> None:
    table = _swept()
    swept = table.trials[table.trials["origin"] == "sweep"]
    old = swept.assign(anchor="incumbent", trial="old-" + swept["trial"], **{KNOB + "y": 0.7})
    new = swept.assign(anchor="incumbent", trial="new-" + swept["trial"], **{KNOB + "y": 0.9})
    new["number"] += 1000
    both = replace(table, trials=pd.concat([table.trials, old, new], ignore_index=True))
    found = {s.anchor: s for s in sweeps.measured(both, "a")}
    assert set(found) == {"published", "incumbent", "earlier incumbent"}
    assert found["incumbent"].base["y"] == 0.9
    assert found["earlier incumbent"].base["y"] == 0.7
    assert len(sweeps.analyse(both, "a")) == 3 * len(PLACES)


def test_measurements_come_before_the_model_and_the_model_before_nothing() -> None:
    yes = Judgement("supported", 0.99, "sure", basis="sweep")
    no = Judgement("contradicted", 0.01, "not so", basis="model")
    unsure = Judgement("cannot tell", 0.5, "who knows", "more")
    assert combine(None, no) is no
    assert combine(yes, unsure).basis == "sweep"
    against = combine(yes, no)
    assert against.verdict == "supported"
    assert "The model disagrees: not so" in against.evidence
    helped = combine(unsure, no)
    assert helped.verdict == "contradicted"
    assert helped.basis == "model"
    assert combine(unsure, unsure).verdict == "cannot tell"


def _made(truth: Array, seeds: int, rng: np.random.Generator) -> sweeps.Sweep:
    """A sweep with one deviation of noise between seeds, which share half of it."""
    shared = rng.standard_normal(seeds)
    scores = truth[:, None] + np.sqrt(0.5) * (shared + rng.standard_normal((len(truth), seeds)))
    units = np.linspace(0.0, 1.0, len(truth))
    by_seed = tuple(dict(enumerate(map(float, row))) for row in scores)
    return sweeps.Sweep("x", "incumbent", {}, tuple(units), units, by_seed)


@pytest.mark.parametrize(
    ("cost", "seeds", "flat_at_most", "flat_at_least", "steep_at_most", "steep_at_least"),
    [
        (0.0, 8, 1.0, 0.5, 0.05, 0.0),
        (1.05, 8, 0.1, 0.0, 0.15, 0.0),
        (3.0, 8, 0.0, 0.0, 1.0, 0.9),
    ],
)
def test_sweeps_are_right_at_the_stated_rate(
    cost: float,
    seeds: int,
    flat_at_most: float,
    flat_at_least: float,
    steep_at_most: float,
    steep_at_least: float,
) -> None:
    """One of six values costs so many tolerances, and a tolerance is one seed's deviation."""
    truth = np.zeros(6)
    truth[2] = -cost
    flat, steep, runs = 0, 0, 40
    for seed in range(runs):
        made = _made(truth, seeds, np.random.default_rng(seed))
        draws = draw(made, np.ones(6, dtype=bool), worst=-10.0, seed=seed)
        assert draws is not None
        same, apart, _ = swing(draws, draws, 1.0, "")
        flat, steep = flat + (same >= 0.95), steep + (apart >= 0.95)
    assert flat_at_least * runs <= flat <= flat_at_most * runs
    assert steep_at_least * runs <= steep <= steep_at_most * runs


def test_the_band_of_a_cost_decides_it() -> None:
    """A draw's own best may lie anywhere: a band beside one fixed value would be of width zero."""
    draws = np.random.default_rng(0).normal([0.02, 0.0, 0.0, 0.0, 0.0], 0.01, (400, 5))
    same, apart, words = swing(draws, draws[:, :1], 0.005, "claimed values cost")
    assert same < 0.95
    assert apart < 0.95
    found = re.search(r"cost (\S+) \((\S+) to (\S+)\); tolerance 0.0050: within it with", words)
    assert found is not None, words
    mean, low, high = map(float, found.groups())
    assert low <= mean < 0.005 < high


def test_settling_asks_for_seeds_that_are_not_there_yet() -> None:
    table = _swept(noise=0.03, seeds=2)
    said = (Claim("c", "", "", StableRange("x", low=0.4)),)
    space = replace(table.spaces["a"], claims=said)
    table = replace(table, spaces={"a": space})
    first = settle.settle(table, REFUSED)
    counts = first.groupby(KNOB + "x").size()
    assert counts.nunique() == 1
    run = pd.DataFrame(
        [
            {
                **table.trials.iloc[0].to_dict(),
                **{c: row[c] for c in ("origin", "anchor", "swept", KNOB + "x", KNOB + "y")},
                "seed": 500 + row["seed"],
                "trial": f"a-8{i:03d}",
                "number": 8000 + i,
                "point": str(row[KNOB + "x"]),
                "score": 0.6 + 0.03 * float(np.random.default_rng(i).standard_normal()),
                "epochs": 27,
                "state": "finished",
            }
            for i, row in enumerate(first.to_dict("records"))
            if row["seed"] < 3
        ]
    )
    later = replace(table, trials=pd.concat([table.trials, run], ignore_index=True))
    again = settle.settle(later, REFUSED)
    assert len(again)
    assert again["seed"].min() == 3
