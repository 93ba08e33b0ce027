"""Device functions that are the same for every kind of accelerator."""

from __future__ import annotations

import torch


def synchronise_device(device: torch.device) -> None:
    """Wait until the device has finished all work; a CPU always has."""
    if device.type != "cpu":
        torch.get_device_module(device).synchronize(device)
