"""A knob that is searched but never applied makes every analysis a lie.

Every searched knob of every space, moved alone: the loss it names or the optimiser changes.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from search_spaces import SPACES, get_space
from search_spaces.scale import from_unit, to_unit
from search_spaces.space import Space, Value
from search_spaces.training import TRAINING_KNOBS
from study.plan import Plan
from study.planning import build_plan
from study.read_file import parse_study
from trainables.losses import LOSSES, build_loss, loss_knobs, reseed
from trainables.model import EmbeddingModel
from trainables.optimizer import build_optimizer
from trainables.settings import Settings

NAMES = [
    name
    for host in SPACES
    for name in ([host, f"{host}+synthesis"] if LOSSES[host].family == "proxy" else [host])
]
CASES = [(name, knob) for name in NAMES for knob in get_space(name).searched]


def plan_for(name: str) -> Plan:
    return build_plan(parse_study({"name": "s", "data": "glyphs", "losses": [name]}))


def moved(space: Space, knob: str, value: Value) -> Value:
    """Another value of the knob: half its range away."""
    distribution = space.distributions[knob]
    at = float(to_unit(distribution, [value])[0])
    return from_unit(distribution, at - 0.5 if at > 0.5 else at + 0.49)


def effect(plan: Plan, name: str, values: dict[str, Value]) -> tuple[Any, ...]:
    """All that a point can change: the loss and its gradient, and the optimiser's settings."""
    settings, arguments = plan.settings(name, values)
    knobs: dict[str, Any] = dict(arguments)
    torch.manual_seed(0)
    loss = build_loss(name, n_classes=6, dim=8, **knobs)
    reseed(loss, 1)
    vectors = torch.randn(12, 8, requires_grad=True)
    labels = torch.arange(12) % 4
    result = loss(vectors, labels)
    result.backward()
    assert vectors.grad is not None
    model = EmbeddingModel(nn.Conv2d(1, 8, 3), 8, Settings(embedding_dim=8))
    optimizer = build_optimizer(model, loss, settings)
    groups = tuple(
        (g["name"], g["lr"], g["weight_decay"], g["eps"]) for g in optimizer.param_groups
    )
    return float(result.detach()), tuple(vectors.grad.flatten().tolist()), groups


@pytest.mark.parametrize(("name", "knob"), CASES)
def test_moving_one_searched_knob_changes_the_loss_or_the_optimiser(name: str, knob: str) -> None:
    plan = plan_for(name)
    space = plan.spaces[name]
    point = plan.example(name)
    other = {**point, knob: moved(space, knob, point[knob])}
    assert other != point
    before, after = effect(plan, name, point), effect(plan, name, other)
    if knob in loss_knobs(name):
        assert before[:2] != after[:2], "the loss does not see its knob"
        assert before[2] == after[2]
    else:
        assert before[2] != after[2], "the optimiser does not see the knob"
        assert before[:2] == after[:2]


@pytest.mark.parametrize("knob", TRAINING_KNOBS)
def test_every_training_knob_is_a_setting(knob: str) -> None:
    assert knob in Settings.__dataclass_fields__
