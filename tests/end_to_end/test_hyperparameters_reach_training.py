"""Tests that every searched hyperparameter of every space changes the loss or the optimiser.

A hyperparameter that is searched but not applied would invalidate every analysis.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from search_spaces import SPACES, get_space
from search_spaces.shared.training import TRAINING_PARAMS
from search_spaces.space import ParamValue, SearchSpace
from search_spaces.unit_scale import from_unit, to_unit
from study.config.loader import parse_config
from study.config.plan import Plan
from study.config.planner import build_plan
from trainables.config import TrainingSettings
from trainables.losses import LOSSES, build_loss, loss_params, reseed_loss
from trainables.models.embedding import EmbeddingModel
from trainables.training.optimizer import build_optimizer

LOSS_NAMES = [
    name
    for host in SPACES
    for name in ([host, f"{host}+synthesis"] if LOSSES[host].family == "proxy" else [host])
]
CASES = [(name, param) for name in LOSS_NAMES for param in get_space(name).searched_params]


def make_plan(name: str) -> Plan:
    return build_plan(parse_config({"name": "s", "data": "glyphs", "losses": [name]}))


def choose_distant_value(space: SearchSpace, param: str, value: ParamValue) -> ParamValue:
    """Return another value of the hyperparameter, half its range away."""
    distribution = space.distributions[param]
    position = float(to_unit(distribution, [value])[0])
    return from_unit(distribution, position - 0.5 if position > 0.5 else position + 0.49)


def compute_effect(plan: Plan, name: str, values: dict[str, ParamValue]) -> tuple[Any, ...]:
    """Return loss, gradient and optimiser settings at a point."""
    settings, arguments = plan.resolve_settings(name, values)
    params: dict[str, Any] = dict(arguments)
    torch.manual_seed(0)
    loss = build_loss(name, n_classes=6, dim=8, **params)
    reseed_loss(loss, 1)
    vectors = torch.randn(12, 8, requires_grad=True)
    labels = torch.arange(12) % 4
    result = loss(vectors, labels)
    result.backward()
    assert vectors.grad is not None
    model = EmbeddingModel(nn.Conv2d(1, 8, 3), 8, TrainingSettings(embedding_dim=8))
    optimizer = build_optimizer(model, loss, settings)
    groups = tuple(
        (g["name"], g["lr"], g["weight_decay"], g["eps"]) for g in optimizer.param_groups
    )
    return float(result.detach()), tuple(vectors.grad.flatten().tolist()), groups


@pytest.mark.slow
@pytest.mark.parametrize(("name", "param"), CASES)
def test_each_searched_hyperparameter_changes_the_loss_or_the_optimiser(
    name: str, param: str
) -> None:
    plan = make_plan(name)
    space = plan.spaces[name]
    point = plan.example_point(name)
    other = {**point, param: choose_distant_value(space, param, point[param])}
    assert other != point
    before, after = compute_effect(plan, name, point), compute_effect(plan, name, other)
    if param in loss_params(name):
        assert before[:2] != after[:2], "the loss ignores its hyperparameter"
        assert before[2] == after[2]
    else:
        assert before[2] != after[2], "the optimiser ignores the hyperparameter"
        assert before[:2] == after[:2]


@pytest.mark.parametrize("param", TRAINING_PARAMS)
def test_every_training_hyperparameter_is_a_setting(param: str) -> None:
    assert param in TrainingSettings.__dataclass_fields__
