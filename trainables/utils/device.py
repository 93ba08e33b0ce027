"""Device functions that are the same for every kind of accelerator."""

from __future__ import annotations

import contextlib
import gc
import os
import socket
import threading
from collections.abc import Mapping
from typing import Any

import torch

from trainables.utils.device_errors import ErrorKind, classify_error, format_error_line
from trainables.utils.precision import set_model_precision
from trainables.utils.precision_names import Precision

PROBE_SIZE, PROBE_TIMEOUT_SECONDS = 1024, 60.0
ALLOCATOR_SETTINGS = "expandable_segments:True"
"""Segments that grow: trials of different sizes in one process fragment the memory less."""
ALLOCATOR_VARIABLES = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")


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


def describe_device(device: torch.device) -> str:
    """Return the name of a GPU, such as `NVIDIA A100-SXM4-80GB`, or the type of another device."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type


def probe_device(device: torch.device) -> str:
    """Run a small kernel; return the error if the device no longer computes, empty if it does.

    An error in a kernel leaves the CUDA context of a process unusable. Lack of memory does not.
    """
    if device.type == "cpu":
        return ""
    problems: list[str] = []
    thread = threading.Thread(
        target=lambda: problems.append(_run_probe(device)), name="probe", daemon=True
    )
    thread.start()
    thread.join(PROBE_TIMEOUT_SECONDS)
    return problems[0] if problems else f"no answer in {PROBE_TIMEOUT_SECONDS:g} s"


def _run_probe(device: torch.device) -> str:
    try:
        total = float(torch.ones(PROBE_SIZE, device=device).sum())
        synchronise_device(device)
    except Exception as error:
        is_full = classify_error(error) is ErrorKind.OUT_OF_MEMORY
        return "" if is_full else format_error_line(error)
    return "" if total == PROBE_SIZE else f"the sum of {PROBE_SIZE} ones is {total:g}"


def describe_gpu(device: torch.device) -> str:
    """Return a name of a GPU that is the same in all processes: model, UUID and host.

    Without a working driver it is the number of the GPU that this process was given.
    """
    host = socket.gethostname()
    with contextlib.suppress(Exception):  # the driver may be what failed
        properties = torch.cuda.get_device_properties(device)
        return f"{properties.name} GPU-{properties.uuid} on {host}"
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
    index = device.index or 0
    return f"GPU {visible[index] if index < len(visible) and visible[index] else index} on {host}"


def configure_allocator() -> None:
    """Let the memory segments of this process grow, unless the environment sets the allocator."""
    if torch.cuda.is_available() and not any(map(os.environ.get, ALLOCATOR_VARIABLES)):
        torch._C._accelerator_setAllocatorSettings(ALLOCATOR_SETTINGS)


def release_memory(device: torch.device) -> None:
    """Return the memory of objects that are no longer used to the GPU; do nothing on a CPU."""
    if device.type != "cpu":
        gc.collect()  # cycles, such as those of tracebacks, keep tensors alive
        with contextlib.suppress(RuntimeError):  # a broken context cannot free its memory
            torch.get_device_module(device).empty_cache()
