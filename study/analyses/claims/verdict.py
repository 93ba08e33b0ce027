"""Verdicts on claims, and the probabilities at which they are given."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from study.analyses.response_curves import CONFIDENCE_LEVEL
from study.analyses.surrogate.observations import FloatArray

VerdictLabel = Literal["supported", "contradicted", "cannot tell"]

VerdictBasis = Literal["model", "sweep", "trials", "nothing"]
"""What decided: the surrogate, measured sweeps, the trials of the losses; `nothing` if open."""


@dataclass(frozen=True)
class ClaimVerdict:
    """A verdict on a claim.

    Args:
        verdict: Outcome.
        probability: Probability that the claim is true.
        evidence: What the verdict is based on, in words.
        settle: Which further trials would decide; empty if the verdict stands.
        basis: What decided.
    """

    verdict: VerdictLabel
    probability: float
    evidence: str
    settle: str = ""
    basis: VerdictBasis = "nothing"


def undecided_verdict(reason: str, settle: str) -> ClaimVerdict:
    """Return `cannot tell` without a probability."""
    return ClaimVerdict("cannot tell", float("nan"), reason, settle)


def verdict_from_probability(
    probability: float, evidence: str, settle: str, *, basis: VerdictBasis
) -> ClaimVerdict:
    """Return the verdict that a probability stands for; NaN is `cannot tell`."""
    if probability >= CONFIDENCE_LEVEL:
        return ClaimVerdict("supported", probability, evidence, basis=basis)
    if probability <= 1 - CONFIDENCE_LEVEL:
        return ClaimVerdict("contradicted", probability, evidence, basis=basis)
    return ClaimVerdict("cannot tell", probability, evidence, settle)


def two_sided_verdict(
    true: float,
    false: float,
    evidence: str,
    settle: str,
    *,
    basis: VerdictBasis,
    confidence: float = CONFIDENCE_LEVEL,
) -> ClaimVerdict:
    """Return the verdict of two tests, one for the claim and one against it; both may fail."""
    if true >= confidence:
        return ClaimVerdict("supported", true, evidence, basis=basis)
    if false >= confidence:
        return ClaimVerdict("contradicted", 1 - false, evidence, basis=basis)
    return ClaimVerdict("cannot tell", true, evidence, settle)


def format_difference(what: str, draws: FloatArray, tolerance: float) -> str:
    """Format a difference with its 90 % band and the tolerance."""
    low, high = np.quantile(draws, [0.05, 0.95])
    return f"{what} {draws.mean():.4f} ({low:.4f} to {high:.4f}); tolerance {tolerance:.4f}"
