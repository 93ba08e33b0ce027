"""Does what the papers say hold here?

Every claim becomes a probability, by functions drawn from the surrogate (claims about a knob) or by
confirmed seeds (claims about losses). `supported` needs 95 %, `contradicted` at most 5 %; all
between is `cannot tell`, as is every claim whose values were not searched or not sampled.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
import pandas as pd
from optuna.distributions import CategoricalDistribution

from search_spaces.claims import (
    BetterLoss,
    BetterValue,
    Claim,
    CostRatio,
    FasterLoss,
    GoodValue,
    HigherMetric,
    Sensitive,
    StableRange,
)
from search_spaces.scale import to_unit
from search_spaces.space import in_range
from study.analyses import loss_claims
from study.analyses.loss_model import LossModel
from study.analyses.response import SURE, background, curve_draws, supported
from study.analyses.samples import Array
from study.analyses.surrogate import Refusal, Surrogate
from study.table import TrialTable

Verdict = Literal["supported", "contradicted", "cannot tell"]
VERDICTS: tuple[Verdict, ...] = ("supported", "contradicted", "cannot tell")


@dataclass(frozen=True)
class Judgement:
    """A verdict with what it rests on; `probability` is of the claim being true."""

    verdict: Verdict
    probability: float
    evidence: str
    settle: str = ""


def analyse(table: TrialTable, models: Mapping[str, LossModel], *, seed: int = 0) -> pd.DataFrame:
    """One row per claim of every loss of the study.

    Returns `loss`, `claim`, `statement`, `source`, `test`, `verdict`, `probability`, `evidence`
    and `settle`: what more trials would have to be, empty when the verdict stands.
    """
    rows = []
    for loss, space in table.spaces.items():
        for claim in space.claims:
            found = judge(table, models, loss, claim, seed=seed)
            rows.append(
                (
                    loss,
                    claim.name,
                    claim.statement,
                    claim.source,
                    how(claim, loss),
                    found.verdict,
                    found.probability,
                    found.evidence,
                    found.settle,
                )
            )
    columns = ["loss", "claim", "statement", "source", "test", "verdict", "probability"]
    return pd.DataFrame(rows, columns=[*columns, "evidence", "settle"])


def judge(
    table: TrialTable, models: Mapping[str, LossModel], loss: str, claim: Claim, *, seed: int = 0
) -> Judgement:
    """Put one claim to the trials."""
    test = claim.test
    if isinstance(test, BetterLoss | FasterLoss | CostRatio | HigherMetric):
        other = host_of(loss) if test.other == "HOST" else test.other
        if other not in table.spaces:
            return _open(f"{other} is not part of this study.", f"Add {other} to the study.")
        probability, evidence = loss_claims.weigh(table, models, loss, other, test, seed=seed)
        return verdict_of(probability, evidence, "More confirmation seeds of both losses.")
    model = models[loss]
    space = table.spaces[loss]
    if test.knob not in space.searched:
        fixed = space.fixed.get(test.knob)
        words = f"{test.knob} was not searched" + (
            "." if fixed is None else f" (fixed at {fixed})."
        )
        return _open(words, f"Search {test.knob}.")
    if isinstance(model.surrogate, Refusal):
        return _open(model.surrogate.reason, "More trials of this loss.")
    if model.no_curves is not None:
        return _open(model.no_curves.reason, "More trials of this loss.")
    if not np.isfinite(model.tolerance):
        return _open("No tolerance is known: no seed was repeated.", "Repeat some seeds.")
    return _knob_claim(model.surrogate, test, model.tolerance)


def how(claim: Claim, loss: str) -> str:
    """How the claim of a loss is tested, in words."""
    test = claim.test
    rival = host_of(loss) if getattr(test, "other", "") == "HOST" else getattr(test, "other", "")
    match test:
        case StableRange():
            low = "the low end" if test.low is None else f"{test.low:g}"
            high = "the high end" if test.high is None else f"{test.high:g}"
            return f"{test.knob} from {low} to {high} costs at most the tolerance"
        case GoodValue():
            return f"{test.knob} = {test.value} costs at most the tolerance"
        case BetterValue():
            return f"{test.knob}: {_words(test.better)} beats {_words(test.worse)} by the tolerance"
        case Sensitive():
            return f"{test.knob} costs more than the tolerance somewhere in its range"
        case BetterLoss():
            return f"tuned score above that of {rival}"
        case FasterLoss():
            return f"reaches the final score of {rival} in fewer epochs"
        case CostRatio():
            return f"seconds per epoch at most {test.at_most:g} times those of {rival}"
        case HigherMetric():
            return f"{test.metric} above that of {rival}"


def host_of(loss: str) -> str:
    """The host of a plug-in: `proxy_anchor` of `proxy_anchor+synthesis`."""
    return loss.split("+", 1)[0]


def verdict_of(probability: float, evidence: str, settle: str) -> Judgement:
    """The verdict a probability stands for; NaN cannot tell."""
    if probability >= SURE:
        return Judgement("supported", probability, evidence)
    if probability <= 1 - SURE:
        return Judgement("contradicted", probability, evidence)
    return Judgement("cannot tell", probability, evidence, settle)


def _open(reason: str, settle: str) -> Judgement:
    return Judgement("cannot tell", float("nan"), reason, settle)


def _words(value: float | str | tuple[float, float]) -> str:
    return f"{value[0]:g}–{value[1]:g}" if isinstance(value, tuple) else str(value)


def _knob_claim(
    model: Surrogate, test: StableRange | GoodValue | BetterValue | Sensitive, tolerance: float
) -> Judgement:
    """Claims about a knob, on the curve with the other knobs good."""
    others = background(model, "good")
    settle = f"A sweep of {test.knob} from the best point with repeated seeds."
    match test:
        case StableRange():
            grid = _range_grid(model, test.knob, test.low, test.high)
        case GoodValue():
            grid = _place(model, test.knob, test.value)
        case BetterValue():
            return _better_value(model, test, tolerance, others, settle)
        case Sensitive():
            grid = np.zeros(0)
    if isinstance(grid, str):
        return _open(grid, "Search a wider range.")
    everywhere = _levels(model, test.knob)
    all_places = np.concatenate([everywhere, grid])
    known = supported(model.samples, test.knob, all_places)
    draws = curve_draws(model, test.knob, all_places, others)
    n = len(everywhere)
    if not known[:n].any():
        return _open(f"No trials along {test.knob}.", settle)
    free = draws[:, :n][:, known[:n]]
    if isinstance(test, Sensitive):
        flat, steep, evidence = _swing(free, free, tolerance, "the range costs")
        if steep >= SURE:
            return Judgement("supported", steep, evidence)
        if flat >= SURE:
            return Judgement("contradicted", 1 - flat, evidence)
        return Judgement("cannot tell", steep, evidence, settle)
    if known[n:].mean() < 0.8:
        return _open("Too few trials at the claimed values.", settle)
    flat, steep, evidence = _swing(
        free, draws[:, n:][:, known[n:]], tolerance, "claimed values cost"
    )
    if flat >= SURE:
        return Judgement("supported", flat, evidence)
    if steep >= SURE:
        return Judgement("contradicted", 1 - steep, evidence)
    return Judgement("cannot tell", flat, evidence, settle)


def _swing(free: Array, inside: Array, tolerance: float, what: str) -> tuple[float, float, str]:
    """How sure is it that all `inside` are within the tolerance of the best, or that one is not?

    The first asks each draw for its own best, which is strict; the second compares the best of the
    mean curve with one fixed value, since the extremes of a draw always lie apart.
    """
    best = np.maximum(free.max(axis=1), inside.max(axis=1))
    flat = float((best - inside.min(axis=1) <= tolerance).mean())
    top = free[:, int(free.mean(axis=0).argmax())]
    costs = top[:, None] - inside
    worst = int(costs.mean(axis=0).argmax())
    steep = float((costs[:, worst] > tolerance).mean())
    return flat, steep, _gap(what, costs[:, worst], tolerance)


def _better_value(
    model: Surrogate, test: BetterValue, tolerance: float, others: Array, settle: str
) -> Judgement:
    sides = []
    for value in (test.better, test.worse):
        grid = (
            _range_grid(model, test.knob, *value)
            if isinstance(value, tuple)
            else _place(model, test.knob, value)
        )
        if isinstance(grid, str):
            return _open(grid, "Search a wider range.")
        known = supported(model.samples, test.knob, grid)
        if known.mean() < 0.5:
            return _open(f"Too few trials at {_words(value)}.", settle)
        sides.append(curve_draws(model, test.knob, grid[known], others).mean(axis=1))
    gain = sides[0] - sides[1]
    # "Better" is contradicted only when it is clearly not better at all; a gain below the
    # tolerance is too small to claim and too likely to deny.
    evidence = _gap("gain", gain, tolerance)
    clear, any_ = float((gain > tolerance).mean()), float((gain > 0).mean())
    if clear >= SURE:
        return Judgement("supported", clear, evidence)
    if any_ <= 1 - SURE:
        return Judgement("contradicted", any_, evidence)
    return Judgement("cannot tell", clear, evidence, settle)


def _levels(model: Surrogate, knob: str) -> Array:
    from study.analyses.response import grid_of

    return grid_of(model, knob)


def _range_grid(model: Surrogate, knob: str, low: float | None, high: float | None) -> Array | str:
    """Positions over the searched part of a claimed range, or why there are none."""
    distribution = model.samples.distributions[model.samples.knobs.index(knob)]
    if isinstance(distribution, CategoricalDistribution):
        within = choices_within(distribution, low, high)
        return to_unit(distribution, within) if within else f"No choice of {knob} is in the range."
    bounds = float(distribution.low), float(distribution.high)  # type: ignore[attr-defined]
    wanted = bounds[0] if low is None else low, bounds[1] if high is None else high
    inside = max(wanted[0], bounds[0]), min(wanted[1], bounds[1])
    if inside[0] > inside[1]:
        return f"The study searched {knob} only in {bounds[0]:g}–{bounds[1]:g}."
    ends = to_unit(distribution, inside)
    whole = to_unit(distribution, wanted) if min(wanted) > 0 or not _log(distribution) else ends
    if (ends[1] - ends[0]) < 0.5 * (whole[1] - whole[0]):
        return f"Less than half of the claimed range of {knob} was searched."
    return np.linspace(float(ends[0]), float(ends[1]), 9)


def choices_within(
    distribution: CategoricalDistribution, low: float | None, high: float | None
) -> list[float]:
    """The numbers among the choices that a range holds (None: open to that side)."""
    return [
        c
        for c in distribution.choices
        if isinstance(c, int | float)
        and not isinstance(c, bool)
        and (low is None or c >= low)
        and (high is None or c <= high)
    ]


def _place(model: Surrogate, knob: str, value: float | str) -> Array | str:
    distribution = model.samples.distributions[model.samples.knobs.index(knob)]
    if not in_range(distribution, value):
        return f"{knob} = {value} is outside what was searched."
    return to_unit(distribution, [value])


def _log(distribution: object) -> bool:
    return bool(getattr(distribution, "log", False))


def _gap(what: str, draws: Array, tolerance: float) -> str:
    low, high = np.quantile(draws, [0.05, 0.95])
    return f"{what} {draws.mean():.4f} ({low:.4f} to {high:.4f}); tolerance {tolerance:.4f}"
