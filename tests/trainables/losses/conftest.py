"""Difficult batches, and losses at their published points."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from search_spaces import get_space
from trainables.losses import build_loss, loss_params

N_CLASSES, DIM = 7, 5

Batch = tuple[Tensor, Tensor]


def _random(generator: torch.Generator) -> Batch:
    # Labels 0..4 of 7: two classes are absent.
    x = torch.randn(11, DIM, dtype=torch.float64, generator=generator)
    return x, torch.tensor([0, 1, 1, 2, 2, 2, 3, 4, 0, 4, 1])


def _one_class(generator: torch.Generator) -> Batch:
    x = torch.randn(6, DIM, dtype=torch.float64, generator=generator)
    return x, torch.full((6,), 3)


def _single(generator: torch.Generator) -> Batch:
    return torch.randn(1, DIM, dtype=torch.float64, generator=generator), torch.tensor([6])


def _duplicates(generator: torch.Generator) -> Batch:
    # Copies within a class, and a vector that two classes share.
    x, y = _random(generator)
    x = torch.cat([x, x[1:3], x[3:5]])
    return x, torch.cat([y, y[1:3], torch.tensor([5, 6])])


def _antipodal(generator: torch.Generator) -> Batch:
    x, y = _random(generator)
    return torch.cat([x, -x[:4]]), torch.cat([y, y[:2], torch.tensor([5, 6])])


def _identical(generator: torch.Generator) -> Batch:
    x, y = _random(generator)
    return x[:1].repeat(len(y), 1), y


_BATCHES: dict[str, Callable[[torch.Generator], Batch]] = {
    "random": _random,
    "one class": _one_class,
    "single": _single,
    "duplicates": _duplicates,
    "antipodal": _antipodal,
    "identical": _identical,
}


@pytest.fixture(params=list(_BATCHES))
def batch(request: pytest.FixtureRequest) -> Batch:
    """Float64 embeddings of DIM and labels of N_CLASSES, of every kind in turn."""
    return _BATCHES[request.param](torch.Generator().manual_seed(5))


@pytest.fixture
def random_batch() -> Batch:
    return _random(torch.Generator().manual_seed(7))


@pytest.fixture
def make_loss() -> Callable[..., nn.Module]:
    """`make_loss(name, **changed)`: the loss at its first published point, in float64."""

    def make(
        name: str,
        *,
        n_classes: int = N_CLASSES,
        dim: int = DIM,
        dtype: torch.dtype = torch.float64,
        **changed: Any,
    ) -> nn.Module:
        known = loss_params(name)
        published = get_space(name).published[0].values
        params = {k: v for k, v in published.items() if k in known} | changed
        return build_loss(name, n_classes=n_classes, dim=dim, **params).to(dtype)

    return make
