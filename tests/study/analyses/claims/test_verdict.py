"""Verdicts: the probabilities at which they are given."""

from __future__ import annotations

import math

import numpy as np
import pytest

from study.analyses.claims.verdict import (
    format_difference,
    two_sided_verdict,
    undecided_verdict,
    verdict_from_probability,
)

pytestmark = pytest.mark.split


@pytest.mark.parametrize(
    ("probability", "verdict"),
    [
        (1.0, "supported"),
        (0.95, "supported"),
        (0.949, "cannot tell"),
        (0.051, "cannot tell"),
        (0.05, "contradicted"),
        (0.0, "contradicted"),
        (math.nan, "cannot tell"),
    ],
)
def test_a_probability_decides_at_95_and_5_percent(probability: float, verdict: str) -> None:
    found = verdict_from_probability(probability, "evidence", "more seeds", basis="trials")
    assert found.verdict == verdict
    is_open = verdict == "cannot tell"
    assert found.settle == ("more seeds" if is_open else "")
    assert found.basis == ("nothing" if is_open else "trials")


@pytest.mark.parametrize(
    ("true", "false", "confidence", "verdict", "probability"),
    [
        (0.96, 0.01, 0.95, "supported", 0.96),
        (0.02, 0.97, 0.95, "contradicted", 0.03),
        (0.6, 0.3, 0.95, "cannot tell", 0.6),
        (0.96, 0.01, 0.975, "cannot tell", 0.96),
    ],
)
def test_two_tests_decide_at_the_given_confidence(
    true: float, false: float, confidence: float, verdict: str, probability: float
) -> None:
    found = two_sided_verdict(true, false, "", "more", basis="sweep", confidence=confidence)
    assert found.verdict == verdict
    assert found.probability == pytest.approx(probability)


def test_an_undecided_claim_has_no_probability_and_no_basis() -> None:
    found = undecided_verdict("not searched", "search it")
    assert (found.verdict, found.evidence, found.settle) == (
        "cannot tell",
        "not searched",
        "search it",
    )
    assert math.isnan(found.probability)
    assert found.basis == "nothing"


def test_a_difference_is_shown_with_its_90_percent_band_and_the_tolerance() -> None:
    draws = np.linspace(0.0, 1.0, 101)
    assert format_difference("gain", draws, 0.25) == (
        "gain 0.5000 (0.0500 to 0.9500); tolerance 0.2500"
    )
