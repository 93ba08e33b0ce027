"""Comparison of losses: confirmed scores, tests, equivalent losses and epoch cost."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from optuna.distributions import CategoricalDistribution, FloatDistribution
from scipy.stats import ttest_ind, ttest_rel

from search_spaces.space import Hyperparameter, ParamValue
from study.analyses import diagnostics, loss_comparison
from study.analyses.findings import StudyFindings, analyse_study
from study.analyses.leaderboard import find_incumbent_trial
from study.report.summary import summarise_findings
from study.trials.table import TrialTable
from tests.support.analysis_contract import TableAnalysisContract
from tests.support.demo_study import make_demo_problems
from tests.support.synthetic_tables import (
    SyntheticLoss,
    SyntheticPlan,
    make_additive_response,
    make_table,
    make_unit_space,
)
from trainables.config import TrainingSettings


def test_holm_correction_by_hand() -> None:
    p = np.array([0.01, 0.04, 0.03])
    assert loss_comparison.apply_holm_correction(p) == pytest.approx([0.03, 0.06, 0.06])


@pytest.mark.xdist_group("demo")
def test_confirmed_scores_exclude_the_search(
    demo: TrialTable, demo_findings: StudyFindings
) -> None:
    rows = demo_findings.confirmed_scores.set_index(["loss", "point"])
    scores = demo.trials[(demo.trials["loss"] == "triplet") & (demo.trials["split"] == "test")]
    assert rows.loc[("triplet", "tuned"), "seeds"] == 5
    assert len(scores) == 10
    assert set(rows.loc["proxy_anchor"].index) == {"tuned", "published"}
    assert (demo_findings.pairwise_tests["test"] == "paired t").all()
    assert demo_findings.best_probabilities["loss"].iloc[0] == "proxy_anchor"
    assert demo_findings.best_split == "test"


def test_equal_losses_are_a_tie_at_the_stated_rate() -> None:
    """Two equal responses: `better` or `worse` in at most 1 of 20 (here 3 of 20)."""
    called = 0
    for seed in range(20):
        table = _twins("left", "right", seed=seed)
        # The same point for both, or the luck of the search would be part of the difference.
        rows = loss_comparison.compare_losses_pairwise(_same_points(table))
        called += rows["verdict"].iloc[0] != "cannot tell"
    assert called <= 3


def _twins(*names: str, seed: int = 0) -> TrialTable:
    twins = [
        SyntheticLoss(make_unit_space(name, ["x"]), make_additive_response([0.1]), noise=0.01)
        for name in names
    ]
    return make_table(twins, SyntheticPlan(trials=6, confirm=5), seed=seed)


def test_two_names_of_one_function_are_a_noise_floor_and_not_ranked() -> None:
    table = _twins("norm_softmax", "proxy_nca_pp", "triplet")
    floor = loss_comparison.measure_noise_floor(table)
    assert list(floor[["loss", "other"]].iloc[0]) == ["norm_softmax", "proxy_nca_pp"]
    assert len(floor) == 1
    assert floor["validation"].iloc[0] >= 0
    pairs = {
        frozenset(pair)
        for pair in loss_comparison.compare_losses_pairwise(table)[["loss", "other"]].to_numpy()
    }
    assert pairs == {frozenset((a, "triplet")) for a in ("norm_softmax", "proxy_nca_pp")}
    draws, _ = loss_comparison.draw_tuned_scores(table, {})
    shared = loss_comparison.pool_equivalent_draws(
        draws, loss_comparison.find_equivalent_groups(table)
    )
    assert set(shared) == {"norm_softmax", "triplet"}
    middle = np.mean([draws["norm_softmax"].mean(), draws["proxy_nca_pp"].mean()])
    assert shared["norm_softmax"].mean() == pytest.approx(middle, abs=1e-3)
    confidence = dict(summarise_findings(analyse_study(table)).points)["How sure"]
    assert "norm_softmax and proxy_nca_pp are the same function" in confidence
    assert "Not ranked" not in confidence


@pytest.mark.parametrize("difference", ["fixed value", "searched", "range"])
def test_two_names_of_one_function_trained_differently_are_ranked(
    difference: str,
) -> None:
    """Their gap measures the training; a default value that is written down is no difference."""
    table = _twins("norm_softmax", "proxy_nca_pp", "am_softmax")
    fixed: dict[str, dict[str, ParamValue]] = {
        "norm_softmax": {"embedding_dim": 64},
        "proxy_nca_pp": {"embedding_dim": 64, "batch_size": TrainingSettings().batch_size},
        "am_softmax": {"embedding_dim": 64, "m": 0.0},
    }
    spaces = {k: replace(s, fixed={**s.fixed, **fixed[k]}) for k, s in table.spaces.items()}
    alike = replace(table, spaces=spaces)
    assert loss_comparison.find_equivalent_groups(alike) == [
        ("norm_softmax", "proxy_nca_pp", "am_softmax")
    ]
    other = spaces["proxy_nca_pp"]
    if difference == "fixed value":
        other = replace(other, fixed={**other.fixed, "batch_size": 32})
        description = "(batch_size 64 and 32)"
    elif difference == "searched":
        param = Hyperparameter(CategoricalDistribution(["avg", "max"]), "pooling", "which")
        other = replace(other, nuisance={"pooling": param}, published=())
        description = "(pooling avg and searched in {avg, max})"
    else:
        param = replace(other.searched_params["x"], distribution=FloatDistribution(0.0, 0.5))
        other = replace(other, scientific={"x": param}, published=())
        description = "(x searched in [0, 1] and searched in [0, 0.5])"
    apart = replace(table, spaces={**spaces, "proxy_nca_pp": other})
    assert loss_comparison.find_equivalent_groups(apart) == [("norm_softmax", "am_softmax")]
    floor = loss_comparison.measure_noise_floor(apart)[["loss", "other"]].to_numpy().tolist()
    assert floor == [["norm_softmax", "am_softmax"]]
    pairs = {
        frozenset(pair)
        for pair in loss_comparison.compare_losses_pairwise(apart)[["loss", "other"]].to_numpy()
    }
    assert pairs == {frozenset((a, "proxy_nca_pp")) for a in ("norm_softmax", "am_softmax")}
    draws, _ = loss_comparison.draw_tuned_scores(apart, {})
    shared = loss_comparison.pool_equivalent_draws(
        draws, loss_comparison.find_equivalent_groups(apart)
    )
    assert set(shared) == {"norm_softmax", "proxy_nca_pp"}
    messages = diagnostics.check_spaces(apart.spaces).query("rule == 'alias'")["message"]
    assert any(
        message.startswith("norm_softmax and proxy_nca_pp") and description in message
        for message in messages
    )


def test_the_tuned_point_is_the_best_on_validation_whatever_test_scores_say() -> None:
    """After an extended search, two points are confirmed; the older is better on test classes."""
    table = _twins("left")
    test = table.trials["split"] == "test"
    best = find_incumbent_trial(table, "left")
    assert best is not None
    tuned = table.trials[test & (table.trials["point"] == best["point"])]
    old = tuned.assign(
        point="old", score=tuned["score"] + 0.1, number=-1, trial="old-" + tuned["trial"]
    )
    both = replace(table, trials=pd.concat([old, table.trials], ignore_index=True))
    scores = loss_comparison.get_confirmed_scores(both, "left")
    pd.testing.assert_series_equal(scores, loss_comparison.get_confirmed_scores(table, "left"))


def _same_points(table: TrialTable) -> TrialTable:
    rng = np.random.default_rng(int(table.trials["score"].sum() * 1e6) % 2**32)
    test = table.trials["split"] == "test"
    score = table.trials["score"].where(~test, 0.5 + 0.01 * rng.standard_normal(len(test)))
    return replace(table, trials=table.trials.assign(score=score))


def test_without_confirmation_the_answer_is_from_validation() -> None:
    table = make_table(make_demo_problems()[1:], SyntheticPlan(trials=20))
    draws, split = loss_comparison.draw_tuned_scores(table, {})
    assert split == "validation"
    rows = loss_comparison.estimate_probability_best(draws)
    assert rows["loss"].iloc[0] == "circle"
    assert rows["probability"].sum() == pytest.approx(1.0)


def _with_test_scores(scores: dict[str, dict[int, float]]) -> TrialTable:
    """Make a study whose losses are confirmed with these test scores by seed."""
    table = _twins(*scores)
    is_test = table.trials["split"] == "test"
    rows = []
    for loss, by_seed in scores.items():
        best = find_incumbent_trial(table, loss)
        assert best is not None
        for seed, score in by_seed.items():
            trial = best.to_frame().T.assign(trial=f"{loss}-t{seed}", seed=seed, score=score)
            rows.append(trial.assign(origin="confirm", split="test"))
    trials = pd.concat([table.trials[~is_test], *rows], ignore_index=True)
    return replace(table, trials=trials)


def test_shared_seeds_give_a_paired_test_and_others_welchs() -> None:
    left = {1: 0.50, 2: 0.52, 3: 0.55, 4: 0.51}
    paired = _with_test_scores({"left": left, "right": {s: v - 0.01 * s for s, v in left.items()}})
    (row,) = loss_comparison.compare_losses_pairwise(paired).to_dict("records")
    assert row["test"] == "paired t"
    assert row["difference"] == pytest.approx(0.025)
    assert row["p"] == pytest.approx(ttest_rel(list(left.values()), [0.49, 0.5, 0.52, 0.47]).pvalue)
    unpaired = _with_test_scores({"left": left, "right": {11: 0.4, 12: 0.42, 13: 0.41}})
    (row,) = loss_comparison.compare_losses_pairwise(unpaired).to_dict("records")
    assert row["test"] == "Welch t"
    expected = ttest_ind(list(left.values()), [0.4, 0.42, 0.41], equal_var=False)
    assert row["p"] == pytest.approx(expected.pvalue)
    assert row["verdict"] == "better"


@pytest.mark.parametrize(
    ("shift", "p", "verdict"), [(0.0, 1.0, "cannot tell"), (0.1, 0.0, "better")]
)
def test_differences_without_any_spread_are_certain(shift: float, p: float, verdict: str) -> None:
    right = {1: 0.25, 2: 0.5, 3: 0.75}
    table = _with_test_scores({"left": {s: v + shift for s, v in right.items()}, "right": right})
    (row,) = loss_comparison.compare_losses_pairwise(table).to_dict("records")
    assert row["p"] == p
    assert row["verdict"] == verdict
    assert (row["low"], row["high"]) == pytest.approx((shift, shift))


def test_epoch_cost_is_the_median_and_its_ratio_to_the_cheapest() -> None:
    problems = [
        SyntheticLoss(make_unit_space(name, ["x"]), make_additive_response([0.1]), seconds=seconds)
        for name, seconds in (("slow", 3.0), ("fast", 2.0))
    ]
    rows = loss_comparison.summarise_epoch_cost(make_table(problems, SyntheticPlan(trials=6)))
    assert rows["seconds_per_epoch"].tolist() == pytest.approx([3.0, 2.0])
    assert rows["ratio"].tolist() == pytest.approx([1.5, 1.0])


class TestConfirmedScoresContract(TableAnalysisContract):
    columns = ("loss", "point", "seeds", "mean", "low", "high", "sigma")

    def analyse(self, table: TrialTable) -> pd.DataFrame:
        return loss_comparison.summarise_confirmed_scores(table)


class TestPairwiseContract(TableAnalysisContract):
    columns = ("loss", "other", "difference", "low", "high", "p", "test", "p_holm", "verdict")

    def analyse(self, table: TrialTable) -> pd.DataFrame:
        return loss_comparison.compare_losses_pairwise(table)


class TestBestProbabilityContract(TableAnalysisContract):
    columns = ("loss", "score", "low", "high", "probability")

    def analyse(self, table: TrialTable) -> pd.DataFrame:
        draws, _ = loss_comparison.draw_tuned_scores(table, {})
        return loss_comparison.estimate_probability_best(draws)


class TestNoiseFloorContract(TableAnalysisContract):
    columns = ("loss", "other", "validation", "test")

    @pytest.fixture
    def table(self) -> TrialTable:
        return _twins("norm_softmax", "proxy_nca_pp")

    def analyse(self, table: TrialTable) -> pd.DataFrame:
        return loss_comparison.measure_noise_floor(table)


class TestEpochCostContract(TableAnalysisContract):
    columns = ("loss", "seconds_per_epoch", "low", "high", "trials", "ratio")

    def analyse(self, table: TrialTable) -> pd.DataFrame:
        return loss_comparison.summarise_epoch_cost(table)
