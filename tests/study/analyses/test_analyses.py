"""Does each analysis say what it says it says?"""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

from search_spaces.claims import BetterLoss, BetterValue, Claim, CostRatio, FasterLoss, HigherMetric
from search_spaces.space import Knob, Published, Space, Value
from study.analyses import (
    across,
    advice,
    claims,
    comparison,
    divergence,
    expected_best,
    lint,
    pairs,
    response,
    settle,
    stopping,
    tuning,
)
from study.analyses.findings import Findings, find
from study.analyses.leaderboard import incumbent
from study.analyses.loss_model import LossModel
from study.analyses.noise import seed_noise
from study.analyses.samples import full_epochs, gather
from study.analyses.surrogate import Refusal, Surrogate, fit, refuse_response
from study.report.answer import answer
from study.report.build import write_report
from study.report.chart import Heat
from study.report.compare import compare_reports
from study.report.figures import divergence as figures
from study.table import KNOB, TrialTable
from tests.study.demo import demo_problems
from tests.study.synthetic import Array, Plan, Problem, additive, make_table, unit_space
from trainables.settings import Settings


def _model(table: TrialTable, loss: str = "a") -> Surrogate:
    model = fit(gather(table, loss))
    assert isinstance(model, Surrogate)
    return model


def test_seed_noise_is_the_spread_of_repeats_and_covers_the_truth() -> None:
    held = 0
    for seed in range(20):
        problem = Problem(unit_space("a", ["x"]), additive([0.2]), noise=0.01)
        plan = Plan(trials=8, repeats=4, repeated_points=3)
        noise = seed_noise(make_table([problem], plan, seed=seed))
        held += noise.low <= 0.01 <= noise.high
        assert noise.source == "repeats"
    assert held >= 15
    single = make_table([problem], Plan(trials=8, repeats=1))
    assert not seed_noise(single).measured


def test_seeds_inside_trials_give_the_noise_of_their_mean() -> None:
    """Not that of one seed: scores are means, and so is what they are compared with."""
    rng, sigma, seeds = np.random.default_rng(0), 0.01, 4
    problem = Problem(unit_space("a", ["x"]), additive([0.2]), noise=0.0)
    table = make_table([problem], Plan(trials=40, repeats=1, stop=False))
    inside = [float(np.std(sigma * rng.standard_normal(seeds), ddof=1)) for _ in range(40)]
    trials = table.trials[table.trials["origin"] != "published"].assign(score_std=inside)
    several = replace(table, trials=trials, protocol={**table.protocol, "seeds_per_point": seeds})
    noise = seed_noise(several)
    assert (noise.source, noise.freedom) == ("seeds inside trials", 120)
    assert noise.low < sigma / 2 < noise.high < sigma


def test_the_same_seed_again_is_no_repeat() -> None:
    problem = Problem(unit_space("a", ["x"]), additive([0.2]), noise=0.01)
    table = make_table([problem], Plan(trials=8, repeats=3))
    again = table.trials.assign(trial=table.trials["trial"] + "-again")
    twice = replace(table, trials=pd.concat([table.trials, again], ignore_index=True))
    assert seed_noise(twice) == seed_noise(table)
    once = table.trials["seed"] == 0
    single = replace(table, trials=pd.concat([table.trials[once], again[once]]))
    assert not seed_noise(single).measured


def test_full_length_is_each_loss_its_own() -> None:
    table = make_table(demo_problems()[1:], Plan(trials=8, bayes=False))
    shorter = table.trials["loss"] == "triplet"
    epochs = table.trials["epochs"].where(~shorter, 9)
    table = replace(table, trials=table.trials.assign(epochs=epochs))
    assert full_epochs(table, "triplet") == 9
    assert full_epochs(table, "circle") == 27


# Divergence


def test_diverged_trials_shape_the_map_and_the_safe_range(demo_findings: Findings) -> None:
    model = demo_findings.losses["circle"].surrogate
    assert isinstance(model, Surrogate)
    assert model.risk is not None
    bad, good = np.array([[0.9, 0.5, 0.9]]), np.array([[0.3, 0.5, 0.5]])
    assert model.risk(bad).mean() > 5 * model.risk(good).mean()
    assert divergence.riskiest_pair(model.samples, model.risk) in [
        ("gamma", "backbone_lr"),
        ("backbone_lr", "gamma"),
    ]
    counts = demo_findings.losses["circle"].divergence
    total = int((demo_findings.table.of("circle")["state"] == "diverged").sum())
    assert counts.groupby("knob")["diverged"].sum().eq(total).all()


def test_trials_below_the_untrained_backbone_are_called_collapsed(demo: TrialTable) -> None:
    low = divergence.collapsed(demo, "proxy_anchor")
    assert (low["score"] < 0.21).all()
    assert divergence.collapsed(replace(demo, baseline={}), "proxy_anchor").empty


def test_a_collapse_is_on_the_map_even_if_nothing_diverged(demo_findings: Findings) -> None:
    found = demo_findings.losses["proxy_anchor"]
    assert len(found.collapsed)
    assert not (demo_findings.table.of("proxy_anchor")["state"] == "diverged").any()
    assert found.divergence.groupby("knob")["collapsed"].sum().eq(len(found.collapsed)).all()
    chart = figures.chart(demo_findings, "proxy_anchor")
    assert chart is not None
    names = {getattr(mark, "name", "") for panel in chart.panels for mark in panel.marks}
    assert names == {"collapsed"}


def test_the_chance_to_diverge_of_a_choice_is_read_at_the_choice() -> None:
    knobs = _space(kind=CategoricalDistribution(["a", "b", "c"]), x=FloatDistribution(0.0, 1.0))

    def diverges(u: Array) -> Array:
        return np.where(u[:, 0] > 2 / 3, 0.9, 0.0)

    problem = Problem(knobs, additive([0.05, 0.1]), diverges=diverges)
    table = make_table([problem], Plan(trials=90, bayes=False, sobol_share=1.0))
    samples = gather(table, "a")
    rows = divergence.analyse(samples, divergence.risk_of(samples), table.trials.iloc[:0])
    chance = rows[rows["knob"] == "kind"].set_index("low")["chance"]
    assert chance["c"] > 0.7
    assert chance["a"] < 0.1
    assert chance["b"] < 0.1
    panel = figures.chart(find(table, advised=1), "a").panels[0]  # type: ignore[union-attr]
    heat = next(mark for mark in panel.marks if isinstance(mark, Heat))
    shown = np.array(heat.z, dtype=float)
    assert np.nanmax(shown) > 0.7
    assert np.nanmin(shown) < 0.1


def test_every_choice_is_counted_under_its_own_name() -> None:
    names = [f"c{i}" for i in range(7)]
    knobs = _space(kind=CategoricalDistribution(names), x=FloatDistribution(0.0, 1.0))

    def diverges(u: Array) -> Array:
        return np.where(np.floor(u[:, 0] * 7) == 1, 1.0, 0.0)

    problem = Problem(knobs, additive([0.0, 0.1]), diverges=diverges)
    table = make_table([problem], Plan(trials=40, bayes=False, sobol_share=1.0))
    samples = gather(table, "a")
    rows = divergence.analyse(samples, None, table.trials.iloc[:0])
    rows = rows[rows["knob"] == "kind"].set_index("low")
    assert list(rows.index) == names
    assert (rows["high"] == rows.index).all()
    assert rows.loc["c1", "rate"] == 1.0
    assert rows["diverged"].sum() == rows.loc["c1", "trials"]


# Tuning


def test_expected_best_matches_brute_force() -> None:
    scores = np.random.default_rng(0).random(12)
    rows = expected_best.curve(scores, most=12)
    rng = np.random.default_rng(1)
    draws = np.array([rng.choice(scores, 3, replace=False).max() for _ in range(20000)])
    assert rows["expected"].iloc[2] == pytest.approx(draws.mean(), abs=0.005)
    assert rows["expected"].iloc[11] == pytest.approx(scores.max())
    assert (rows["low"] <= rows["median"]).all()
    assert (rows["median"] <= rows["high"]).all()


def test_expected_best_uses_the_blind_part_alone() -> None:
    problem = Problem(unit_space("a", ["x", "y"]), additive([0.3, 0.1]))
    table = make_table([problem], Plan(trials=40))
    blind = table.trials[table.trials["origin"] == "sobol"]
    rows = expected_best.analyse(table, "a")
    assert rows["expected"].iloc[0] == pytest.approx(blind["score"].mean())
    few = make_table([problem], Plan(trials=6, bayes=False))
    assert expected_best.analyse(few, "a").empty


@pytest.fixture(scope="module")
def tuned() -> tuple[TrialTable, Surrogate]:
    """Published at 0.5 everywhere, best at 0.7: knob a costs 0.0245 there, b 0.0008, c nothing."""
    space = unit_space("a", list("abc"))
    table = make_table([Problem(space, additive([0.3, 0.01, 0.0]), noise=0.004)], Plan(trials=70))
    return table, _model(table)


def test_tunability_leave_and_path(tuned: tuple[TrialTable, Surrogate]) -> None:
    table, model = tuned
    places = tuning.ends(table, model)
    assert places is not None
    gain, low, high = tuning.gain(model, places)
    assert low <= 0.0253 <= high
    assert gain == pytest.approx(0.025, abs=0.006)
    alone = tuning.tunability(model, places)
    assert alone["knob"].iloc[0] == "a"
    assert float(alone["to"].iloc[0]) == pytest.approx(0.7, abs=0.06)
    verdicts = tuning.leave(model, places, tolerance=0.006).set_index("knob")["verdict"]
    assert verdicts.to_dict() == {"a": "set it", "b": "may stay", "c": "may stay"}
    path = tuning.path(model, places)
    assert path["knob"].iloc[1] == "a"
    assert path["gain"].sum() == pytest.approx(gain, abs=1e-6)


@pytest.mark.parametrize("distribution", [IntDistribution(1, 30), IntDistribution(0, 60)])
def test_steps_lend_support_to_each_other_and_choices_do_not(
    distribution: IntDistribution,
) -> None:
    table = make_table([Problem(_space(n=distribution), additive([0.2]))], Plan(bayes=False))
    samples = gather(table, "a")
    fine = np.linspace(0.0, 1.0, 81)
    known = response.supported(samples, "n", fine)
    assert known.mean() > 0.9
    order = np.random.default_rng(0).permutation(len(fine))
    assert (response.supported(samples, "n", fine[order]) == known[order]).all()
    words = CategoricalDistribution([str(i) for i in range(12)])
    choice = gather(make_table([Problem(_space(n=words), additive([0.2]))], Plan()), "a")
    levels = (np.arange(12) + 0.5) / 12
    rows = choice.rows(np.abs(choice.units[:, 0] - levels[5]) > 1e-9)
    assert not response.supported(rows, "n", levels[[7, 5]])[1]


def test_pairs_hide_where_nobody_looked(demo_findings: Findings) -> None:
    model = demo_findings.losses["circle"].surrogate
    assert isinstance(model, Surrogate)
    assert pairs.choose(model, None) == [("gamma", "m")]
    surface = pairs.analyse(model, ("gamma", "m"))
    hidden = surface[~surface["supported"]]
    places = model.samples.units[model.samples.last]
    for row in hidden.to_dict("records"):
        gap = np.abs(places[:, :2] - [row["unit"], row["other_unit"]]).max(axis=1)
        assert gap.min() > 0.1


def test_a_repeat_that_failed_is_no_seed_and_is_said() -> None:
    problem = Problem(unit_space("a", ["x", "y"]), additive([0.3, 0.1]), noise=0.001)
    table = make_table([problem], Plan(trials=20, bayes=False))
    before = seed_noise(table, "a").freedom
    lost = table.trials.index[table.trials["origin"] == "repeat"][:2]
    trials = table.trials.copy()
    trials.loc[lost, "state"], trials.loc[lost, "score"] = "failed", np.nan
    table = replace(table, trials=trials)
    assert seed_noise(table, "a").freedom == before - 2
    said = lint.lint_results(table).set_index("rule")["message"]["failed trials"]
    assert said.startswith("2 trials failed")
    assert "2 of them repeated a point: its seed noise rests on fewer seeds" in said


# Early stopping


@pytest.mark.parametrize(("crossing", "verdict"), [(False, "safe"), (True, "unsafe")])
def test_stopping_is_safe_only_if_early_ranks_are_final_ranks(crossing: bool, verdict: str) -> None:
    problem = Problem(unit_space("a", ["x", "y"]), additive([0.3, 0.1]), noise=0.001)
    table = make_table([problem], Plan(trials=40, bayes=False))
    if crossing:  # the early scores of the best trials are the worst
        late = table.curves["epoch"] > 20
        turned = table.curves["score"].where(late, 1.0 - table.curves["score"])
        table = replace(table, curves=table.curves.assign(score=turned))
    rows = stopping.analyse(table, "a")
    assert len(rows) == 2
    assert set(rows["verdict"]) == {verdict}
    # Curves that turn together are foretold all the same.
    assert rows["best_foretold"].all()
    # One that alone rises from the bottom is not: it would have been stopped.
    free = table.trials[table.trials["origin"] != "repeat"]
    best = free.set_index("trial")["score"].idxmax()
    its_own = (table.curves["trial"] == best) & (table.curves["epoch"] <= 20)
    worst = table.curves["score"].where(~its_own, 0.9 if crossing else 0.1)
    rows = stopping.analyse(replace(table, curves=table.curves.assign(score=worst)), "a")
    assert not rows["best_foretold"].any()


@pytest.mark.parametrize(
    ("stops", "said", "rungs", "kept"),
    [
        (True, [3, 4, 6, 8, 9, 11], [3], True),  # as the search says
        (True, [], [3], True),  # an import: none was stopped before
        (False, [4, 6, 8, 11], [4, 9], True),  # nothing was stopped, but might have been
        (False, [], [3, 9], False),  # nothing is known, so all scores count
    ],
)
def test_stopping_is_judged_by_what_the_search_could_see(
    stops: bool, said: list[int], rungs: list[int], kept: bool
) -> None:
    """With a frozen backbone the best was slow; that is nothing before the search's grace."""
    problem = Problem(unit_space("a", ["x", "y"]), additive([0.3, 0.1]), noise=0.001)
    table = make_table([problem], Plan(trials=40, bayes=stops))
    assert (table.trials["state"] == "stopped").any() == stops
    final = table.trials.set_index("trial")["score"]
    best = final[table.trials.set_index("trial")["origin"].isin(["sobol", "published"])].idxmax()
    scores = table.curves.pivot(index="trial", columns="epoch", values="score")
    gained = final.where(final.index != best, 0.1).reindex(scores.index)
    for epoch in (1, 2):  # what the others gain from here to the third is what they reach
        scores[epoch] = scores[3] - gained
    curves = scores.melt(ignore_index=False, value_name="score").reset_index().dropna()
    protocol = {**table.protocol, **({"foretold_at": {"a": said}} if said else {})}
    rows = stopping.analyse(replace(table, curves=curves, protocol=protocol), "a")
    assert rows["epoch"].tolist() == rungs
    assert rows["best_foretold"].iloc[0] == kept


@pytest.mark.parametrize(("trials", "sobol", "said"), [(14, 0.4, True), (40, 0.4, False)])
def test_too_few_trials_to_judge_stopping_are_said(
    trials: int, sobol: float, said: bool, tmp_path: Path
) -> None:
    problem = Problem(unit_space("a", ["x", "y"]), additive([0.3, 0.1]), noise=0.001)
    table = make_table([problem], Plan(trials=trials, sobol_share=sobol))
    stopped = int((table.trials["state"] == "stopped").sum())
    assert stopped
    rows, why = stopping.analyse(table, "a"), stopping.unknown(table, "a")
    assert bool(len(rows)) != said
    assert bool(why) == said
    page = write_report(table, tmp_path, formats=("png",)).index.read_text("utf-8")
    assert ("a: cannot tell" in page) == said
    if said:
        assert f"{stopped} trials were stopped" in page
    calm = replace(table, trials=table.trials[table.trials["state"] != "stopped"])
    assert not stopping.unknown(calm, "a"), "nobody asks"


# Comparison


def test_holm_by_hand() -> None:
    p = np.array([0.01, 0.04, 0.03])
    assert comparison.holm(p) == pytest.approx([0.03, 0.06, 0.06])


def test_confirmed_scores_exclude_the_search(demo: TrialTable, demo_findings: Findings) -> None:
    rows = demo_findings.confirmed.set_index(["loss", "point"])
    scores = demo.trials[(demo.trials["loss"] == "triplet") & (demo.trials["split"] == "test")]
    assert rows.loc[("triplet", "tuned"), "seeds"] == 5
    assert len(scores) == 10
    assert set(rows.loc["proxy_anchor"].index) == {"tuned", "published"}
    assert (demo_findings.paired["test"] == "paired t").all()
    assert demo_findings.best["loss"].iloc[0] == "proxy_anchor"
    assert demo_findings.best_split == "test"


def test_equal_losses_are_a_tie_at_the_stated_rate() -> None:
    """Two equal responses: `better` or `worse` in at most 1 of 20 (here 3 of 20)."""
    called = 0
    for seed in range(20):
        table = _twins("left", "right", seed=seed)
        # The same point for both, or the search's luck would be part of the difference.
        rows = comparison.paired(_same_points(table))
        called += rows["verdict"].iloc[0] != "cannot tell"
    assert called <= 3


def _twins(*names: str, seed: int = 0) -> TrialTable:
    twins = [Problem(unit_space(name, ["x"]), additive([0.1]), noise=0.01) for name in names]
    return make_table(twins, Plan(trials=6, confirm=5), seed=seed)


def test_two_names_of_one_function_are_a_noise_floor_and_not_ranked() -> None:
    table = _twins("norm_softmax", "proxy_nca_pp", "triplet")
    floor = comparison.noise_floor(table)
    assert list(floor[["loss", "other"]].iloc[0]) == ["norm_softmax", "proxy_nca_pp"]
    assert len(floor) == 1
    assert floor["validation"].iloc[0] >= 0
    pairs = {frozenset(pair) for pair in comparison.paired(table)[["loss", "other"]].to_numpy()}
    assert pairs == {frozenset((a, "triplet")) for a in ("norm_softmax", "proxy_nca_pp")}
    draws, _ = comparison.best_draws(table, {})
    shared = comparison.pooled(draws, comparison.one_function(table))
    assert set(shared) == {"norm_softmax", "triplet"}
    middle = np.mean([draws["norm_softmax"].mean(), draws["proxy_nca_pp"].mean()])
    assert shared["norm_softmax"].mean() == pytest.approx(middle, abs=1e-3)
    said = dict(answer(find(table)).points)["How sure"]
    assert "norm_softmax and proxy_nca_pp are one function and share a place: alone they " in said
    assert "not in the race" not in said


@pytest.mark.parametrize("how", ["held", "searched", "range"])
def test_two_names_of_one_function_trained_otherwise_are_ranked(how: str) -> None:
    """Their gap is what the training does; a value written down that is the default is no gap."""
    table = _twins("norm_softmax", "proxy_nca_pp", "am_softmax")
    fixed: dict[str, dict[str, Value]] = {
        "norm_softmax": {"embedding_dim": 64},
        "proxy_nca_pp": {"embedding_dim": 64, "batch_size": Settings().batch_size},
        "am_softmax": {"embedding_dim": 64, "m": 0.0},
    }
    spaces = {k: replace(s, fixed={**s.fixed, **fixed[k]}) for k, s in table.spaces.items()}
    alike = replace(table, spaces=spaces)
    assert comparison.one_function(alike) == [("norm_softmax", "proxy_nca_pp", "am_softmax")]
    other = spaces["proxy_nca_pp"]
    if how == "held":
        other = replace(other, fixed={**other.fixed, "batch_size": 32})
        why = "(batch_size 64 and 32)"
    elif how == "searched":
        knob = Knob(CategoricalDistribution(["avg", "max"]), "pooling", "which")
        other = replace(other, nuisance={"pooling": knob}, published=())
        why = "(pooling avg and searched in {avg, max})"
    else:
        knob = replace(other.searched["x"], distribution=FloatDistribution(0.0, 0.5))
        other = replace(other, scientific={"x": knob}, published=())
        why = "(x searched in [0, 1] and searched in [0, 0.5])"
    apart = replace(table, spaces={**spaces, "proxy_nca_pp": other})
    assert comparison.one_function(apart) == [("norm_softmax", "am_softmax")]
    floor = comparison.noise_floor(apart)[["loss", "other"]].to_numpy().tolist()
    assert floor == [["norm_softmax", "am_softmax"]]
    pairs = {frozenset(pair) for pair in comparison.paired(apart)[["loss", "other"]].to_numpy()}
    assert pairs == {frozenset((a, "proxy_nca_pp")) for a in ("norm_softmax", "am_softmax")}
    draws, _ = comparison.best_draws(apart, {})
    shared = comparison.pooled(draws, comparison.one_function(apart))
    assert set(shared) == {"norm_softmax", "proxy_nca_pp"}
    said = lint.lint_spaces(apart.spaces).query("rule == 'alias'")["message"]
    wanted = "norm_softmax and proxy_nca_pp are one function, but not trained alike " + why
    assert any(message.startswith(wanted) for message in said)


def test_the_tuned_point_is_the_best_on_validation_whatever_test_scores_say() -> None:
    """After an extended search two points are confirmed; the older did better on test classes."""
    table = _twins("left")
    test = table.trials["split"] == "test"
    best = incumbent(table, "left")
    assert best is not None
    tuned = table.trials[test & (table.trials["point"] == best["point"])]
    old = tuned.assign(
        point="old", score=tuned["score"] + 0.1, number=-1, trial="old-" + tuned["trial"]
    )
    both = replace(table, trials=pd.concat([old, table.trials], ignore_index=True))
    scores = comparison.confirmed_scores(both, "left")
    pd.testing.assert_series_equal(scores, comparison.confirmed_scores(table, "left"))


def _same_points(table: TrialTable) -> TrialTable:
    rng = np.random.default_rng(int(table.trials["score"].sum() * 1e6) % 2**32)
    test = table.trials["split"] == "test"
    score = table.trials["score"].where(~test, 0.5 + 0.01 * rng.standard_normal(len(test)))
    return replace(table, trials=table.trials.assign(score=score))


def test_without_confirmation_the_answer_is_from_validation() -> None:
    table = make_table(demo_problems()[1:], Plan(trials=20))
    draws, split = comparison.best_draws(table, {})
    assert split == "validation"
    rows = comparison.probability_best(draws)
    assert rows["loss"].iloc[0] == "circle"
    assert rows["probability"].sum() == pytest.approx(1.0)


def test_the_headline_and_how_sure_it_is_agree() -> None:
    """Only the loss that is behind has repeated seeds."""
    problems = [
        Problem(unit_space(n, ["x", "y"]), additive([0.2, 0.2], top=top))
        for n, top in (("a", 0.5), ("b", 0.6))
    ]
    table = make_table(problems, Plan(trials=3))
    kept = (table.trials["loss"] == "a") | (table.trials["origin"] != "repeat")
    found = find(replace(table, trials=table.trials[kept]), advised=1)
    assert list(found.best["loss"]) == ["a"]
    said = answer(found)
    assert said.headline.startswith("b leads, but a may be as good: MAP@R 0.5")
    sure = dict(said.points)["How sure"]
    assert sure.startswith("Not sure at all: a follows 0.")
    assert "no seed of b was repeated" in sure


def test_the_headline_is_as_sure_as_the_paired_tests() -> None:
    firm = 0
    for seed, top in enumerate((0.603, 0.606, 0.609, 0.65)):
        tops = {"left": top, "middle": 0.6, "right": 0.6}
        three = [Problem(unit_space(n, ["x"]), additive([0.1], top=t)) for n, t in tops.items()]
        found = find(make_table(three, Plan(trials=6, confirm=3), seed=seed), advised=1)
        best, said = str(found.best["loss"].iloc[0]), answer(found)
        rows = found.paired[(found.paired["loss"] == best) | (found.paired["other"] == best)]
        beaten = not (rows["verdict"] == "cannot tell").any()
        sure = beaten and found.best["probability"].iloc[0] >= 0.95
        assert said.headline.startswith(f"Use {best}" if sure else f"{best} leads, but "), said
        assert re.search(r"0\.\d+ \(90 %: 0\.\d+ to 0\.\d+\) on test classes", said.headline)
        assert re.search(r"behind \(95 %: \S+ to \S+\)", dict(said.points)["How sure"])
        firm += sure
    assert 1 <= firm <= 3


@pytest.mark.parametrize(("repeats", "points"), [(2, 2), (3, 3)])
def test_few_repeats_do_not_excuse_a_poor_model(repeats: int, points: int) -> None:
    """Waves too short for 40 trials: what the model leaves is no seed noise."""

    def waves(u: Array) -> Array:
        return np.asarray(0.5 + 0.02 * np.sin(12 * np.pi * u[:, 0]) * np.sin(10 * np.pi * u[:, 1]))

    plan = Plan(trials=40, repeated_points=points, repeats=repeats)
    for seed in range(3):
        made = Problem(unit_space("a", list("xyz"), published=0.3), waves, noise=0.004)
        table = make_table([made], plan, seed=seed)
        assert refuse_response(_model(table), seed_noise(table, "a")) is not None


def test_a_flat_response_may_be_read() -> None:
    read = 0
    for seed in range(6):
        flat = Problem(unit_space("a", list("xyz")), additive([0.0, 0.0, 0.0]), noise=0.006)
        table = make_table([flat], Plan(trials=40), seed=seed)
        read += refuse_response(_model(table), seed_noise(table, "a")) is None
    assert read >= 4


# Claims


@pytest.mark.parametrize(
    ("claim", "verdict"),
    [
        (BetterLoss("circle"), "supported"),
        (FasterLoss("circle"), "supported"),
        (CostRatio("circle", 1.05), "supported"),
        (CostRatio("circle", 0.9), "contradicted"),
        (HigherMetric("recall_at_1", "circle"), "supported"),
        (HigherMetric("nonsense", "circle"), "cannot tell"),
        (BetterLoss("multi_similarity"), "cannot tell"),
    ],
)
def test_claims_about_losses(demo_findings: Findings, claim: BetterLoss, verdict: str) -> None:
    said = Claim("c", "", "", claim)
    found = claims.judge(demo_findings.table, demo_findings.models, "proxy_anchor", said)
    assert found.verdict == verdict
    assert found.evidence
    assert (found.settle == "") == (verdict != "cannot tell")


def test_faster_counts_epochs_and_not_scores(demo_findings: Findings) -> None:
    """A log that has every ninth epoch of one loss has not reached anything after one epoch."""
    table, claim = demo_findings.table, Claim("c", "", "", FasterLoss("circle"))
    sparse = table.curves["trial"].str.startswith("proxy_anchor") & (table.curves["epoch"] % 9 > 0)
    thin = replace(table, curves=table.curves[~sparse])
    evidence = claims.judge(thin, demo_findings.models, "proxy_anchor", claim).evidence
    said = re.search(r"after ([\d.]+) epochs, the other's after ([\d.]+)", evidence)
    assert said is not None, evidence
    assert min(float(said[1]), float(said[2])) >= 9


@pytest.mark.parametrize(
    ("gain", "verdict"), [(0.1, "supported"), (0.01, "cannot tell"), (-0.1, "contradicted")]
)
def test_a_sure_gain_below_the_tolerance_is_neither_claimed_nor_denied(
    gain: float, verdict: str
) -> None:
    knobs = _space(kind=CategoricalDistribution(["old", "new"]), x=FloatDistribution(0.0, 1.0))

    def better(u: Array) -> Array:
        return np.asarray(0.5 + gain * (u[:, 0] > 0.5) - 0.05 * (u[:, 1] - 0.5) ** 2)

    table = make_table([Problem(knobs, better, noise=0.001)], Plan(trials=60, bayes=False))
    said = Claim("c", "", "", BetterValue("kind", "new", "old"))
    found = claims.judge(table, {"a": LossModel(_model(table), None, 0.04)}, "a", said)
    assert found.verdict == verdict


def test_the_reverse_claim_is_contradicted(demo_findings: Findings) -> None:
    said = Claim("c", "", "", BetterLoss("proxy_anchor"))
    found = claims.judge(demo_findings.table, demo_findings.models, "triplet", said)
    assert found.verdict == "contradicted"


def test_settle_gives_points_inside_the_space(demo_findings: Findings) -> None:
    table = demo_findings.table
    open_claims = demo_findings.claims[demo_findings.claims["verdict"] == "cannot tell"]
    points = settle.settle(table, demo_findings.models)
    assert len(open_claims)
    assert len(points)
    for row in open_claims.to_dict("records"):
        only = (str(row["loss"]), str(row["claim"]))
        asked = len(settle.settle(table, demo_findings.models, only=only))
        assert str(row["settle"]).endswith(f" {asked} trials.") == (asked > 0)
    for row in points.to_dict("records"):
        loss = str(row["loss"])
        values = {k: row[KNOB + k] for k in table.knobs(loss)}
        for knob in ("batch_size",):
            if knob in values:
                values[knob] = int(values[knob])
        table.spaces[loss].check_point(values)
        assert row["origin"] in ("sweep", "confirm")


def test_losses_too_close_to_call_get_fresh_confirmation_seeds() -> None:
    twins = [Problem(unit_space(n, ["x"]), additive([0.1]), noise=0.02) for n in ("a", "b")]
    said = Claim("c", "", "", BetterLoss("b"))
    space = replace(twins[0].space, claims=(said,))
    table = make_table([replace(twins[0], space=space), twins[1]], Plan(trials=8, confirm=3))
    models = {n: LossModel(Refusal("few"), Refusal("few"), 0.02) for n in ("a", "b")}
    points = settle.settle(table, models)
    assert set(points["loss"]) == {"a", "b"}
    assert set(points["origin"]) == {"confirm"}
    used = set(table.trials.loc[table.trials["split"] == "test", "seed"])
    assert not used & set(points["seed"])


# Advice


def test_advice_goes_where_the_answer_is_open() -> None:
    """Half of a knob's range was never tried: the advice must go there."""
    space = unit_space("a", ["x", "y"])
    table = make_table([Problem(space, additive([0.2, 0.1]), noise=0.004)], Plan(trials=60))
    seen = table.trials[KNOB + "x"] < 0.5
    table = replace(table, trials=table.trials[seen])
    models = {"a": LossModel(_model(table), None, 0.004)}
    points = advice.advise(table, models, n=10)
    assert len(points) == 10
    assert (points[KNOB + "x"] > 0.5).mean() >= 0.5
    assert points["worth"].iloc[0] == points["worth"].max()


def test_advice_fills_thin_losses_and_repeats_seeds() -> None:
    space = unit_space("a", list("abcd"))
    thin = make_table([Problem(space, additive([0.2] * 4))], Plan(trials=5, repeats=1))
    refused = fit(gather(thin, "a"))
    assert isinstance(refused, Refusal)
    points = advice.advise(thin, {"a": LossModel(refused, refused, float("nan"))}, n=12)
    assert set(points["origin"]) == {"sobol"}
    single = make_table([Problem(space, additive([0.2] * 4))], Plan(trials=40, repeats=1))
    model = _model(single)
    points = advice.advise(single, {"a": LossModel(model, None, model.noise)}, n=12)
    assert "repeat" in set(points["origin"])


# Lint


def _space(**knobs: object) -> Space:
    made = {k: Knob(d, k, "test") for k, d in knobs.items()}  # type: ignore[arg-type]
    return Space(loss="a", paper="", scientific=made)


def _rules(frame: pd.DataFrame) -> set[str]:
    return set(frame["rule"])


def test_lint_of_spaces() -> None:
    linear = _space(lr=FloatDistribution(1e-5, 1e-1))
    assert "linear over decades" in _rules(lint.lint_spaces({"a": linear}))
    logged = _space(lr=FloatDistribution(1e-5, 1e-1, log=True), n=IntDistribution(1, 8))
    found = _rules(lint.lint_spaces({"a": logged}, trials=50, sobol=20))
    assert found == {"published out of range"}
    coupled = _space(
        proxy_lr=FloatDistribution(1e-4, 1.0, log=True),
        adam_eps=FloatDistribution(1e-8, 1.0, log=True),
    )
    found = _rules(lint.lint_spaces({"a": coupled}, trials=5, sobol=2))
    assert found >= {"coupled knobs", "budget too small", "too few space-filling trials"}
    edge = replace(logged, published=(Published("", {"lr": 1e-1, "n": 2}),))
    assert "published on a bound" in _rules(lint.lint_spaces({"a": edge}))
    shared = replace(edge, published=(*edge.published, Published("again", {"lr": 1e-1, "n": 3})))
    bounds = lint.lint_spaces({"a": shared})
    assert len(bounds[bounds["rule"] == "published on a bound"]) == 1
    twins = {n: replace(logged, loss=n) for n in ("norm_softmax", "proxy_nca_pp")}
    assert "alias" in _rules(lint.lint_spaces(twins))
    assert any("one function" in line for line in lint.lint_plan(twins, trials=40, sobol=16))
    smoothed = replace(
        _space(lr=FloatDistribution(1e-5, 1e-1), label_smoothing=FloatDistribution(0.0, 0.2)),
        loss="norm_softmax",
    )
    assert "alias" not in _rules(lint.lint_spaces({**twins, "norm_softmax": smoothed}))


def test_lint_of_results() -> None:
    def rising(u: Array) -> Array:
        return np.asarray(0.3 + 0.3 * u[:, 0])

    table = make_table([Problem(unit_space("a", ["x", "y"]), rising, noise=0.001)])
    found = lint.lint_results(table)
    assert "optimum on a bound" in _rules(found)
    assert "x" in set(found.loc[found["rule"] == "optimum on a bound", "knob"])
    calm = make_table([Problem(unit_space("a", ["x", "y"]), additive([0.2, 0.2], best=0.5))])
    assert "optimum on a bound" not in _rules(lint.lint_results(calm))
    slow = make_table([Problem(unit_space("a", ["x"]), additive([0.1]), tau=60.0, noise=0.001)])
    assert "epochs too few" in _rules(lint.lint_results(slow))
    single = make_table([Problem(unit_space("a", ["x"]), additive([0.1]))], Plan(repeats=1))
    assert "no repeats" in _rules(lint.lint_results(single))


@pytest.mark.parametrize("repeats", [1, 3])
@pytest.mark.parametrize("rises", [True, False])
def test_a_search_that_still_improves_is_said(repeats: int, rises: bool) -> None:
    problem = Problem(unit_space("a", ["x", "y"]), additive([0.1, 0.1]), noise=0.001)
    table = make_table([problem], Plan(trials=30, repeats=repeats, stop=False))
    trials = table.trials.copy()
    searched = trials["origin"].isin(["published", "sobol", "bayes"])
    order = trials.loc[searched].drop_duplicates("point").set_index("point")["number"]
    place = trials["point"].map(order).astype(float) / 100
    luck = np.random.default_rng(0).normal(scale=0.001, size=len(trials))
    trials["score"] = 0.1 + (place if rises else -place) + luck
    found = lint.lint_results(replace(table, trials=trials))
    messages = found.loc[found["rule"] == "still improving", "message"].tolist()
    assert len(messages) == rises
    assert all(("seed noise unknown" in text) == (repeats == 1) for text in messages)


def test_a_report_says_that_the_budget_was_too_small() -> None:
    space = unit_space("a", ["x", "y", "z", "w"])
    small = make_table([Problem(space, additive([0.1] * 4))], Plan(trials=6))
    budget = {"budget too small", "too few space-filling trials"}
    assert budget <= _rules(find(small, advised=1).lint)
    large = make_table([Problem(space, additive([0.1] * 4))], Plan(trials=80))
    assert not budget & _rules(lint.lint_table(large))
    # While it runs, a study is judged by what is planned.
    running = replace(small, protocol={**small.protocol, "trials_per_loss": 80})
    assert not budget & _rules(lint.lint_table(running))


# Several studies


def test_ranges_common_to_two_studies() -> None:
    def shifted(best: float) -> TrialTable:
        problem = Problem(unit_space("a", ["x", "y"]), additive([0.3, 0.0], best=best), noise=0.003)
        return make_table([problem], Plan(trials=50), tolerance=0.01)

    near = [find(shifted(0.5)), find(shifted(0.55))]
    rows = across.common(near).set_index("knob")
    assert rows.loc["x", "verdict"] == "holds in all"
    low, high = (rows[name].astype(float)["x"] for name in ("low", "high"))
    assert 0.4 < low < high < 0.65
    far = [near[0], find(shifted(0.95))]
    assert across.common(far).set_index("knob").loc["x", "verdict"] == "no common range"
    assert across.names(near) == ["made-up", "made-up (2)"]


@pytest.mark.parametrize(
    ("values", "verdict", "common"),
    [("16, 32, 64", "holds in all", "32, 64"), ("8.0, 16", "no common range", ""),
     ("max", "no common range", "")],
)  # fmt: skip
def test_a_range_here_and_choices_there_share_the_choices_within(
    values: str, verdict: str, common: str
) -> None:
    nan = float("nan")
    rows = pd.DataFrame(
        [("stable", 20.0, 80.0, ""), ("stable", nan, nan, values)],
        columns=["status", "low", "high", "values"],
    )
    said, low, high, names = across.meet(rows)
    assert (said, names) == (verdict, common)
    assert np.isnan([low, high]).all()
    assert across.meet(rows.iloc[:1]) == ("holds in all", 20.0, 80.0, "")
    whole = rows.assign(low=nan, high=nan, values=["32.0, 8", "32, 16"])
    assert across.meet(whole)[::3] == ("holds in all", "32")


def test_a_study_that_cannot_tell_is_not_counted(tmp_path: Path) -> None:
    def study(name: str, trials: int) -> TrialTable:
        problem = Problem(unit_space("a", ["x"]), additive([0.3], best=0.5), noise=0.003)
        return make_table([problem], Plan(trials=trials), tolerance=0.01, study=name)

    tables = [study("first", 24), study("second", 24), study("third", 2)]
    paths = compare_reports(tables, tmp_path, formats=("png",))
    headline = json.loads(paths.record.read_text("utf-8"))["headline"]
    assert headline == "1 of 1 stable ranges hold in all studies that tell them (2 of 3)."
    html = paths.index.read_text("utf-8")
    assert "(2 of 3 studies)" in html
    assert re.search("a in third: .* are needed to model", html)
