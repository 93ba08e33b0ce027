"""Claims of papers as data: stored forms and the claims that the papers make."""

from __future__ import annotations

import json

import pytest

from search_spaces.claims import (
    BetterLoss,
    BetterValue,
    ClaimTest,
    CostRatio,
    FasterLoss,
    GoodValue,
    HigherMetric,
    PaperClaim,
    Sensitive,
    StableRange,
    claim_from_dict,
    claim_to_dict,
)

pytestmark = pytest.mark.split


@pytest.mark.parametrize(
    ("test", "stored"),
    [
        (
            StableRange("alpha", low=16.0),
            {"kind": "StableRange", "knob": "alpha", "low": 16.0, "high": None},
        ),
        (
            GoodValue("pooling", "max"),
            {"kind": "GoodValue", "knob": "pooling", "value": "max"},
        ),
        (
            BetterValue("proxy_lr", better=(0.01, 1.0), worse=0.001),
            {"kind": "BetterValue", "knob": "proxy_lr", "better": [0.01, 1.0], "worse": 0.001},
        ),
        (Sensitive("mu"), {"kind": "Sensitive", "knob": "mu"}),
        (BetterLoss("HOST"), {"kind": "BetterLoss", "other": "HOST"}),
        (FasterLoss("proxy_nca"), {"kind": "FasterLoss", "other": "proxy_nca"}),
        (
            CostRatio("HOST", at_most=1.1),
            {"kind": "CostRatio", "other": "HOST", "at_most": 1.1},
        ),
        (
            HigherMetric("recall_at_1", "HOST"),
            {"kind": "HigherMetric", "metric": "recall_at_1", "other": "HOST"},
        ),
    ],
    ids=lambda value: type(value).__name__,
)
def test_the_stored_form_of_a_claim_is_stable(test: ClaimTest, stored: dict[str, object]) -> None:
    """Studies on disk contain this form, so neither kinds nor field names may change."""
    claim = PaperClaim("a-claim", "A statement.", "a source", test)
    text = json.dumps(claim_to_dict(claim))
    assert json.loads(text) == {
        "name": "a-claim",
        "statement": "A statement.",
        "source": "a source",
        "test": stored,
    }
    assert claim_from_dict(json.loads(text)) == claim


def test_an_unknown_kind_of_test_is_an_error() -> None:
    with pytest.raises(KeyError, match="Prettier"):
        claim_from_dict({"name": "", "statement": "", "source": "", "test": {"kind": "Prettier"}})
