"""Registry of the losses: names, conditions and properties."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from tests.support.rank_pool import CPU
from trainables.distributed.world import SingleProcessWorld
from trainables.losses import (
    LOSSES,
    build_loss,
    loss_info,
    loss_params,
    sharded_parameters,
    supports_negative_share,
    uses_raw_embeddings,
)

pytestmark = pytest.mark.split


def test_unknown_names_are_refused_with_the_nearest() -> None:
    with pytest.raises(ValueError, match="did you mean 'proxy_anchor'"):
        build_loss("proxy_ancor", n_classes=3, dim=4)
    with pytest.raises(ValueError, match=r"'triplet'.*proxy_anchor"):
        loss_params("triplet+synthesis")
    for wrong in (0, True, np.bool_(True), 3.0, "3", np.array([3])):
        with pytest.raises(ValueError, match="n_classes >= 1"):
            build_loss("proxy_anchor", n_classes=wrong, dim=4, alpha=32.0, delta=0.1)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"name": None}, "name of a loss.*None"),
        ({"seed": 1.5}, "`seed` must be an integer"),
        ({"negative_share": "a"}, "`0 < negative_share <= 1`"),
        ({"keep_mib": 0}, "`keep_mib > 0`"),
        ({"keep_mib": float("inf")}, "`keep_mib > 0`"),
        ({"keep_mib": "a lot"}, "`keep_mib > 0`"),
    ],
)
def test_impossible_conditions_are_refused(given: dict[str, Any], words: str) -> None:
    arguments = {"name": "norm_softmax", "n_classes": 5, "dim": 4, "temperature": 0.1, **given}
    with pytest.raises(ValueError, match=words):
        build_loss(**arguments)


def test_required_hyperparameters_come_first() -> None:
    params = loss_params("norm_softmax+synthesis")
    required = [info.required for info in params.values()]
    assert required == sorted(required, reverse=True)
    assert set(params) == set(loss_params("norm_softmax")) | {
        "synthesis_alpha",
        "synthesis_mu",
        "synthesis_draw",
        "synthesis_path",
    }


def test_a_plugin_name_has_the_title_and_the_papers_of_both() -> None:
    host, both = loss_info("proxy_anchor"), loss_info("proxy_anchor+synthesis")
    assert both.title.startswith(host.title)
    assert both.title != host.title
    assert both.paper.startswith(host.paper)
    assert both.family == host.family


def test_properties_of_the_families() -> None:
    assert [name for name in LOSSES if uses_raw_embeddings(name)] == ["softmax"]
    assert uses_raw_embeddings("pml:TripletMarginLoss")
    assert supports_negative_share("proxy_anchor+synthesis")
    assert not supports_negative_share("triplet")
    assert not supports_negative_share("pml:ProxyAnchorLoss")


def test_the_memory_budget_reaches_the_head() -> None:
    loss = build_loss("proxy_anchor", n_classes=3, dim=4, alpha=32.0, delta=0.1, keep_mib=0.5)
    budgets = [getattr(module, "budget", None) for module in loss.modules()]
    assert [budget.keep_bytes for budget in budgets if budget is not None] == [2**19]


def test_only_several_ranks_shard_the_proxies() -> None:
    class TwoRanks(SingleProcessWorld):
        size = 2

    params = {"n_classes": 7, "dim": 4, "alpha": 32.0, "delta": 0.1}
    single, first_of_two = (
        build_loss("proxy_anchor", shards=world(CPU), **params)  # type: ignore[arg-type]
        for world in (SingleProcessWorld, TwoRanks)
    )
    assert sharded_parameters(single) == {}
    assert sharded_parameters(first_of_two) == {"proxies": 7}
    assert first_of_two.get_parameter("proxies").shape == (4, 4)
    complete = single.get_parameter("proxies")
    assert torch.equal(first_of_two.get_parameter("proxies"), complete[:4])
