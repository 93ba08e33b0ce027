"""Search space of ProxyNCA++: its claims and the variant with the authors' optimiser."""

from __future__ import annotations

import pytest

from search_spaces.losses.proxy_nca_pp import OFFICIAL_SPACE, SPACE
from tests.support.claim_kinds import list_claim_kinds

pytestmark = pytest.mark.split


def test_the_claims_of_the_paper() -> None:
    assert {
        ("Sensitive", "temperature"),
        ("GoodValue", "temperature"),
        ("BetterValue", "pooling"),
        ("BetterValue", "proxy_lr"),
        ("BetterLoss", "proxy_nca"),
    } <= list_claim_kinds(SPACE)


def test_the_official_variant_is_the_authors_setting() -> None:
    assert OFFICIAL_SPACE.loss == SPACE.loss
    assert OFFICIAL_SPACE.claims == SPACE.claims
    assert OFFICIAL_SPACE.fixed["adam_eps"] == 1.0
    (point,) = OFFICIAL_SPACE.published
    assert point.values["proxy_lr"] == 4e2
    assert not set(OFFICIAL_SPACE.fixed) & set(OFFICIAL_SPACE.searched_params)
