"""Optimiser: parameter groups, the learning-rate schedule, and checks of untrained parameters."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from trainables.config import TrainingSettings
from trainables.losses import build_loss
from trainables.models.embedding import EmbeddingModel
from trainables.training.optimizer import (
    MovementCheck,
    build_optimizer,
    check_param_groups,
    clip_gradients,
    lr_decay_factor,
    set_learning_rates,
)

pytestmark = pytest.mark.split


def build_model_and_loss() -> tuple[EmbeddingModel, nn.Module]:
    settings = TrainingSettings(embedding_dim=4)
    model = EmbeddingModel(nn.Conv2d(1, 8, 3), 8, settings)
    return model, build_loss("proxy_anchor", n_classes=5, dim=4, alpha=32.0, delta=0.1)


def test_each_part_has_its_own_learning_rate() -> None:
    model, loss = build_model_and_loss()
    settings = TrainingSettings(embedding_dim=4, backbone_lr=1.0, head_lr=2.0, proxy_lr=3.0)
    rates = {g["name"]: g["lr"] for g in build_optimizer(model, loss, settings).param_groups}
    assert rates == {"backbone": 1.0, "head": 2.0, "proxies": 3.0}


@pytest.mark.parametrize(
    ("name", "params"),
    [
        ("norm_softmax", {"temperature": 0.05, "temperature_mode": "learned"}),
        ("margin", {"margin": 0.2, "beta": 1.2, "learn_beta": True}),
    ],
)
def test_a_learned_scalar_of_the_loss_takes_small_steps_and_does_not_decay(
    name: str, params: dict[str, Any]
) -> None:
    model, _ = build_model_and_loss()
    loss = build_loss(name, n_classes=5, dim=4, **params)
    settings = TrainingSettings(embedding_dim=4, head_lr=1e-3, proxy_lr=1.0, weight_decay=0.1)
    optimizer = build_optimizer(model, loss, settings)
    (group,) = (g for g in optimizer.param_groups if g["name"] == "scalars")
    (scalar,) = group["params"]
    before = scalar.item()
    scalar.grad = torch.zeros_like(scalar)
    optimizer.step()
    assert scalar.item() == before
    scalar.grad = torch.ones_like(scalar)
    optimizer.step()
    assert 0 < before - scalar.item() <= 2e-3


def test_a_scalar_with_a_learning_rate_of_zero_is_not_reported() -> None:
    model, _ = build_model_and_loss()
    loss = build_loss(
        "norm_softmax", n_classes=5, dim=4, temperature=0.05, temperature_mode="learned"
    )
    settings = TrainingSettings(embedding_dim=4, head_lr=0.0)
    check = MovementCheck(loss, build_optimizer(model, loss, settings))
    with pytest.raises(RuntimeError, match="`proxies`"):
        check.check_all_moved(loss)
    with torch.no_grad():
        loss.get_parameter("proxies").add_(0.1)
    check.check_all_moved(loss)


def test_forgotten_proxies_are_rejected() -> None:
    model, loss = build_model_and_loss()
    with pytest.raises(RuntimeError, match="proxies is in 0 optimiser groups"):
        check_param_groups(torch.optim.AdamW(model.parameters()), model, loss)


def test_a_parameter_in_two_groups_is_rejected() -> None:
    model, loss = build_model_and_loss()
    optimizer = build_optimizer(model, loss, TrainingSettings(embedding_dim=4))
    optimizer.param_groups[0]["params"].append(model.head.weight)
    with pytest.raises(RuntimeError, match="in 2 optimiser groups"):
        check_param_groups(optimizer, model, loss)


def test_proxies_that_do_not_change_are_reported() -> None:
    _, loss = build_model_and_loss()
    check = MovementCheck(loss)
    with pytest.raises(RuntimeError, match="`proxies`"):
        check.check_all_moved(loss)
    with torch.no_grad():
        next(loss.parameters()).add_(0.1)
    check.check_all_moved(loss)


def test_learning_rate_decay() -> None:
    cosine = TrainingSettings(epochs=10)
    assert lr_decay_factor(0, cosine) == 1.0
    assert lr_decay_factor(5, cosine) == pytest.approx(0.5)
    step = TrainingSettings(epochs=8, lr_decay="step")
    assert [lr_decay_factor(e, step) for e in (0, 3, 4, 6)] == [1.0, 1.0, 0.1, 0.01]
    assert lr_decay_factor(7, TrainingSettings(lr_decay="none")) == 1.0


def test_warm_up_stops_the_backbone_only() -> None:
    model, loss = build_model_and_loss()
    settings = TrainingSettings(
        epochs=8, warmup_epochs=2, lr_decay="step", backbone_lr=1.0, head_lr=2.0, proxy_lr=3.0
    )
    optimizer = build_optimizer(model, loss, settings)
    rates = []
    for epoch in (1, 2, 4):
        set_learning_rates(optimizer, epoch=epoch, settings=settings)
        rates.append([group["lr"] for group in optimizer.param_groups])
    assert rates == [[0.0, 2.0, 3.0], [1.0, 2.0, 3.0], pytest.approx([0.1, 0.2, 0.3])]


def test_gradients_are_clipped_by_value_and_zero_disables_clipping() -> None:
    parameter = nn.Parameter(torch.zeros(3))
    parameter.grad = torch.tensor([-5.0, 0.5, 2.0])
    clip_gradients([parameter], 0.0)
    assert parameter.grad.tolist() == [-5.0, 0.5, 2.0]
    clip_gradients([parameter], 1.0)
    assert parameter.grad.tolist() == [-1.0, 0.5, 1.0]
