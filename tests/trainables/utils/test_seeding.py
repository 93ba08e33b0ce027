"""Derivation of seeds."""

from __future__ import annotations

import pytest

from trainables.utils.seeding import derive_seed

pytestmark = pytest.mark.split


def test_seeds_are_the_same_in_every_version() -> None:
    """Checkpoints hold no generator state: a change of this value would break resumption."""
    assert derive_seed(5, "epoch", 3) == 3017875861777306853


def test_seeds_depend_on_all_arguments_and_their_order() -> None:
    seeds = {
        derive_seed(1),
        derive_seed(2),
        derive_seed(1, "fold"),
        derive_seed(1, "fold", 0),
        derive_seed(1, "fold", 1),
        derive_seed(1, 1, "fold"),
    }
    assert len(seeds) == 6
    assert all(0 <= seed < 2**63 for seed in seeds)
