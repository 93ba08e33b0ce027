"""Pairs of a batch: masks, and distances that are exact for close embeddings."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from trainables.losses.base.pairs import (
    make_pair_masks,
    normalise_embeddings,
    pairwise_cosines,
    pairwise_distances,
)

pytestmark = pytest.mark.split


class LargestTensor(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Records the size of the largest tensor that any operation returns."""

    n_elements = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for tensor in out if isinstance(out, tuple | list) else [out]:
            if isinstance(tensor, Tensor):
                self.n_elements = max(self.n_elements, tensor.numel())
        return out


def close_batch(n: int, dim: int, spread: float, dtype: torch.dtype) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    centre = torch.randn(dim, generator=generator, dtype=torch.float64)
    noise = torch.randn(n, dim, generator=generator, dtype=torch.float64)
    return (centre + spread * noise).to(dtype)


def test_close_embeddings_take_no_memory_per_pair_and_dimension() -> None:
    x = close_batch(96, 200, 1e-3, torch.float32).requires_grad_()
    with LargestTensor() as largest:  # type: ignore[no-untyped-call]
        torch.autograd.grad(pairwise_distances(x).sum(), x)
    assert largest.n_elements <= 96 * 200


@pytest.mark.parametrize("spread", [1e-6, 1e-3, 0.1])
def test_close_embeddings_have_exact_distances(spread: float) -> None:
    x = close_batch(12, 30, spread, torch.float32)
    rows = normalise_embeddings(x).double()
    expected = (rows[:, None] - rows[None]).norm(dim=2)
    torch.testing.assert_close(pairwise_distances(x).double(), expected, rtol=1e-4, atol=1e-9)


def test_gradients_of_close_far_and_equal_embeddings() -> None:
    x = torch.cat(
        [close_batch(4, 6, 1e-3, torch.float64), -close_batch(3, 6, 0.5, torch.float64)]
    ).requires_grad_()
    assert torch.autograd.gradcheck(pairwise_distances, (x,))
    equal = torch.ones(3, 4, dtype=torch.float64, requires_grad=True)
    (slope,) = torch.autograd.grad(pairwise_distances(equal).sum(), equal)
    assert slope.abs().max() == 0


def test_masks_exclude_the_sample_itself() -> None:
    same, other = make_pair_masks(torch.tensor([4, 2, 4]))
    assert same.tolist() == [[False, False, True], [False, False, False], [True, False, False]]
    assert other.tolist() == [[False, True, False], [True, False, True], [False, True, False]]


def test_cosines_of_known_vectors() -> None:
    x = torch.tensor([[2.0, 0.0], [0.0, 0.5], [1.0, 1.0], [0.0, 0.0]], dtype=torch.bfloat16)
    cosines = pairwise_cosines(x)
    assert cosines.dtype == torch.float32
    half = 0.5**0.5
    expected = [[1, 0, half, 0], [0, 1, half, 0], [half, half, 1, 0], [0, 0, 0, 0]]
    torch.testing.assert_close(cosines, torch.tensor(expected))
