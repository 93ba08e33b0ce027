"""Memory of a step: bounded by the settings and the formula.

Counted from the allocations that torch's profiler records, not from the memory of the process.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile

from tests.support.loss_gradients import set_memory_budget
from trainables.losses import LOSSES
from trainables.losses.kernels.blocks import MemoryBudget

pytestmark = pytest.mark.split

PROXY = [name for name, info in LOSSES.items() if info.family == "proxy"]
ALL_PROXY = [*PROXY, *(f"{name}+synthesis" for name in PROXY)]

BATCH, N_CLASSES, DIM = 48, 1000, 16
BLOCK = 2**14
FLOAT = 4
Make = Callable[..., Any]


def build(make_loss: Make, name: str, *, dim: int = DIM, **params: float) -> Any:
    """Build a float32 loss with small blocks; SoftTriple gets three centres to save time."""
    centres = {"centers": 3} if name.startswith("soft_triple") else {}
    loss = make_loss(name, n_classes=N_CLASSES, dim=dim, dtype=torch.float32, **centres, **params)
    set_memory_budget(loss, MemoryBudget(block_bytes=BLOCK))
    return loss


def peak_bytes(loss: nn.Module, x: Tensor, y: Tensor) -> int:
    """Return the peak of allocated bytes in a step, beyond those allocated before it."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        loss(x, y).backward()
    events: Any = profiler.profiler
    changes = [
        (event.start_ns(), event.nbytes())
        for event in events.kineto_results.events()
        if event.name() == "[memory]"
    ]
    alive = peak = 0
    for _, change in sorted(changes, key=lambda item: item[0]):
        alive += change
        peak = max(peak, alive)
    assert peak > 0
    return peak


def samples(count: int) -> tuple[Tensor, Tensor]:
    x = torch.randn(count, DIM, generator=torch.Generator().manual_seed(0)).requires_grad_()
    return x, torch.arange(count) * 20 % N_CLASSES


def planes_of(loss: nn.Module) -> int:
    """Return how many numbers per sample and class backward needs."""
    proxies = loss.proxies
    assert isinstance(proxies, Tensor)
    return proxies.shape[1] + 2 if proxies.dim() == 3 else 1


def rest_of(loss: nn.Module, count: int) -> int:
    """Return the bytes that grow with neither batch x classes nor classes x dim.

    These are a few blocks, a few dozen batches of vectors (embeddings, interpolated samples,
    gradients) and a few numbers per class (norms; for SoftTriple the products of its centres).
    """
    proxies = loss.proxies
    assert isinstance(proxies, Tensor)
    dim = proxies.shape[-1]
    centres = proxies[0].numel() // dim
    per_class = len(proxies) * FLOAT * 2 * centres**2
    return 8 * BLOCK + 24 * FLOAT * count * (centres + 1) * dim + per_class


@pytest.mark.parametrize("name", ALL_PROXY)
def test_streaming_is_bounded_by_the_setting(name: str, make_loss: Make) -> None:
    """The peak is the gradient of the proxies and a few blocks, nothing of batch x classes."""
    loss = build(make_loss, name)
    set_memory_budget(loss, MemoryBudget(keep_bytes=0, block_bytes=BLOCK))
    peak = peak_bytes(loss, *samples(BATCH))
    assert peak <= loss.proxies.numel() * FLOAT + rest_of(loss, 2 * BATCH)
    kept = BATCH * N_CLASSES * planes_of(loss) * FLOAT
    set_memory_budget(loss, MemoryBudget(block_bytes=BLOCK))
    assert peak_bytes(loss, *samples(BATCH)) >= kept + loss.proxies.numel() * FLOAT


@pytest.mark.parametrize("mu", [0.0, 1.0, 2.5])
@pytest.mark.parametrize("host", PROXY)
def test_memory_of_synthesis_follows_the_formula(host: str, mu: float, make_loss: Make) -> None:
    """(1 + mu) B samples against C + mu B classes, and the gradient of the proxies once.

    The synthetic vectors are mu B of each kind: they grow with the batch, not with the classes.
    """
    loss = build(make_loss, f"{host}+synthesis", synthesis_mu=mu)
    peak = peak_bytes(loss, *samples(BATCH))
    count, classes = int((1 + mu) * BATCH), N_CLASSES + int(mu * BATCH)
    kept = count * classes * planes_of(loss) * FLOAT
    gradient = loss.proxies.numel() * FLOAT
    assert kept + gradient <= peak <= kept + gradient + rest_of(loss, count)


@pytest.mark.parametrize("name", ALL_PROXY)
def test_no_copy_of_the_proxies(name: str, make_loss: Make) -> None:
    """Kernels use norms per row, not a normalised copy; only the gradient is as large."""
    loss = build(make_loss, name, dim=16 * DIM)
    x = torch.randn(4, 16 * DIM, generator=torch.Generator().manual_seed(0)).requires_grad_()
    kept = 8 * (N_CLASSES + 4) * planes_of(loss) * FLOAT
    bound = loss.proxies.numel() * FLOAT + kept + rest_of(loss, 8)
    assert peak_bytes(loss, x, torch.arange(4)) <= bound
    assert bound < 2 * loss.proxies.numel() * FLOAT
