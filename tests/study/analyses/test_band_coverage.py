"""Coverage of the bands and error rates of the verdicts, over all analyses of a surrogate.

These tests use few seeds and limits that allow for binomial noise; the stated rates are measured
with many seeds in tests/benchmarks/bench_sensitivity.py.
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest

from search_spaces.claims import GoodValue, PaperClaim, Sensitive, StableRange
from study.analyses import importance, response_curves, stable_ranges, tunability
from study.analyses.claims import judge
from study.analyses.loss_model import LossModel
from study.analyses.surrogate.observations import collect_observations
from study.analyses.surrogate.surrogate import SurrogateModel, fit_surrogate
from tests.support import known_responses
from tests.support.synthetic_tables import (
    SyntheticLoss,
    SyntheticPlan,
    make_additive_response,
    make_table,
    make_unit_space,
)

pytestmark = pytest.mark.slow

WEIGHTS = (0.3, 0.15, 0.04)
TOLERANCE = 0.01
SEEDS = range(8)


def _fit_model(seed: int) -> SurrogateModel:
    problem = SyntheticLoss(
        make_unit_space("a", list("abc")), make_additive_response(WEIGHTS), noise=0.006
    )
    table = make_table([problem], SyntheticPlan(trials=60), seed=seed)
    model = fit_surrogate(collect_observations(table, "a"), seed=seed, n_draws=96, n_bootstrap=6)
    assert isinstance(model, SurrogateModel)
    return model


@pytest.fixture(scope="module")
def models() -> list[SurrogateModel]:
    """Surrogates of one response, from one study per seed."""
    return [_fit_model(seed) for seed in SEEDS]


def test_bands_of_curves_cover_the_truth(models: list[SurrogateModel]) -> None:
    truth = make_additive_response(WEIGHTS)
    inside = []
    for model in models:
        others = response_curves.select_background_points(model, "whole")
        for j, param in enumerate(model.observations.params):
            grid = np.linspace(0.05, 0.95, 7)
            draws = response_curves.draw_curves(model, param, grid, others)
            units = np.repeat(others[None], len(grid), axis=0)
            units[:, :, j] = grid[:, None]
            real = truth(units.reshape(-1, 3)).reshape(len(grid), -1).mean(axis=1)
            low, high = np.quantile(draws, [0.05, 0.95], axis=0)
            inside.append((real >= low) & (real <= high))
    rate = float(np.mean(inside))
    assert 0.8 <= rate <= 1.0, rate


def test_bands_of_shares_cover_the_truth(models: list[SurrogateModel]) -> None:
    squares = np.array(WEIGHTS) ** 2
    real = squares / squares.sum()
    inside = []
    for model in models:
        rows = importance.analyse_importance(model).params.set_index("knob").loc[list("abc")]
        # A quarter of a point is the error of the integration itself.
        low, high = rows["first_low"] - 0.0025, rows["first_high"] + 0.0025
        inside.append((real >= low) & (real <= high))
    rate = float(np.mean(inside))
    assert rate >= 0.75, rate


def test_stable_ranges_are_safe(models: list[SurrogateModel]) -> None:
    """The true cost in a stated range exceeds the tolerance in at most 1 of 20 (here 2 of 24)."""
    wrong, stated, found = 0, 0, 0.0
    for model in models:
        curves = response_curves.analyse_response_curves(
            model, tolerance=TOLERANCE, regions=("good",)
        )
        for row in stable_ranges.analyse_stable_ranges(curves, model, tolerance=TOLERANCE).to_dict(
            "records"
        ):
            weight = WEIGHTS["abc".index(str(row["knob"]))]
            if row["status"] != "stable":
                continue
            stated += 1
            found += float(row["share"])
            ends = np.array([row["low"], row["high"]], dtype=float)
            cost = weight * (ends - 0.7) ** 2 / 0.49
            wrong += bool((cost > TOLERANCE * 1.05).any())
    assert stated >= 16, "so careful that it says nothing"
    assert wrong <= 2, f"{wrong} of {stated} ranges are too wide"
    assert found / stated > 0.15, "the ranges are too narrow to be useful"


BENCHMARK_CASES = (
    ("ishigami", "space-filling", 2),
    ("sobol_g", "space-filling", 2),
    ("cliff", "40% sobol, TPE, early stopping", 2),
    ("log_scale", "40% sobol, TPE, early stopping", 1),
    ("ridge", "40% sobol, TPE, early stopping", 1),
)


@pytest.fixture(scope="module")
def measured() -> list[dict[str, Any]]:
    """Measurements of the cases of the benchmark, with a few seeds each."""
    rows = []
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The balance properties")
        for name, plan, seeds in BENCHMARK_CASES:
            for seed in range(seeds):
                table = known_responses.make_case_table(name, known_responses.PLANS[plan], seed)
                rows.append(
                    known_responses.measure_model(
                        name, table, known_responses.fit_model(name, table, seed)
                    )
                )
    return rows


@pytest.mark.parametrize(
    ("band", "least", "widest"),
    [("first", 0.85, 0.1), ("total", 0.8, 0.15), ("whole", 0.8, 0.08), ("good", 0.7, 0.15)],
)
def test_bands_cover_known_answers(
    measured: list[dict[str, Any]], band: str, least: float, widest: float
) -> None:
    """Shares and curves of kinks, cliffs and waves, from Sobol points and from searches."""
    coverages = [float(row[f"{band}_in_90"]) for row in measured]
    widths = [float(row[f"{band}_width"]) for row in measured]
    assert np.mean(coverages) >= least, coverages
    assert np.mean(widths) <= widest, widths


def test_values_called_safe_or_costly_are(measured: list[dict[str, Any]]) -> None:
    total = {k: sum(row[k] for row in measured) for k in ("values", "safe", "costly")}
    right = {k: sum(row[f"{k}_right"] for row in measured) for k in ("safe", "costly")}
    assert total["safe"] + total["costly"] > 0.4 * total["values"], "too few values get a status"
    for kind in ("safe", "costly"):
        assert right[kind] >= 0.93 * total[kind], kind


def test_verdicts_about_known_answers_are_right(measured: list[dict[str, Any]]) -> None:
    claims, right, wrong = (sum(row[k] for row in measured) for k in ("claims", "right", "wrong"))
    assert wrong <= 0.05 * (right + wrong)
    assert right >= 0.5 * claims


CLAIMS = (
    (PaperClaim("true-range", "", "", StableRange("a", 0.65, 0.75)), "supported"),
    (PaperClaim("false-range", "", "", StableRange("a", 0.2, 0.8)), "contradicted"),
    (PaperClaim("true-value", "", "", GoodValue("b", 0.7)), "supported"),
    (PaperClaim("false-value", "", "", GoodValue("b", 0.1)), "contradicted"),
    (PaperClaim("true-sensitive", "", "", Sensitive("a")), "supported"),
)


def test_verdicts_are_right_at_the_stated_rate(models: list[SurrogateModel]) -> None:
    table = make_table(
        [SyntheticLoss(make_unit_space("a", list("abc")), make_additive_response(WEIGHTS))],
        SyntheticPlan(trials=6),
    )
    right, wrong = 0, 0
    for model in models:
        loss_models = {"a": LossModel(model, None, TOLERANCE)}
        for claim, truth in CLAIMS:
            verdict = judge.judge_claim(table, loss_models, "a", claim).verdict
            right += verdict == truth
            wrong += verdict not in (truth, "cannot tell")
    assert wrong <= 2
    assert right >= 0.7 * len(models) * len(CLAIMS)


def test_params_that_do_not_matter_may_stay(models: list[SurrogateModel]) -> None:
    """The third one costs 0.0033 at its published value, a third of the tolerance."""
    table = make_table(
        [SyntheticLoss(make_unit_space("a", list("abc")), make_additive_response(WEIGHTS))],
        SyntheticPlan(trials=6),
    )
    verdicts = []
    for model in models:
        endpoints = tunability.find_tuning_endpoints(table, model)
        assert endpoints is not None
        rows = tunability.assess_keeping_published(model, endpoints, tolerance=TOLERANCE)
        verdict = rows.set_index("knob")["verdict"]
        assert verdict["a"] != "may stay"  # it costs 0.0245
        verdicts.append(verdict["c"])
    assert verdicts.count("may stay") >= 0.7 * len(models), verdicts
    assert "set it" not in verdicts
