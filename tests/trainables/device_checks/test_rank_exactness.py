"""Ranks in processes have the gradients of one; failures and silence of ranks are reported."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from trainables.device_checks.rank_exactness import (
    RANK_TOLERANCE,
    RankCase,
    compare_ranks,
    compute_gradients,
)
from trainables.distributed.world import SingleProcessWorld

pytestmark = pytest.mark.slow

CPU = torch.device("cpu")
PROXY_ANCHOR: dict[str, Any] = {"alpha": 32.0, "delta": 0.1}
CASES = [
    RankCase("proxy_anchor", PROXY_ANCHOR),
    RankCase("proxy_anchor", PROXY_ANCHOR, shard_proxies=True),
    RankCase("triplet", {"margin": 0.2}),
]


def test_two_ranks_have_the_gradients_of_one() -> None:
    differences = compare_ranks(CASES, 2, CPU)
    assert list(differences) == ["proxy_anchor", "proxy_anchor, sharded", "triplet"]
    assert max(differences.values()) <= RANK_TOLERANCE


def test_gradients_contain_every_parameter_and_are_not_zero() -> None:
    gradients = compute_gradients(SingleProcessWorld(CPU), CASES[0])
    assert {"loss.proxies", "model.head.weight"} <= set(gradients)
    assert any("norm" in name or "blocks" in name for name in gradients)
    assert all(gradient.dtype == torch.float64 for gradient in gradients.values())
    assert all(float(gradient.abs().max()) > 0 for gradient in gradients.values())
