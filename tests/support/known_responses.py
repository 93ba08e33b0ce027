"""Response functions with known importances and curves, and measures of a model's errors."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
from optuna.distributions import FloatDistribution
from scipy.stats import qmc

from search_spaces.claims import GoodValue, PaperClaim, Sensitive, StableRange
from search_spaces.space import Hyperparameter, SearchSpace
from search_spaces.unit_scale import from_unit
from study.analyses import importance, response_curves
from study.analyses.claims import judge
from study.analyses.loss_model import LossModel
from study.analyses.surrogate.observations import FloatArray, LossObservations, collect_observations
from study.analyses.surrogate.seed_noise import estimate_seed_noise
from study.analyses.surrogate.surrogate import (
    Refusal,
    SurrogateModel,
    find_good_settings,
    fit_surrogate,
    refuse_importance,
    refuse_response,
)
from study.trials.table import TrialTable
from tests.support.synthetic_tables import (
    SyntheticLoss,
    SyntheticPlan,
    ishigami_response,
    make_additive_response,
    make_sobol_g_response,
    make_table,
    make_unit_space,
)

COVERAGE_LEVELS = (0.9, 0.95)
"""Nominal levels of the measured bands; the report uses the first."""

REGIONS: tuple[response_curves.CurveRegion, ...] = ("whole", "good")


@dataclass(frozen=True)
class ResponseCase:
    """Response function with its space, its seed noise and the lag of its learning curves."""

    space: SearchSpace
    response: Callable[[FloatArray], FloatArray]
    noise: float
    lag: float = 0.25

    @property
    def tolerance(self) -> float:
        """Tolerance of the case's ranges and claims."""
        return 2.0 * self.noise


def _cliff_response(u: FloatArray) -> FloatArray:
    """Return a plateau that drops to 0.1 beyond 0.75 of the first hyperparameter."""
    return np.where(u[:, 0] > 0.75, 0.1, 0.6 - 0.15 * (u[:, 1] - 0.5) ** 2 - 0.05 * u[:, 2])


def _ridge_response(u: FloatArray) -> FloatArray:
    """Return a response with an interaction of two hyperparameters and an effect of a third."""
    return np.asarray(0.6 - 0.8 * (u[:, 0] - u[:, 1]) ** 2 - 0.2 * (u[:, 2] - 0.5) ** 2)


def _log_response(u: FloatArray) -> FloatArray:
    """Return a response of which the learning rate, on its log scale, explains 80 %."""
    return np.asarray(0.5 + 0.2 * u[:, 1] + 0.1 * u[:, 0])


def make_log_space() -> SearchSpace:
    """Return a space of a margin and a learning rate that spans five decades."""
    return SearchSpace(
        loss="a",
        paper="synthetic",
        scientific={
            "margin": Hyperparameter(FloatDistribution(0.0, 1.0), "m", "test"),
            "lr": Hyperparameter(FloatDistribution(1e-6, 1e-1, log=True), "η", "test"),
        },
    )


CASES = {
    "ishigami": ResponseCase(make_unit_space("a", list("abc")), ishigami_response, 0.15, 3.0),
    "sobol_g": ResponseCase(
        make_unit_space("a", list("abcd")),
        make_sobol_g_response([0.0, 1.0, 4.5, 9.0])[0],
        0.03,
        0.3,
    ),
    "log_scale": ResponseCase(make_log_space(), _log_response, 0.005),
    "cliff": ResponseCase(make_unit_space("a", list("abcd")), _cliff_response, 0.006),
    "ridge": ResponseCase(make_unit_space("a", list("abcd")), _ridge_response, 0.006),
    "additive": ResponseCase(
        make_unit_space("a", list("abcd")), make_additive_response((0.3, 0.15, 0.05, 0.0)), 0.006
    ),
}
PLANS = {
    "space-filling": SyntheticPlan(trials=120, sobol_share=1.0, bayes=False, stop=False),
    "40% sobol, TPE, early stopping": SyntheticPlan(trials=120, tpe=True),
}


@dataclass(frozen=True)
class TrueModel:
    """Response function with the interface of a surrogate, for reference results."""

    observations: LossObservations
    response: Callable[[FloatArray], FloatArray]
    noise_sd: float
    has_jumps: bool = True

    def draw_scores(self, units: FloatArray) -> FloatArray:
        """Return one draw: the true scores."""
        return self.response(np.atleast_2d(units))[None]

    @cached_property
    def good_settings(self) -> FloatArray:
        """Best settings, selected as for a surrogate."""
        return find_good_settings(self.observations, self.predict_mean, self.noise_sd)

    def predict_mean(self, units: FloatArray) -> FloatArray:
        """Return the true scores."""
        return np.asarray(self.draw_scores(units)[0])


def make_case_table(name: str, plan: SyntheticPlan, seed: int) -> TrialTable:
    """Return a synthetic study of one case."""
    case = CASES[name]
    return make_table(
        [SyntheticLoss(case.space, case.response, case.noise, case.lag)], plan, seed=seed
    )


def measure_model(name: str, table: TrialTable, model: SurrogateModel) -> dict[str, Any]:
    """Return errors and coverages of a fitted model, as one row of the benchmark.

    Importances and curves that the report would refuse are omitted and marked as refused.
    """
    case = CASES[name]
    truth: Any = TrueModel(model.observations, case.response, case.noise)
    row: dict[str, Any] = {"kind": model.kind, "r2": model.selected_cv_result.r2}
    refused = refuse_importance(model) is not None
    row["shares_refused"] = refused
    if not refused:
        row |= _measure_importances(model, truth)
    no_curves = refuse_response(model, estimate_seed_noise(table, "a"))
    row["curves_refused"] = no_curves is not None
    if no_curves is None:
        points = np.random.default_rng(0).random((4096, len(model.observations.params)))
        spread = float(np.ptp(case.response(points)))
        for region in REGIONS:
            row |= _measure_curves(model, truth, region, spread)
        row |= _measure_ranges(model, truth, case.tolerance)
    row |= _count_verdicts(table, model, truth, case, no_curves)
    return row


def fit_model(name: str, table: TrialTable, seed: int) -> SurrogateModel:
    """Return the model that the report would fit to the study."""
    model = fit_surrogate(collect_observations(table, "a"), seed=seed)
    assert isinstance(model, SurrogateModel), (name, model)
    return model


def measure_coverage(
    draws: FloatArray, truth: FloatArray, *, slack: float = 0.0
) -> dict[str, float]:
    """Return the share of true values within the bands of each level, and the first's width."""
    out = {}
    for level in COVERAGE_LEVELS:
        low, high = np.quantile(draws, [0.5 - level / 2, 0.5 + level / 2], axis=0)
        inside = (truth >= low - slack) & (truth <= high + slack)
        out[f"in_{100 * level:.0f}"] = float(inside.mean())
        if level == COVERAGE_LEVELS[0]:
            out["width"] = float((high - low).mean())
    return out


def _measure_importances(model: SurrogateModel, truth: Any) -> dict[str, Any]:
    found = importance.indices_from_values(importance.evaluate_saltelli_design(model))
    real = importance.indices_from_values(importance.evaluate_saltelli_design(truth, n=8192))
    first, total = real.first_order[0], real.total[0]
    mean = np.clip(found.first_order.mean(axis=0), 0.0, None)
    row: dict[str, Any] = {
        "l1": float(np.abs(mean / mean.sum() - first / first.sum()).sum()),
        "top1": is_top_param_found(found.total.mean(axis=0), total),
    }
    # 0.005 is the error of the numerical integration.
    for key, draws, value in (("first", found.first_order, first), ("total", found.total, total)):
        row |= {f"{key}_{k}": v for k, v in measure_coverage(draws, value, slack=0.005).items()}
    return row


def is_top_param_found(shares: FloatArray, truth: FloatArray) -> bool:
    """Return whether the first-ranked hyperparameter is the most important, within 0.02."""
    return bool(truth[int(shares.argmax())] >= truth.max() - 0.02)


def _measure_curves(
    model: SurrogateModel, truth: Any, region: response_curves.CurveRegion, spread: float
) -> dict[str, float]:
    """Return the coverage of all curves of a region; widths are relative to the score range."""
    others = reference = response_curves.select_background_points(model, region)
    if region == "whole":
        reference = qmc.Sobol(others.shape[1], seed=1).random(4096)
    grid = np.linspace(0.05, 0.95, 7)
    draws, real = [], []
    for param in model.observations.params:
        draws.append(response_curves.draw_curves(model, param, grid, others))
        real.append(response_curves.draw_curves(truth, param, grid, reference)[0])
    found = measure_coverage(np.concatenate(draws, axis=1), np.concatenate(real))
    found["width"] /= spread
    return {f"{region}_{k}": v for k, v in found.items()}


def _measure_ranges(model: SurrogateModel, truth: Any, tolerance: float) -> dict[str, float]:
    """Count the values called safe or costly in the good region, and the correct ones."""
    others = response_curves.select_background_points(model, "good")
    counts = dict.fromkeys(("values", "safe", "safe_right", "costly", "costly_right"), 0.0)
    for param in model.observations.params:
        curve = response_curves.analyse_param_curve(model, "good", param, others, tolerance)
        known = curve["supported"].to_numpy(dtype=bool)
        grid = curve["unit"].to_numpy(dtype=float)
        real = response_curves.draw_curves(truth, param, grid, others)[0]
        cost = real[known].max(initial=-np.inf) - real
        status = curve["status"].to_numpy()
        safe, costly = status == "safe", status == "costly"
        counts["values"] += float(known.sum())
        counts["safe"] += float(safe.sum())
        counts["safe_right"] += float((safe & (cost <= 1.02 * tolerance)).sum())
        counts["costly"] += float(costly.sum())
        counts["costly_right"] += float((costly & (cost > 0.98 * tolerance)).sum())
    return counts


def _count_verdicts(
    table: TrialTable,
    model: SurrogateModel,
    truth: Any,
    case: ResponseCase,
    no_curves: Refusal | None,
) -> dict[str, float]:
    """Count verdicts on claims that agree and disagree with those of the true function."""
    counts = dict.fromkeys(("claims", "right", "wrong"), 0.0)
    for claim in _make_claims(case.space):
        ours = judge.judge_claim(
            table, {"a": LossModel(model, no_curves, case.tolerance)}, "a", claim
        )
        real = judge.judge_claim(table, {"a": LossModel(truth, None, case.tolerance)}, "a", claim)
        counts["claims"] += 1.0
        if ours.verdict != "cannot tell" and real.verdict != "cannot tell":
            counts["right" if ours.verdict == real.verdict else "wrong"] += 1.0
    return counts


def _make_claims(space: SearchSpace) -> list[PaperClaim]:
    out = []
    for param, distribution in space.distributions.items():
        ends = [float(from_unit(distribution, u)) for u in (0.1, 0.4, 0.6, 0.9)]
        out += [PaperClaim("", "", "", StableRange(param, a, b)) for a, b in pairwise(ends)]
        out += [PaperClaim("", "", "", GoodValue(param, v)) for v in ends]
        out.append(PaperClaim("", "", "", Sensitive(param)))
    return out
