"""Search space of Proxy-Anchor: its published points and claims."""

from __future__ import annotations

import pytest

from search_spaces.losses.proxy_anchor import SPACE
from tests.support.claim_kinds import list_claim_kinds

pytestmark = pytest.mark.split


def test_the_claims_of_the_paper() -> None:
    assert {
        ("StableRange", "alpha"),
        ("StableRange", "delta"),
        ("BetterLoss", "proxy_nca"),
        ("FasterLoss", "proxy_nca"),
        ("Sensitive", "batch_size"),
    } <= list_claim_kinds(SPACE)


def test_the_published_points_share_alpha_and_delta() -> None:
    assert [(p.values["alpha"], p.values["delta"]) for p in SPACE.published] == [(32.0, 0.1)] * 2
    assert [p.values["proxy_lr"] for p in SPACE.published] == [1e-2, 6e-2]
