"""What torch knows about the devices of this machine."""

from __future__ import annotations

from typing import Any

import torch


def explain_missing_cuda() -> str:
    """Return why torch finds no CUDA device; empty if it finds one."""
    if torch.cuda.is_available():
        return ""
    if torch.version.cuda is None:
        return f"no CUDA device (torch {torch.__version__} is built without CUDA)"
    return (
        f"no CUDA device (torch {torch.__version__} is built for CUDA {torch.version.cuda} and "
        "finds none; see nvidia-smi)"
    )


def describe_device(device: torch.device) -> str:
    """Return name and free memory of a device."""
    module = torch.get_device_module(device)
    name = str(module.get_device_name(device)) if device.type == "cuda" else str(device)
    if not hasattr(module, "mem_get_info"):
        return name
    free, total = module.mem_get_info(device)
    return f"{name}, {free / 2**30:.1f} of {total / 2**30:.1f} GiB free"


def collect_gpu_versions() -> dict[str, str]:
    """Return the names of all GPUs and the versions of CUDA, cuDNN and NCCL, as far as known."""
    found = {"torch": torch.__version__, "cuda": str(torch.version.cuda)}
    if torch.cuda.is_available():
        names = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
        major, minor = torch.cuda.get_device_capability()
        found |= {"gpus": ", ".join(names), "capability": f"{major}.{minor}"}
        cudnn: Any = torch.backends.cudnn
        nccl: Any = torch.cuda.nccl
        found["cudnn"] = str(cudnn.version())
        found["nccl"] = ".".join(str(part) for part in nccl.version())
    return found
