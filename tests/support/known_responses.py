"""Response functions whose answers are known, and how right a fitted model is about them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
from optuna.distributions import FloatDistribution
from scipy.stats import qmc

from search_spaces.claims import Claim, GoodValue, Sensitive, StableRange
from search_spaces.scale import from_unit
from search_spaces.space import Knob, Space
from study.analyses import claims, importance, response
from study.analyses.loss_model import LossModel
from study.analyses.noise import seed_noise
from study.analyses.samples import Array, Samples, gather
from study.analyses.surrogate import (
    Refusal,
    Surrogate,
    fit,
    good_settings,
    refuse_importance,
    refuse_response,
)
from study.table import TrialTable
from tests.study.synthetic import (
    Plan,
    Problem,
    additive,
    ishigami,
    make_table,
    sobol_g,
    unit_space,
)

LEVELS = (0.9, 0.95)
"""The stated rates whose coverage is measured; the report's bands are the first."""

REGIONS: tuple[response.Region, ...] = ("whole", "good")


@dataclass(frozen=True)
class Case:
    """A response function with its noise, the lag of its learning curve, and its space."""

    space: Space
    response: Callable[[Array], Array]
    noise: float
    lag: float = 0.25

    @property
    def tolerance(self) -> float:
        """What the ranges and claims of the case are judged with."""
        return 2.0 * self.noise


def _cliff(u: Array) -> Array:
    """A plateau that ends: beyond 0.75 of the first knob training fails."""
    return np.where(u[:, 0] > 0.75, 0.1, 0.6 - 0.15 * (u[:, 1] - 0.5) ** 2 - 0.05 * u[:, 2])


def _ridge(u: Array) -> Array:
    """Two knobs that must move together, one that acts alone."""
    return np.asarray(0.6 - 0.8 * (u[:, 0] - u[:, 1]) ** 2 - 0.2 * (u[:, 2] - 0.5) ** 2)


def _log(u: Array) -> Array:
    """80 % of the variance is the learning rate's, on its own (logarithmic) scale."""
    return np.asarray(0.5 + 0.2 * u[:, 1] + 0.1 * u[:, 0])


def log_space() -> Space:
    """A margin and a learning rate over five decades."""
    return Space(
        loss="a",
        paper="made up",
        scientific={
            "margin": Knob(FloatDistribution(0.0, 1.0), "m", "test"),
            "lr": Knob(FloatDistribution(1e-6, 1e-1, log=True), "η", "test"),
        },
    )


CASES = {
    "ishigami": Case(unit_space("a", list("abc")), ishigami, 0.15, 3.0),
    "sobol_g": Case(unit_space("a", list("abcd")), sobol_g([0.0, 1.0, 4.5, 9.0])[0], 0.03, 0.3),
    "log_scale": Case(log_space(), _log, 0.005),
    "cliff": Case(unit_space("a", list("abcd")), _cliff, 0.006),
    "ridge": Case(unit_space("a", list("abcd")), _ridge, 0.006),
    "additive": Case(unit_space("a", list("abcd")), additive((0.3, 0.15, 0.05, 0.0)), 0.006),
}
PLANS = {
    "space-filling": Plan(trials=120, sobol_share=1.0, bayes=False, stop=False),
    "40% sobol, TPE, early stopping": Plan(trials=120, tpe=True),
}


@dataclass(frozen=True)
class Truth:
    """The function itself in the place of a surrogate, so that the same code gives the truth."""

    samples: Samples
    response: Callable[[Array], Array]
    noise: float
    jumps: bool = True

    def draws(self, units: Array) -> Array:
        """One draw, the right one."""
        return self.response(np.atleast_2d(units))[None]

    @cached_property
    def good(self) -> Array:
        """The best settings there are, as a surrogate finds them."""
        return good_settings(self.samples, self.mean, self.noise)

    def mean(self, units: Array) -> Array:
        """The same."""
        return np.asarray(self.draws(units)[0])


def study_of(name: str, plan: Plan, seed: int) -> TrialTable:
    """A made-up study of one case."""
    case = CASES[name]
    return make_table([Problem(case.space, case.response, case.noise, case.lag)], plan, seed=seed)


def measure(name: str, table: TrialTable, model: Surrogate) -> dict[str, Any]:
    """Everything that can be right or wrong about one fitted model.

    Importances and curves that the report would refuse are left out, and said to be.
    """
    case = CASES[name]
    truth: Any = Truth(model.samples, case.response, case.noise)
    row: dict[str, Any] = {"kind": model.kind, "r2": model.best.r2}
    refused = refuse_importance(model) is not None
    row["shares_refused"] = refused
    if not refused:
        row |= _shares(model, truth)
    no_curves = refuse_response(model, seed_noise(table, "a"))
    row["curves_refused"] = no_curves is not None
    if no_curves is None:
        anywhere = np.random.default_rng(0).random((4096, len(model.samples.knobs)))
        spread = float(np.ptp(case.response(anywhere)))
        for region in REGIONS:
            row |= _curves(model, truth, region, spread)
        row |= _ranges(model, truth, case.tolerance)
    row |= _verdicts(table, model, truth, case, no_curves)
    return row


def fitted(name: str, table: TrialTable, seed: int) -> Surrogate:
    """The report's model of a made-up study."""
    model = fit(gather(table, "a"), seed=seed)
    assert isinstance(model, Surrogate), (name, model)
    return model


def held(draws: Array, truth: Array, *, slack: float = 0.0) -> dict[str, float]:
    """How often bands of each level hold the truth, and how wide the first is."""
    out = {}
    for level in LEVELS:
        low, high = np.quantile(draws, [0.5 - level / 2, 0.5 + level / 2], axis=0)
        inside = (truth >= low - slack) & (truth <= high + slack)
        out[f"in_{100 * level:.0f}"] = float(inside.mean())
        if level == LEVELS[0]:
            out["width"] = float((high - low).mean())
    return out


def _shares(model: Surrogate, truth: Any) -> dict[str, Any]:
    found = importance.shares(model)
    real = importance.shares(truth, n=8192)
    first, total = real.first[0], real.total[0]
    mean = np.clip(found.first.mean(axis=0), 0.0, None)
    row: dict[str, Any] = {
        "l1": float(np.abs(mean / mean.sum() - first / first.sum()).sum()),
        "top1": top(found.total.mean(axis=0), total),
    }
    # Half a point is the error of the integration itself.
    for key, draws, value in (("first", found.first, first), ("total", found.total, total)):
        row |= {f"{key}_{k}": v for k, v in held(draws, value, slack=0.005).items()}
    return row


def top(shares: Array, truth: Array) -> bool:
    """Whether the knob ranked first is one, ties aside."""
    return bool(truth[int(shares.argmax())] >= truth.max() - 0.02)


def _curves(
    model: Surrogate, truth: Any, region: response.Region, spread: float
) -> dict[str, float]:
    """Points of all curves of a region; widths as a share of the response's range."""
    others = reference = response.background(model, region)
    if region == "whole":
        reference = qmc.Sobol(others.shape[1], seed=1).random(4096)
    grid = np.linspace(0.05, 0.95, 7)
    draws, real = [], []
    for knob in model.samples.knobs:
        draws.append(response.curve_draws(model, knob, grid, others))
        real.append(response.curve_draws(truth, knob, grid, reference)[0])
    found = held(np.concatenate(draws, axis=1), np.concatenate(real))
    found["width"] /= spread
    return {f"{region}_{k}": v for k, v in found.items()}


def _ranges(model: Surrogate, truth: Any, tolerance: float) -> dict[str, float]:
    """Values called safe or costly in the good region, and how many truly are."""
    others = response.background(model, "good")
    counts = dict.fromkeys(("values", "safe", "safe_right", "costly", "costly_right"), 0.0)
    for knob in model.samples.knobs:
        curve = response.curve(model, "good", knob, others, tolerance)
        known = curve["supported"].to_numpy(dtype=bool)
        grid = curve["unit"].to_numpy(dtype=float)
        real = response.curve_draws(truth, knob, grid, others)[0]
        cost = real[known].max(initial=-np.inf) - real
        status = curve["status"].to_numpy()
        safe, costly = status == "safe", status == "costly"
        counts["values"] += float(known.sum())
        counts["safe"] += float(safe.sum())
        counts["safe_right"] += float((safe & (cost <= 1.02 * tolerance)).sum())
        counts["costly"] += float(costly.sum())
        counts["costly_right"] += float((costly & (cost > 0.98 * tolerance)).sum())
    return counts


def _verdicts(
    table: TrialTable, model: Surrogate, truth: Any, case: Case, no_curves: Refusal | None
) -> dict[str, float]:
    """Claims about every knob, judged by the trials and by the function itself."""
    counts = dict.fromkeys(("claims", "right", "wrong"), 0.0)
    for claim in _claims(case.space):
        ours = claims.judge(table, {"a": LossModel(model, no_curves, case.tolerance)}, "a", claim)
        real = claims.judge(table, {"a": LossModel(truth, None, case.tolerance)}, "a", claim)
        counts["claims"] += 1.0
        if ours.verdict != "cannot tell" and real.verdict != "cannot tell":
            counts["right" if ours.verdict == real.verdict else "wrong"] += 1.0
    return counts


def _claims(space: Space) -> list[Claim]:
    out = []
    for knob, distribution in space.distributions.items():
        ends = [float(from_unit(distribution, u)) for u in (0.1, 0.4, 0.6, 0.9)]
        out += [Claim("", "", "", StableRange(knob, a, b)) for a, b in pairwise(ends)]
        out += [Claim("", "", "", GoodValue(knob, v)) for v in ends]
        out.append(Claim("", "", "", Sensitive(knob)))
    return out
