"""The mean loss is exact, and a loss or an embedding that is not finite is a divergence."""

from __future__ import annotations

import math

import pytest
import torch

from tests.support.pretend_device import count_device_work, register_pretend_device
from trainables.distributed.world import SingleProcessWorld
from trainables.training.errors import DivergedError
from trainables.training.loss_monitor import LossMonitor

DEVICES = [torch.device("cpu"), register_pretend_device()]


@pytest.mark.parametrize("device", DEVICES, ids=str)
def test_the_mean_is_that_of_all_steps(device: torch.device) -> None:
    values = [1.5, 2.5, 0.25]
    with count_device_work():
        monitor = LossMonitor(SingleProcessWorld(device))
        for value in values:
            monitor.add_step(torch.tensor(value, device=device), torch.ones(2, 3).to(device))
        assert monitor.compute_mean() == sum(values) / 3


def add_steps(monitor: LossMonitor, steps: list[tuple[torch.Tensor, torch.Tensor]]) -> None:
    device = monitor._world.device
    for value, embeddings in steps:
        monitor.add_step(value.to(device), embeddings.to(device))
    monitor.compute_mean()


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("place", ["loss", "embedding"])
@pytest.mark.parametrize("device", DEVICES, ids=str)
def test_a_number_that_is_not_finite_is_a_divergence(
    number: float, place: str, device: torch.device
) -> None:
    value = torch.tensor(number if place == "loss" else 1.0)
    embeddings = torch.ones(2, 3)
    if place == "embedding":
        embeddings[1, 2] = number
    with count_device_work():
        monitor = LossMonitor(SingleProcessWorld(device))
        with pytest.raises(DivergedError):
            add_steps(monitor, [(value, embeddings), (torch.tensor(1.0), torch.ones(2, 3))])


def test_a_step_on_a_device_is_not_waited_for() -> None:
    device = DEVICES[1]
    with count_device_work() as counters:
        monitor = LossMonitor(SingleProcessWorld(device))
        value, embeddings = torch.tensor(1.0).to(device), torch.ones(2, 3).to(device)
        counters.waits.clear()
        monitor.add_step(value, embeddings)
        assert not counters.waits
        monitor.check_finite()
        assert sum(counters.waits.values()) == 1
