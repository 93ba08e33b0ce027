"""Training speed is measured on any device, with as many steps as asked for."""

from __future__ import annotations

import pytest
import torch

from tests.support.pretend_device import count_device_work, register_pretend_device
from trainables.device_checks import training_speed
from trainables.device_checks.training_speed import (
    IMAGES_PER_CLASS,
    SpeedCase,
    make_random_images,
    make_replica,
    measure_device_speed,
    read_peak_memory,
    reset_peak_memory,
)
from trainables.distributed.world import SingleProcessWorld
from trainables.training.replica import ModelReplica

DEVICE, CPU = register_pretend_device(), torch.device("cpu")
CASE = SpeedCase(backbone="conv4", image_size=28, batch_size=16, steps=2, repeats=3)


@pytest.mark.parametrize("device", [CPU, DEVICE], ids=str)
def test_steps_are_measured_on_a_device(device: torch.device) -> None:
    with count_device_work() as counters:
        speed = measure_device_speed(CASE, device)
    assert speed.images_per_second > 0
    assert speed.peak_memory_bytes is None
    assert (sum(counters.launches.values()) > 0) == (device == DEVICE)


def test_images_are_stored_larger_and_suffice_for_all_steps() -> None:
    part = make_random_images(CASE)
    assert part.items.shape[1:] == (32, 32, 3)
    replica = make_replica(CASE, SingleProcessWorld(CPU))
    assert len(replica._draw_batches(0)) == 1 + training_speed.WARM_UP_STEPS
    longer = SpeedCase(backbone="conv4", image_size=28, batch_size=16, steps=7)
    assert len(make_replica(longer, SingleProcessWorld(CPU))._draw_batches(0)) == 1 + 7
    assert min(torch.bincount(torch.from_numpy(part.labels))) == IMAGES_PER_CLASS


def test_throughput_is_that_of_the_median_repeat(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two of three steps of an epoch took 1, 4 and 2 seconds, after a warm-up of 99."""
    durations = iter([99.0, 1.0, 4.0, 2.0])

    def time_steps(replica: ModelReplica, steps: int) -> tuple[float, float]:
        return next(durations), steps / len(replica._draw_batches(0))

    monkeypatch.setattr(ModelReplica, "time_training_steps", time_steps)
    assert measure_device_speed(CASE, CPU).images_per_second == 2 * 16 / 2.0


def test_peak_memory_is_read_where_a_device_counts_it(monkeypatch: pytest.MonkeyPatch) -> None:
    module = torch.get_device_module(DEVICE)
    reset: list[torch.device] = []
    monkeypatch.setattr(module, "reset_peak_memory_stats", reset.append, raising=False)
    monkeypatch.setattr(module, "max_memory_allocated", lambda device: 5 * 2**20, raising=False)
    reset_peak_memory(DEVICE)
    assert reset == [DEVICE]
    assert read_peak_memory(DEVICE) == 5 * 2**20
    assert read_peak_memory(CPU) is None
