"""Precision of models by device, and strict float32 for losses and retrieval."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from tests.support.trial_specs import LOSS_PARAMS, make_spec
from trainables.losses import build_loss, reseed_loss
from trainables.retrieval.metrics import evaluate, find_neighbours
from trainables.training.context import open_context
from trainables.training.trial_trainer import TrialTrainer
from trainables.utils.precision import (
    _resolve_on_gpu,
    autocast_model,
    resolve_precision,
    strict_float32,
)
from trainables.utils.precision_names import Precision, PrecisionSetting

CPU = torch.device("cpu")
_backends: Any = torch.backends
SWITCHES = (_backends.cuda.matmul, _backends.mkldnn.matmul)
PRODUCTS = {"mm", "bmm", "addmm", "baddbmm", "mv", "addmv", "dot"}


class ProductRecorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Records the type and torch's precision switches at every product of matrices."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.products: list[tuple[torch.dtype, set[str]]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func.overloadpacket.__name__ in PRODUCTS:
            self.products.append((result.dtype, read_switches()))
        return result

    def assert_all_strict(self) -> None:
        assert self.products
        for dtype, switches in self.products:
            assert dtype in (torch.float32, torch.float64)
            assert switches == {"ieee"}


def read_switches() -> set[str]:
    return {switch.fp32_precision for switch in SWITCHES}


@pytest.fixture
def _coarse_products() -> Iterator[None]:
    """Let GPUs and CPUs multiply float32 matrices with fewer bits."""
    before = [switch.fp32_precision for switch in SWITCHES]
    for switch in SWITCHES:
        switch.fp32_precision = "tf32"
    yield
    for switch, value in zip(SWITCHES, before, strict=True):
        switch.fp32_precision = value


@pytest.mark.parametrize(
    ("setting", "expected"),
    [("auto", "fp32"), ("fp32", "fp32"), ("bf16", "bf16"), ("tf32", "fp32")],
)
def test_precision_on_a_cpu(setting: PrecisionSetting, expected: Precision) -> None:
    assert resolve_precision(setting, CPU) == expected


@pytest.mark.parametrize(
    ("setting", "capability", "expected"),
    [
        ("auto", (8, 0), "bf16"),
        ("auto", (9, 0), "bf16"),
        ("auto", (7, 5), "fp32"),
        ("tf32", (8, 6), "tf32"),
        ("fp32", (8, 0), "fp32"),
        ("fp32", (7, 0), "fp32"),
        ("tf32", (7, 5), "fp32"),
    ],
)
def test_precision_on_a_gpu(
    setting: PrecisionSetting, capability: tuple[int, int], expected: Precision
) -> None:
    assert _resolve_on_gpu(setting, capability) == expected


def test_a_precision_that_the_device_does_not_have_is_refused() -> None:
    with pytest.raises(ValueError, match=r"bf16 needs .* 8\.0 or higher, but this one has 7\.5"):
        _resolve_on_gpu("bf16", (7, 5))


@pytest.mark.usefixtures("_coarse_products")
def test_products_are_strict_inside_the_context_only() -> None:
    x = torch.randn(8, 8)
    with autocast_model("bf16", CPU):
        assert (x @ x).dtype == torch.bfloat16
        with strict_float32(CPU):
            assert (x @ x).dtype == torch.float32
            assert read_switches() == {"ieee"}
    assert read_switches() == {"tf32"}
    with pytest.raises(ZeroDivisionError), strict_float32(CPU):
        raise ZeroDivisionError
    assert read_switches() == {"tf32"}


def compute_step(loss_name: str) -> list[torch.Tensor]:
    """Return the loss of a batch of float32 embeddings and its gradients."""
    x = torch.randn(48, 64, generator=torch.Generator().manual_seed(1)).requires_grad_()
    loss = build_loss(loss_name, n_classes=16, dim=64, seed=0, **LOSS_PARAMS[loss_name])
    reseed_loss(loss, 3)
    value = loss(x, torch.arange(48) // 4)
    value.backward()
    assert x.grad is not None
    return [value.detach(), x.grad, *(p.grad for p in loss.parameters() if p.grad is not None)]


@pytest.mark.usefixtures("_coarse_products")
@pytest.mark.parametrize("loss", [name for name in LOSS_PARAMS if name != "triplet"])
def test_losses_are_strict_whatever_the_switches_are(loss: str) -> None:
    with ProductRecorder() as recorder, autocast_model("bf16", CPU):
        computed = compute_step(loss)
    recorder.assert_all_strict()
    with strict_float32(CPU):
        expected = compute_step(loss)
    assert all(torch.equal(a, b) for a, b in zip(computed, expected, strict=True))


@pytest.mark.usefixtures("_coarse_products")
@pytest.mark.parametrize("loss", LOSS_PARAMS)
def test_a_training_step_computes_its_loss_strictly(loss: str, tmp_path: Path) -> None:
    spec = make_spec(loss)
    context = open_context(spec.dataset, spec.backbone, cache_dir=tmp_path)
    spec = replace(spec, settings=replace(spec.settings, precision="bf16", epochs=1))
    replica = TrialTrainer(spec, context).replicas[0]
    replica._start_epoch(0, 1)
    with ProductRecorder() as recorder:
        replica.compute_gradients(replica._draw_batches(1)[0], torch.Generator())
    in_model = [p for p in recorder.products if p[0] == torch.bfloat16]
    in_loss = [p for p in recorder.products if p[0] != torch.bfloat16]
    assert in_model, "the embedding layer computes in bfloat16"
    assert in_loss, "the loss computes in float32"
    assert all(switches == {"ieee"} for _, switches in in_loss)


@pytest.mark.usefixtures("_coarse_products")
@pytest.mark.parametrize("k", [3, 200])
def test_retrieval_is_strict_whatever_the_switches_are(k: int) -> None:
    labels = np.arange(600) // 3
    x = torch.randn(600, 32, generator=torch.Generator().manual_seed(0))
    # A long list and a large K make torch compute all products; faiss has no such switch.
    with ProductRecorder() as recorder:
        evaluate(x, labels, ks=(1, k))
        find_neighbours(x, k=k)
    recorder.assert_all_strict()
