"""Kinds of errors of accelerators: whose fault an error is, from its type and message.

torch reports most errors of CUDA as `torch.AcceleratorError`, but those of cuDNN, cuBLAS, the
driver and NCCL as `RuntimeError`, so the messages decide. "CUDA error: ..." carries the text of
`cudaGetErrorString`, and the texts of HIP are the same.

A device-side assertion ("index out of bounds") is an error of the point: a kernel evaluates a
condition on its arguments, and a faulty GPU is very unlikely to make it false. It is not retried,
although the process can no longer use the GPU.
"""

from __future__ import annotations

from enum import Enum

import torch
import torch.distributed as dist


class ErrorKind(Enum):
    """Whose fault an error is."""

    HARDWARE_FAULT = "hardware fault"
    """Of the GPU, its link or its driver, whatever the trial computes."""
    DEVICE_FAULT = "device fault"
    """Of a kernel or library on the GPU: a faulty GPU, or rarely a kernel and the point's sizes."""
    DEVICE_ASSERTION = "device assertion"
    """Of the point's values; the process cannot use the GPU any more."""
    OUT_OF_MEMORY = "out of memory"
    """Of the point's sizes, on this GPU or host."""
    RANK_LOST = "rank lost"
    """Of another rank or the network between ranks."""
    OTHER = "other"
    """Of the point or the program."""

    @property
    def is_device_fault(self) -> bool:
        """Whether the trial can continue on another device."""
        return self in (ErrorKind.HARDWARE_FAULT, ErrorKind.DEVICE_FAULT)


# The first kind with a matching text wins, so the order matters: "CUDA error: out of memory" is
# not a device fault. Texts are in lower case.
_MESSAGES: tuple[tuple[ErrorKind, tuple[str, ...]], ...] = (
    (
        ErrorKind.OUT_OF_MEMORY,
        (
            "cuda out of memory",
            "hip out of memory",
            "cuda error: out of memory",
            "hip error: out of memory",
            "cuda driver error: out of memory",
            "cuda failure 2 'out of memory'",
            "cublas_status_alloc_failed",
            "cudnn_status_alloc_failed",
            "cudnn_status_internal_error_device_allocation_failed",
            "cudnn_status_internal_error_host_allocation_failed",
            "cusolver_status_alloc_failed",
            "cusparse_status_alloc_failed",
            "cufft_alloc_failed",
            # Libraries cannot create a handle, or choose an algorithm, on a full GPU. If its
            # context is broken instead, the probe after the failure shows it.
            "cublas_status_not_initialized",
            "cudnn_status_not_initialized",
            "unable to find a valid cudnn algorithm",
            "was unable to find an engine to execute this computation",
            "defaultcpuallocator: can't allocate memory",
            "defaultcpuallocator: not enough memory",
        ),
    ),
    (
        ErrorKind.DEVICE_ASSERTION,
        ("device-side assert triggered", "cudaerrorassert", "hiperrorassert"),
    ),
    (
        ErrorKind.OTHER,  # wrong arguments: the program would make them on every GPU
        (
            "error: invalid configuration argument",
            "error: invalid argument",
            "error: invalid value",
            "error: invalid resource handle",
            "error: too many resources requested for launch",
            "when stream is capturing",
            "during capture",
            "cublas_status_invalid_value",
            "cublas_status_not_supported",
            "cudnn_status_bad_param",
            "cudnn_status_not_supported",
            "cusolver_status_invalid_value",
            "cusparse_status_invalid_value",
        ),
    ),
    (
        ErrorKind.HARDWARE_FAULT,
        (
            "uncorrectable ecc error",
            "uncorrectable nvlink error",
            "nvlink error was detected",
            "hardware stack error",
            "unrecoverable error",
            "gpu is lost",
            "gpu has fallen off the bus",
            "device lost",
            "no cuda-capable device is detected",
            "devices are busy or unavailable",
            "device(s) is/are busy or unavailable",
            "no cuda gpus are available",
            "cuda unknown error",
            "unexpected error from cudagetdevicecount",
            "system not yet initialized",
            "system has unsupported display driver",
            "error: initialization error",
            "error: driver shutting down",
            "found no nvidia driver",
            "nvidia driver on your system is too old",
            "driver version is insufficient",
            "no kernel image is available",
            "cuda driver error",
            "hip driver error",
        ),
    ),
    (
        ErrorKind.DEVICE_FAULT,
        (
            # Among them: unspecified launch failure, an illegal memory access was encountered,
            # misaligned address, an illegal instruction was encountered, invalid program counter,
            # the launch timed out and was terminated, unknown error.
            "cuda error",
            "hip error",
            "cuda failure",
            "cudnn error",
            "cudnn_status_",
            "cublas_status_",
            "hipblas_status_",
            "cusolver_status_",
            "cusparse_status_",
            "cufft error",
            "miopen error",
            "miopenstatus",
            "unhandled cuda error",
            "ncclunhandledcudaerror",
            "ncclinternalerror",
        ),
    ),
)


def classify_error(error: BaseException) -> ErrorKind:
    """Return whose fault an error is."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return ErrorKind.OUT_OF_MEMORY
    if not isinstance(error, RuntimeError):
        return ErrorKind.OTHER
    text = str(error).lower()
    for kind, messages in _MESSAGES:
        if any(message in text for message in messages):
            return kind
    if isinstance(error, torch.AcceleratorError):
        return ErrorKind.DEVICE_FAULT
    return ErrorKind.RANK_LOST if isinstance(error, dist.DistError) else ErrorKind.OTHER


def is_device_memory_full(error: BaseException) -> bool:
    """Whether the memory of a device, not that of the host, did not suffice."""
    is_host = isinstance(error, MemoryError) or "defaultcpuallocator" in str(error).lower()
    return classify_error(error) is ErrorKind.OUT_OF_MEMORY and not is_host


def format_error_line(error: BaseException) -> str:
    """Return the type of an exception and one line of its message.

    It is the last line, except of errors of devices: they end with advice on debugging.
    """
    lines = [line for line in str(error).strip().splitlines() if line.strip()]
    is_other = classify_error(error) is ErrorKind.OTHER
    text = lines[-1 if is_other else 0].strip() if lines else ""
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
