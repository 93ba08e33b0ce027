"""Kinds of device errors: real messages of torch, CUDA, its libraries, the driver and NCCL."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist

from trainables.utils.device_errors import ErrorKind, classify_error, format_error_line

pytestmark = pytest.mark.split

ADVICE = (
    "\nCUDA kernel errors might be asynchronously reported at some other API call, so the "
    "stacktrace below might be incorrect.\nFor debugging consider passing CUDA_LAUNCH_BLOCKING=1."
    "\nCompile with `TORCH_USE_CUDA_DSA` to enable device-side assertions.\n"
)
CUDA_ERRORS = {
    ErrorKind.HARDWARE_FAULT: (
        "uncorrectable ECC error encountered",
        "uncorrectable NVLink error detected during the execution",
        "hardware stack error",
        "no CUDA-capable device is detected",
        "CUDA-capable device(s) is/are busy or unavailable",
        "initialization error",
        "driver shutting down",
        "system not yet initialized",
        "CUDA driver version is insufficient for CUDA runtime version",
        "no kernel image is available for execution on the device",
    ),
    ErrorKind.DEVICE_FAULT: (
        "unspecified launch failure",
        "an illegal memory access was encountered",
        "an illegal instruction was encountered",
        "misaligned address",
        "invalid program counter",
        "the launch timed out and was terminated",
        "unknown error",
        "CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasSgemm( handle, opa, opb, m, n, k)`",
        "CUBLAS_STATUS_INTERNAL_ERROR when calling `cublasCreate(handle)`",
    ),
    ErrorKind.DEVICE_ASSERTION: ("device-side assert triggered",),
    ErrorKind.OUT_OF_MEMORY: (
        "out of memory",
        "CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
        "CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`",
    ),
    ErrorKind.OTHER: (
        "invalid configuration argument",
        "invalid argument",
        "too many resources requested for launch",
        "operation not permitted when stream is capturing",
        "CUBLAS_STATUS_INVALID_VALUE when calling `cublasGemmEx(...)`",
    ),
}
OTHER_ERRORS = {
    ErrorKind.HARDWARE_FAULT: (
        "CUDA driver error: unknown error",
        "No CUDA GPUs are available",
        "CUDA unknown error - this may be due to an incorrectly set up environment",
        "Unexpected error from cudaGetDeviceCount(). Did you run some cuda functions before",
        "Found no NVIDIA driver on your system. Please check that you have an NVIDIA GPU",
        "The NVIDIA driver on your system is too old (found version 11040).",
        "Unable to determine the device handle for GPU 0000:3B:00.0: GPU is lost.",
    ),
    ErrorKind.DEVICE_FAULT: (
        "cuDNN error: CUDNN_STATUS_EXECUTION_FAILED",
        "cuDNN error: CUDNN_STATUS_INTERNAL_ERROR",
        "cuDNN error: CUDNN_STATUS_MAPPING_ERROR",
        "cusolver error: CUSOLVER_STATUS_EXECUTION_FAILED, when calling `cusolverDnSgeqrf`",
        "cuFFT error: CUFFT_EXEC_FAILED",
        "HIP error: unspecified launch failure",
    ),
    ErrorKind.OUT_OF_MEMORY: (
        "CUDA driver error: out of memory",
        "cuDNN error: CUDNN_STATUS_ALLOC_FAILED",
        "cuDNN error: CUDNN_STATUS_NOT_INITIALIZED",
        "Unable to find a valid cuDNN algorithm to run convolution",
        "GET was unable to find an engine to execute this computation",
        "[enforce fail at alloc_cpu.cpp:127] . DefaultCPUAllocator: can't allocate memory: you "
        "tried to allocate 4398046511104 bytes. Error code 12 (Cannot allocate memory)",
    ),
    ErrorKind.OTHER: (
        "cuDNN error: CUDNN_STATUS_NOT_SUPPORTED. This error may appear if you passed in a "
        "non-contiguous input.",
        "cuDNN error: CUDNN_STATUS_BAD_PARAM",
        "mat1 and mat2 shapes cannot be multiplied (32x24 and 16x8)",
        "Expected all tensors to be on the same device, but found at least two devices",
    ),
}
NCCL = "NCCL error in: ../torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp:2006, "
NCCL_ERRORS = {
    ErrorKind.DEVICE_FAULT: (
        "unhandled cuda error (run with NCCL_DEBUG=INFO for details), NCCL version 2.27.5\n"
        "ncclUnhandledCudaError: Call to CUDA function failed.\nLast error:\n"
        "Cuda failure 719 'unspecified launch failure'",
        "internal error - please report this issue to the NCCL developers, NCCL version 2.27.5\n"
        "ncclInternalError: Internal check failed.",
    ),
    ErrorKind.HARDWARE_FAULT: (
        "unhandled cuda error, NCCL version 2.27.5\nncclUnhandledCudaError: Call to CUDA function "
        "failed.\nLast error:\nCuda failure 214 'uncorrectable ECC error encountered'",
    ),
    ErrorKind.OUT_OF_MEMORY: (
        "unhandled cuda error, NCCL version 2.27.5\nncclUnhandledCudaError: Call to CUDA function "
        "failed.\nLast error:\nCuda failure 2 'out of memory'",
    ),
    ErrorKind.RANK_LOST: (
        "remote process exited or there was a network error, NCCL version 2.27.5\n"
        "ncclRemoteError: A call failed possibly due to a network error or a remote process "
        "exiting prematurely.",
        "unhandled system error, NCCL version 2.27.5\nncclSystemError: System call (e.g. socket, "
        "malloc) or external library call failed or device error.",
    ),
}


@pytest.mark.parametrize(
    ("kind", "text"), [(kind, text) for kind, texts in CUDA_ERRORS.items() for text in texts]
)
@pytest.mark.parametrize("error_class", [RuntimeError, torch.AcceleratorError])
def test_errors_of_cuda(kind: ErrorKind, text: str, error_class: type[RuntimeError]) -> None:
    """Older versions of torch, and some calls of this one, raise a RuntimeError."""
    error = error_class(f"CUDA error: {text}{ADVICE}")
    assert classify_error(error) is kind
    if kind is not ErrorKind.OTHER:
        assert format_error_line(error) == f"{error_class.__name__}: CUDA error: {text}"


@pytest.mark.parametrize(
    ("kind", "text"), [(kind, text) for kind, texts in OTHER_ERRORS.items() for text in texts]
)
def test_errors_of_libraries_and_the_driver(kind: ErrorKind, text: str) -> None:
    assert classify_error(RuntimeError(text)) is kind


@pytest.mark.parametrize(
    ("kind", "text"), [(kind, text) for kind, texts in NCCL_ERRORS.items() for text in texts]
)
def test_errors_of_nccl(kind: ErrorKind, text: str) -> None:
    assert classify_error(dist.DistBackendError(NCCL + text)) is kind


def test_errors_that_are_known_by_their_type() -> None:
    full = "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 24 GiB"
    assert classify_error(torch.OutOfMemoryError(full)) is ErrorKind.OUT_OF_MEMORY
    assert classify_error(MemoryError()) is ErrorKind.OUT_OF_MEMORY
    assert classify_error(torch.AcceleratorError("new text")) is ErrorKind.DEVICE_FAULT
    assert classify_error(ValueError("CUDA error: unknown error")) is ErrorKind.OTHER


def test_only_faults_can_continue_on_another_device() -> None:
    faults = {kind for kind in ErrorKind if kind.is_device_fault}
    assert faults == {ErrorKind.HARDWARE_FAULT, ErrorKind.DEVICE_FAULT}


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (ValueError("one line"), "ValueError: one line"),
        (ValueError("first\n\n  last  \n"), "ValueError: last"),
        (KeyboardInterrupt(), "KeyboardInterrupt"),
    ],
)
def test_an_exception_is_reported_in_one_line(error: BaseException, line: str) -> None:
    assert format_error_line(error) == line
