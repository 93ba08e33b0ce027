"""Device functions that are the same for every kind of accelerator."""

from __future__ import annotations

import gc
import os
from collections.abc import Mapping
from typing import Any

import torch

from trainables.utils.precision import set_model_precision
from trainables.utils.precision_names import Precision


def configure_device(
    device: torch.device, precision: Precision, resources: Mapping[str, Any]
) -> None:
    """Set torch's global switches for a trial on a GPU; a CPU keeps its defaults.

    `deterministic` makes repeated runs on one kind of GPU bitwise equal, at the price of slower
    kernels; otherwise cuDNN measures which of its algorithms is the fastest for each shape.
    """
    set_model_precision(precision, device)
    if device.type != "cuda":
        return
    deterministic = bool(resources.get("deterministic"))
    if deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(deterministic, warn_only=True)
    torch.backends.cudnn.benchmark = not deterministic


def synchronise_device(device: torch.device) -> None:
    """Wait until the device has finished all work; a CPU always has."""
    if device.type != "cpu":
        torch.get_device_module(device).synchronize(device)


def empty_device_cache(device: torch.device) -> None:
    """Return unused memory of torch's allocator to the device."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()


def describe_device(device: torch.device) -> str:
    """Return the name of a GPU, such as `NVIDIA A100-SXM4-80GB`, or the type of another device."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
