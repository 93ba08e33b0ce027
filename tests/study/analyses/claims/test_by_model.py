"""Claims judged by the surrogate."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from optuna.distributions import CategoricalDistribution, FloatDistribution

from search_spaces.claims import BetterValue, GoodValue, PaperClaim, StableRange
from search_spaces.space import Hyperparameter, SearchSpace
from study.analyses.claims import by_model, judge
from study.analyses.claims.values import ParamTest
from study.analyses.loss_model import LossModel
from study.analyses.surrogate.observations import collect_observations
from study.analyses.surrogate.surrogate import SurrogateModel, fit_surrogate
from tests.support.analysis_inputs import fit_model, make_space
from tests.support.synthetic_tables import (
    Array,
    SyntheticLoss,
    SyntheticPlan,
    make_additive_response,
    make_table,
    make_unit_space,
)

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    ("gain", "verdict"), [(0.1, "supported"), (0.01, "cannot tell"), (-0.1, "contradicted")]
)
def test_a_certain_gain_below_the_tolerance_is_neither_supported_nor_contradicted(
    gain: float, verdict: str
) -> None:
    params = make_space(kind=CategoricalDistribution(["old", "new"]), x=FloatDistribution(0.0, 1.0))

    def better(u: Array) -> Array:
        return np.asarray(0.5 + gain * (u[:, 0] > 0.5) - 0.05 * (u[:, 1] - 0.5) ** 2)

    table = make_table(
        [SyntheticLoss(params, better, noise=0.001)], SyntheticPlan(trials=60, bayes=False)
    )
    claim = PaperClaim("c", "", "", BetterValue("kind", "new", "old"))
    found = judge.judge_claim(table, {"a": LossModel(fit_model(table), None, 0.04)}, "a", claim)
    assert found.verdict == verdict


def test_a_claimed_range_of_a_choice_is_judged_over_its_choices() -> None:
    params = {
        "k": Hyperparameter(CategoricalDistribution((16, 32, 64)), "k", "test"),
        "y": Hyperparameter(FloatDistribution(0.0, 1.0), "y", "test"),
    }
    space = SearchSpace(loss="a", paper="", scientific=params)

    def response(u: Array) -> Array:
        return np.asarray(0.6 - 0.2 * (u[:, 0] < 1 / 3) - 0.1 * (u[:, 1] - 0.5) ** 2)

    table = make_table([SyntheticLoss(space, response, noise=0.002)], SyntheticPlan(trials=60))
    model = fit_surrogate(collect_observations(table, "a"))
    assert isinstance(model, SurrogateModel)
    models = {"a": LossModel(model, None, 0.02)}
    for low, verdict in ((32.0, "supported"), (None, "contradicted"), (100.0, "cannot tell")):
        claim = PaperClaim("c", "", "", StableRange("k", low=low))
        assert judge.judge_claim(table, models, "a", claim).verdict == verdict


def test_borderline_claims_are_left_open() -> None:
    """Few noisy trials and a cost of exactly the tolerance: the trials cannot decide."""
    problem = SyntheticLoss(
        make_unit_space("a", list("abc")), make_additive_response((0.0, 0.1, 0.0)), noise=0.02
    )
    claim = PaperClaim("edge", "", "", GoodValue("b", 0.7 - 0.7 * np.sqrt(0.02 / 0.1)))
    decided = 0
    for seed in range(4):
        table = make_table([problem], SyntheticPlan(trials=24), seed=seed)
        model = fit_surrogate(
            collect_observations(table, "a"), seed=seed, n_draws=64, n_bootstrap=4
        )
        assert isinstance(model, SurrogateModel)
        verdict = judge.judge_claim(table, {"a": LossModel(model, None, 0.02)}, "a", claim).verdict
        decided += verdict != "cannot tell"
    assert decided <= 1


@pytest.mark.xdist_group("analysis_contract")
@pytest.mark.parametrize(
    ("test", "reason"),
    [
        (GoodValue("x", 3.0), "outside the searched range"),
        (StableRange("x", 0.5, 9.0), "Less than half of the claimed range"),
        (BetterValue("x", 0.5, 3.0), "outside the searched range"),
    ],
)
def test_values_that_were_not_searched_leave_a_claim_open(
    contract_surrogate: SurrogateModel, test: ParamTest, reason: str
) -> None:
    found = by_model.judge_by_model(contract_surrogate, test, 0.02, "settle")
    assert found.verdict == "cannot tell"
    assert reason in found.evidence
    assert found.basis == "nothing"


@pytest.mark.xdist_group("analysis_contract")
def test_values_without_trials_leave_a_claim_open(contract_surrogate: SurrogateModel) -> None:
    observations = contract_surrogate.observations
    low_half = observations.select_rows(observations.units[:, 0] < 0.4)
    model = replace(contract_surrogate, observations=low_half)
    for test in (StableRange("x", 0.6, 0.8), GoodValue("x", 0.8), BetterValue("x", 0.8, 0.2)):
        found = by_model.judge_by_model(model, test, 0.02, "settle")
        assert found.verdict == "cannot tell"
        assert "too few trials" in found.evidence
        assert found.settle == "settle"


@pytest.mark.parametrize(
    ("gains", "verdict"),
    [
        ([0.05, 0.06, 0.07], "supported"),
        ([-0.05, -0.06, -0.07], "contradicted"),
        ([0.01, 0.01, 0.01], "cannot tell"),
    ],
)
def test_gains_by_hand(gains: list[float], verdict: str) -> None:
    found = by_model.judge_gain(np.array(gains), 0.02, "settle")
    assert found.verdict == verdict
    assert f"gain {np.mean(gains):.4f}" in found.evidence
    assert "tolerance 0.0200" in found.evidence
