"""Search spaces by name: known names, variants, plug-ins and errors."""

from __future__ import annotations

import pytest

from search_spaces import SPACES, get_space
from search_spaces.shared.training import PAIR_RATE_PARAMS
from trainables.losses import LOSSES

pytestmark = pytest.mark.split


def test_every_loss_has_a_space_and_every_space_a_loss() -> None:
    assert list(SPACES) == list(LOSSES)
    assert all(space.loss == name for name, space in SPACES.items())


def test_unknown_names() -> None:
    with pytest.raises(ValueError, match="did you mean 'proxy_anchor'"):
        get_space("proxy_ancor")
    with pytest.raises(ValueError, match="'triplet' has none"):
        get_space("triplet+synthesis")
    with pytest.raises(ValueError, match="takes no plug-in"):
        get_space("pml:ProxyAnchorLoss+synthesis")
    with pytest.raises(ValueError, match="known: official"):
        get_space("proxy_nca_pp", variant="oficial")
    assert get_space("proxy_nca_pp", variant="official").fixed["adam_eps"] == 1.0


def test_variants_are_the_settings_of_their_papers() -> None:
    normface = get_space("norm_softmax", variant="normface")
    assert normface.fixed == {"temperature_mode": "learned"}
    assert normface.published[0].values["temperature"] == 0.1
    assert get_space("triplet", variant="semihard").fixed == {"mining": "semihard"}


def test_a_variant_composes_with_the_plugin() -> None:
    space = get_space("norm_softmax+synthesis", variant="normface")
    assert space.loss == "norm_softmax+synthesis"
    assert space.fixed == {"temperature_mode": "learned"}
    assert "synthesis_mu" in space.searched_params


def test_a_library_loss_has_only_the_learning_rates() -> None:
    space = get_space("pml:TripletMarginLoss")
    assert space.loss == "pml:TripletMarginLoss"
    assert space.scientific == {}
    assert space.searched_params == PAIR_RATE_PARAMS
