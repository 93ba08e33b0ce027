"""Largest entries of rows: as `topk`, for every number of groups."""

from __future__ import annotations

import pytest
import torch

from trainables.retrieval.top_columns import select_top_columns

pytestmark = pytest.mark.split


@pytest.mark.parametrize("n_columns", [5, 64, 1000, 1003])
@pytest.mark.parametrize("count", [1, 5])
def test_values_and_columns_are_those_of_topk(n_columns: int, count: int) -> None:
    x = torch.randn(30, n_columns, generator=torch.Generator().manual_seed(0))
    values, columns = select_top_columns(x, count)
    assert torch.equal(values, x.topk(count, dim=1).values)
    assert torch.equal(x.gather(1, columns), values)


def test_equal_values_give_distinct_columns() -> None:
    values, columns = select_top_columns(torch.zeros(3, 500), 20)
    assert (values == 0).all()
    assert all(len(set(row)) == 20 for row in columns.tolist())
