"""Interpolated samples as mixtures of two rows: similarities and gradients."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from trainables.losses.kernels.mixture import InterpolatedBatch, InterpolatedSamples

pytestmark = pytest.mark.split


def random_tensors() -> tuple[Tensor, Tensor, InterpolatedSamples]:
    generator = torch.Generator().manual_seed(0)
    x, p = (torch.randn(n, 3, dtype=torch.float64, generator=generator) for n in (4, 5))
    place, factor = torch.tensor([0.25, 1.0]).double(), torch.tensor([2.0, 0.5]).double()
    between = InterpolatedSamples(torch.tensor([0, 3]), torch.tensor([2, 1]), place, factor)
    return x, p, between


def test_interpolated_rows() -> None:
    x, _, between = random_tensors()
    rows = between.interpolate_rows(x)
    torch.testing.assert_close(rows, torch.stack([2.0 * (0.25 * x[0] + 0.75 * x[2]), 0.5 * x[3]]))


@pytest.mark.parametrize("transposed", [False, True])  # the sparse and the dense product
def test_similarities_are_those_of_the_interpolated_rows(transposed: bool) -> None:
    x, p, between = random_tensors()
    batch = InterpolatedBatch(x, between)
    assert (batch.n_embeddings, batch.n_rows) == (4, 6)
    out = x.new_empty(5, 6).T if transposed else x.new_empty(6, 5)
    factors = torch.arange(1.0, 6.0, dtype=x.dtype)
    vectors = torch.cat([x, between.interpolate_rows(x)])
    torch.testing.assert_close(batch.fill_similarities_(out, p, factors), (vectors @ p.T) * factors)


@pytest.mark.parametrize("transposed", [False, True])
def test_gradients_flow_to_both_parents_and_to_the_factor(transposed: bool) -> None:
    x, p, between = random_tensors()
    batch = InterpolatedBatch(x, between)
    g = torch.randn(6, 5, dtype=x.dtype, generator=torch.Generator().manual_seed(1))
    own_x, factor = x.clone().requires_grad_(), between.factor.clone().requires_grad_()
    rows = between._replace(factor=factor).interpolate_rows(own_x)
    similarities = torch.cat([own_x, rows]) @ p.T
    of_x, of_factor = torch.autograd.grad(similarities, [own_x, factor], g)
    total = batch.new_factor_gradient()
    assert total is not None
    batch.add_factor_gradient_(total, (similarities.detach() * g).sum(dim=1))
    torch.testing.assert_close(total, of_factor)
    folded = batch.fold_gradient_(g.T.contiguous().T if transposed else g.clone())
    torch.testing.assert_close(folded @ p, of_x)


def test_a_batch_without_interpolated_samples_is_left_as_it_is() -> None:
    x, p, _ = random_tensors()
    batch = InterpolatedBatch(x, None)
    assert batch.n_rows == 4
    g = torch.ones(4, 5, dtype=x.dtype)
    assert batch.fold_gradient_(g) is g
    assert batch.new_factor_gradient() is None
    similarities = batch.fill_similarities_(x.new_empty(4, 5), p, torch.ones(5, dtype=x.dtype))
    torch.testing.assert_close(similarities, x @ p.T)
