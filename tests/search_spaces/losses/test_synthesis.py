"""Search space of Proxy Synthesis: the host's space with the plug-in's hyperparameters."""

from __future__ import annotations

import pytest

from search_spaces import get_space
from search_spaces.losses.synthesis import add_synthesis
from tests.support.all_spaces import PROXY_LOSSES
from tests.support.claim_kinds import list_claim_kinds

pytestmark = pytest.mark.split


@pytest.mark.parametrize("host", PROXY_LOSSES)
def test_the_claims_of_the_paper(host: str) -> None:
    assert {
        ("BetterLoss", "HOST"),
        ("Sensitive", "synthesis_alpha"),
        ("Sensitive", "synthesis_mu"),
        ("CostRatio", "HOST"),
    } <= list_claim_kinds(get_space(f"{host}+synthesis"))


def test_composition_keeps_host_and_plugin_apart() -> None:
    host, both = get_space("proxy_anchor"), get_space("proxy_anchor+synthesis")
    assert set(both.searched_params) == set(host.searched_params) | {
        "synthesis_alpha",
        "synthesis_mu",
    }
    assert both.published[0].values["synthesis_alpha"] == 0.4
    assert both.published[0].values["alpha"] == host.published[0].values["alpha"]
    assert not {claim.name for claim in both.claims} & {claim.name for claim in host.claims}


def test_roles_and_notes_of_the_host_are_kept() -> None:
    host = get_space("norm_softmax", variant="normface")
    both = add_synthesis(host)
    assert both.nuisance == host.nuisance
    assert both.fixed == host.fixed
    for composed, point in zip(both.published, host.published, strict=True):
        assert composed.source.startswith(point.source)
        assert composed.note.startswith(point.note)
