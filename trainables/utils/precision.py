"""Numeric precision: of the model, which is a setting, and strict float32 for everything else.

torch has global switches for the products of float32 matrices: a GPU may compute them in TF32 and a
CPU in bfloat16, with 10 and 7 bits instead of 23. Models tolerate that. Losses and retrieval do
not, so they compute inside `strict_float32`, whatever the switches are.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch

from trainables.utils.precision_names import Precision, PrecisionSetting

MIN_BF16_CAPABILITY = (8, 0)
"""CUDA compute capability from which bfloat16 and TF32 run on tensor cores (Ampere)."""

_backends: Any = torch.backends
_MATMUL_BACKENDS = (_backends.cuda.matmul, _backends.mkldnn.matmul)
_MODEL_BACKENDS = (_backends.cuda.matmul, _backends.cudnn.conv)


def resolve_precision(setting: PrecisionSetting, device: torch.device) -> Precision:
    """Return the precision of a model on a device.

    `auto` is bf16 on GPUs with tensor cores for it and fp32 elsewhere. Where a device has no TF32,
    `tf32` is fp32.

    Raises:
        ValueError: If bf16 is requested of a GPU without it.
    """
    if device.type != "cuda":
        return "bf16" if setting == "bf16" else "fp32"
    return _resolve_on_gpu(setting, torch.cuda.get_device_capability(device))


def _resolve_on_gpu(setting: PrecisionSetting, capability: tuple[int, int]) -> Precision:
    has_tensor_cores = capability >= MIN_BF16_CAPABILITY
    if setting == "auto":
        return "bf16" if has_tensor_cores else "fp32"
    if setting == "bf16" and not has_tensor_cores:
        raise ValueError(
            "precision bf16 needs a GPU of compute capability 8.0 or higher, but this one has "
            f"{capability[0]}.{capability[1]}; use auto or fp32"
        )
    return setting if has_tensor_cores else "fp32"


def set_model_precision(precision: Precision, device: torch.device) -> None:
    """Set torch's switches for the convolutions and products of models on a GPU.

    Without a call, torch computes convolutions in TF32 and products in float32.
    """
    if device.type == "cuda":
        for backend in _MODEL_BACKENDS:
            backend.fp32_precision = "ieee" if precision == "fp32" else "tf32"


def autocast_model(
    precision: Precision, device: torch.device
) -> contextlib.AbstractContextManager[object]:
    """Return the context of a model's forward pass."""
    if precision != "bf16":
        return contextlib.nullcontext()
    return torch.autocast(device.type, dtype=torch.bfloat16)


@contextlib.contextmanager
def strict_float32(device: torch.device) -> Iterator[None]:
    """Compute float32 products with all bits and without autocast inside the context."""
    before = [backend.fp32_precision for backend in _MATMUL_BACKENDS]
    try:
        for backend in _MATMUL_BACKENDS:
            backend.fp32_precision = "ieee"
        if torch.is_autocast_enabled(device.type):
            with torch.autocast(device.type, enabled=False):
                yield
        else:
            yield
    finally:
        for backend, value in zip(_MATMUL_BACKENDS, before, strict=True):
            backend.fp32_precision = value
