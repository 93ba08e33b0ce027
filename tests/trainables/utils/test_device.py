"""Device functions: the probe after a failure, the name of a GPU, and memory between trials."""

from __future__ import annotations

import gc
import os
import socket
import time
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from trainables.utils import device as device_module
from trainables.utils.device import (
    ALLOCATOR_SETTINGS,
    ALLOCATOR_VARIABLES,
    PROBE_SIZE,
    configure_allocator,
    configure_device,
    describe_device,
    describe_gpu,
    probe_device,
    release_memory,
    synchronise_device,
)

CPU, GPU = torch.device("cpu"), torch.device("cuda", 1)


def replace_ones(monkeypatch: pytest.MonkeyPatch, function: Any) -> None:
    """Let the probe's kernel do what a function does."""
    monkeypatch.setattr(torch, "ones", lambda size, device: function())
    monkeypatch.setattr(device_module, "synchronise_device", lambda device: None)


@pytest.mark.parametrize(
    ("error", "problem"),
    [
        (RuntimeError("CUDA error: an illegal memory access was encountered\nFor"), "illegal"),
        (RuntimeError("CUDA error: device-side assert triggered\nadvice"), "device-side"),
        (torch.OutOfMemoryError("CUDA out of memory."), ""),
    ],
)
def test_a_probe_finds_a_broken_context(
    monkeypatch: pytest.MonkeyPatch, error: Exception, problem: str
) -> None:
    def fail() -> None:
        raise error

    replace_ones(monkeypatch, fail)
    found = probe_device(GPU)
    assert bool(found) == bool(problem)
    assert problem in found


def test_a_probe_finds_wrong_results(monkeypatch: pytest.MonkeyPatch) -> None:
    for total, is_right in ((PROBE_SIZE, True), (PROBE_SIZE - 1, False)):
        replace_ones(monkeypatch, lambda total=total: torch.tensor([float(total)]))
        assert (probe_device(GPU) == "") == is_right


def test_a_probe_does_not_wait_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_module, "PROBE_TIMEOUT_SECONDS", 0.05)
    replace_ones(monkeypatch, lambda: time.sleep(5))
    assert "no answer" in probe_device(GPU)


def test_a_cpu_is_not_probed(monkeypatch: pytest.MonkeyPatch) -> None:
    replace_ones(monkeypatch, lambda: pytest.fail("a kernel ran"))
    assert probe_device(CPU) == ""


def test_a_gpu_is_named_by_its_model_uuid_and_host(monkeypatch: pytest.MonkeyPatch) -> None:
    properties = SimpleNamespace(name="NVIDIA A100-SXM4-80GB", uuid="d1e5")
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
    assert describe_gpu(GPU) == f"NVIDIA A100-SXM4-80GB GPU-d1e5 on {socket.gethostname()}"


@pytest.mark.parametrize(("visible", "number"), [("4,6", "6"), ("", "1"), ("3", "1")])
def test_a_gpu_without_a_driver_is_named_by_its_number(
    monkeypatch: pytest.MonkeyPatch, visible: str, number: str
) -> None:
    def fail(device: Any) -> None:
        raise RuntimeError("No CUDA GPUs are available")

    monkeypatch.setattr(torch.cuda, "get_device_properties", fail)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert describe_gpu(GPU) == f"GPU {number} on {socket.gethostname()}"


def test_segments_grow_unless_the_user_sets_the_allocator(monkeypatch: pytest.MonkeyPatch) -> None:
    settings: list[str] = []
    monkeypatch.setattr(torch._C, "_accelerator_setAllocatorSettings", settings.append)
    for name in ALLOCATOR_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    configure_allocator()
    assert settings == [], "a trial on CPUs changes nothing"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    configure_allocator()
    assert settings == [ALLOCATOR_SETTINGS]
    for name in ALLOCATOR_VARIABLES:
        monkeypatch.setenv(name, "max_split_size_mb:128")
        configure_allocator()
        monkeypatch.delenv(name)
    assert settings == [ALLOCATOR_SETTINGS]
    assert not any(map(os.environ.get, ALLOCATOR_VARIABLES))


def test_memory_is_released_between_trials_on_a_gpu_only(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    module = SimpleNamespace(empty_cache=lambda: calls.append("empty_cache"))
    monkeypatch.setattr(torch, "get_device_module", lambda device: module)
    monkeypatch.setattr(gc, "collect", lambda: calls.append("collect"))
    release_memory(CPU)
    assert calls == []
    release_memory(GPU)
    assert calls == ["collect", "empty_cache"]

    def fail() -> None:
        raise RuntimeError("CUDA error: unspecified launch failure")

    module.empty_cache = fail
    release_memory(GPU)  # a broken context is reported by the probe


def test_a_cpu_keeps_its_settings() -> None:
    before = (torch.backends.cudnn.benchmark, torch.are_deterministic_algorithms_enabled())
    configure_device(CPU, "bf16", {"deterministic": True})
    synchronise_device(CPU)
    assert (
        torch.backends.cudnn.benchmark,
        torch.are_deterministic_algorithms_enabled(),
    ) == before
    assert describe_device(CPU) == "cpu"
