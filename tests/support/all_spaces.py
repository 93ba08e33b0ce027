"""All search spaces of the registry, and losses evaluated at points of their spaces."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from search_spaces import SPACE_VARIANTS, SPACES, get_space
from search_spaces.space import ParamValue, SearchSpace
from trainables.losses import LOSSES, build_loss, loss_params, reseed_loss

PROXY_LOSSES = [name for name, info in LOSSES.items() if info.family == "proxy"]
SPACE_NAMES = [*SPACES, *(f"{host}+synthesis" for host in PROXY_LOSSES)]
ALL_SPACES = [get_space(name) for name in SPACE_NAMES] + list(SPACE_VARIANTS.values())


def make_space_id(value: Any) -> str:
    """Return the test id of a space: its loss."""
    return value.loss if isinstance(value, SearchSpace) else str(value)


def compute_loss_value(space: SearchSpace, point: Mapping[str, ParamValue]) -> float:
    """Return the loss of a fixed random batch at a point of the space."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(24, 6, dtype=torch.float64, generator=generator)
    y = torch.arange(24) // 3
    y[-1] = 8  # alone in its class, so not an anchor of a pair loss
    known = loss_params(space.loss)
    params: dict[str, Any] = {k: v for k, v in {**space.fixed, **point}.items() if k in known}
    loss = build_loss(space.loss, n_classes=9, dim=6, **params).double()
    reseed_loss(loss, 1)
    return float(loss(x, y).item())
