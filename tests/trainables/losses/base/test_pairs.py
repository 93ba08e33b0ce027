"""Are distances exact where embeddings are close, and is their memory bounded?"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from trainables.losses.pairs import distances, unit


class Largest(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Remembers the largest tensor any operation makes."""

    numbers = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for tensor in out if isinstance(out, tuple | list) else [out]:
            if isinstance(tensor, Tensor):
                self.numbers = max(self.numbers, tensor.numel())
        return out


def close_batch(n: int, dim: int, spread: float, dtype: torch.dtype) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    centre = torch.randn(dim, generator=generator, dtype=torch.float64)
    noise = torch.randn(n, dim, generator=generator, dtype=torch.float64)
    return (centre + spread * noise).to(dtype)


def test_close_embeddings_take_no_memory_per_pair_and_dimension() -> None:
    x = close_batch(96, 200, 1e-3, torch.float32).requires_grad_()
    with Largest() as largest:  # type: ignore[no-untyped-call]
        torch.autograd.grad(distances(x).sum(), x)
    assert largest.numbers <= 96 * 200


@pytest.mark.parametrize("spread", [1e-6, 1e-3, 0.1])
def test_close_embeddings_have_exact_distances(spread: float) -> None:
    x = close_batch(12, 30, spread, torch.float32)
    rows = unit(x).double()
    expected = (rows[:, None] - rows[None]).norm(dim=2)
    torch.testing.assert_close(distances(x).double(), expected, rtol=1e-4, atol=1e-9)


def test_gradients_of_close_far_and_equal_embeddings() -> None:
    x = torch.cat(
        [close_batch(4, 6, 1e-3, torch.float64), -close_batch(3, 6, 0.5, torch.float64)]
    ).requires_grad_()
    assert torch.autograd.gradcheck(distances, (x,))
    equal = torch.ones(3, 4, dtype=torch.float64, requires_grad=True)
    (slope,) = torch.autograd.grad(distances(equal).sum(), equal)
    assert slope.abs().max() == 0
