"""What is a verdict, and when may one be given?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from study.analyses.response import SURE
from study.analyses.samples import Array

Verdict = Literal["supported", "contradicted", "cannot tell"]
VERDICTS: tuple[Verdict, ...] = ("supported", "contradicted", "cannot tell")

Basis = Literal["model", "sweep", "trials", "nothing"]
"""What decided: the surrogate, measured sweeps, the losses' own trials; nothing when open."""


@dataclass(frozen=True)
class Judgement:
    """A verdict with what it rests on; `probability` is of the claim being true."""

    verdict: Verdict
    probability: float
    evidence: str
    settle: str = ""
    basis: Basis = "nothing"


def undecided(reason: str, settle: str) -> Judgement:
    """No verdict, and no probability either."""
    return Judgement("cannot tell", float("nan"), reason, settle)


def verdict_of(probability: float, evidence: str, settle: str, *, basis: Basis) -> Judgement:
    """The verdict a probability stands for; NaN cannot tell."""
    if probability >= SURE:
        return Judgement("supported", probability, evidence, basis=basis)
    if probability <= 1 - SURE:
        return Judgement("contradicted", probability, evidence, basis=basis)
    return Judgement("cannot tell", probability, evidence, settle)


def either(
    true: float, false: float, evidence: str, settle: str, *, basis: Basis, sure: float = SURE
) -> Judgement:
    """The verdict of two tests, one for the claim and one against it; neither need be sure."""
    if true >= sure:
        return Judgement("supported", true, evidence, basis=basis)
    if false >= sure:
        return Judgement("contradicted", 1 - false, evidence, basis=basis)
    return Judgement("cannot tell", true, evidence, settle)


@dataclass(frozen=True)
class Cost:
    """What values cost beside the best, and how sure that is.

    Two questions, and the band holds the answer to both: `low` is of the cost beside one fixed
    rival (the best of the mean curve), since the extremes of a draw always lie apart; `high` is of
    the cost beside each draw's own best, which is strict. So costs are within a tolerance with
    95 % exactly when `high` is, and beyond it exactly when `low` is.

    Args:
        within: Probability that no value costs more than the tolerance.
        beyond: Probability that one certain value does.
        mean: What that value costs beside the fixed rival.
        low, high: The band, of 90 %.
    """

    within: float
    beyond: float
    mean: float
    low: float
    high: float


def cost_of(free: Array, inside: Array, tolerance: float) -> Cost:
    """What the worst of `inside` costs beside the best of `free` and `inside` (draws x values)."""
    best = np.maximum(free.max(axis=1), inside.max(axis=1))
    most = best - inside.min(axis=1)
    top = free[:, int(free.mean(axis=0).argmax())]
    costs = top[:, None] - inside
    worst = costs[:, int(costs.mean(axis=0).argmax())]
    return Cost(
        within=float((most <= tolerance).mean()),
        beyond=float((worst > tolerance).mean()),
        mean=float(worst.mean()),
        low=float(np.quantile(worst, 1 - SURE)),
        high=float(np.quantile(most, SURE)),
    )


def swing(free: Array, inside: Array, tolerance: float, what: str) -> tuple[float, float, str]:
    """How sure is it that all `inside` are within the tolerance of the best, or that one is not?

    The words give the band that decides (see `Cost`) and both probabilities.
    """
    cost = cost_of(free, inside, tolerance)
    words = (
        f"{what} {cost.mean:.4f} ({cost.low:.4f} to {cost.high:.4f}); tolerance {tolerance:.4f}: "
        f"within it with {cost.within:.0%}, beyond with {cost.beyond:.0%}"
    )
    return cost.within, cost.beyond, words


def gap(what: str, draws: Array, tolerance: float) -> str:
    """A difference with its 90 % band beside the tolerance, in words."""
    low, high = np.quantile(draws, [0.05, 0.95])
    return f"{what} {draws.mean():.4f} ({low:.4f} to {high:.4f}); tolerance {tolerance:.4f}"
