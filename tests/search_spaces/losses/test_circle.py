"""Search space of the Circle loss: its claims, shared with the pair level."""

from __future__ import annotations

import pytest

from search_spaces.losses import circle, circle_pair
from tests.support.claim_kinds import list_claim_kinds

pytestmark = pytest.mark.split


def test_the_claims_of_the_paper() -> None:
    assert {
        ("StableRange", "gamma"),
        ("StableRange", "m"),
        ("BetterLoss", "am_softmax"),
        ("BetterLoss", "triplet"),
        ("HigherMetric", "am_softmax"),
    } <= list_claim_kinds(circle.SPACE)


def test_both_levels_search_the_same_ranges_and_share_the_stability_claims() -> None:
    assert circle_pair.SPACE.scientific == circle.SPACE.scientific
    for claim in circle.STABILITY_CLAIMS:
        assert claim in circle.SPACE.claims
        assert claim in circle_pair.SPACE.claims
