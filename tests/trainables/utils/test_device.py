"""Device functions on a CPU, where most of them do nothing."""

from __future__ import annotations

import torch

from trainables.utils.device import (
    configure_device,
    describe_device,
    empty_device_cache,
    synchronise_device,
)

CPU = torch.device("cpu")


def test_a_cpu_keeps_its_settings() -> None:
    before = (torch.backends.cudnn.benchmark, torch.are_deterministic_algorithms_enabled())
    configure_device(CPU, "bf16", {"deterministic": True})
    synchronise_device(CPU)
    empty_device_cache(CPU)
    assert (
        torch.backends.cudnn.benchmark,
        torch.are_deterministic_algorithms_enabled(),
    ) == before
    assert describe_device(CPU) == "cpu"
