"""Blocks of proxies, scratch buffers, norms and the memory budget."""

from __future__ import annotations

import math

import pytest
import torch

from trainables.losses.kernels.blocks import (
    MemoryBudget,
    ProxySegment,
    ScratchBuffers,
    ShardReducer,
    floored_exp2_,
    inverse_norms,
    iter_blocks,
    make_blocks,
    similarities_fit_budget,
    unit_rows,
    widened_output,
    widest_dtype,
)
from trainables.losses.kernels.own_entries import ListedEntries

pytestmark = pytest.mark.split


class OtherShard:
    """Reducer of a world with another shard that contributes nothing."""

    def all_reduce_max_(self, partial: torch.Tensor) -> None:
        return None

    def all_reduce_sum_(self, partial: torch.Tensor) -> None:
        return None


@pytest.mark.parametrize("block_bytes", [1, 4 * 5 * 3, 0])  # one class, three, all of a segment
def test_every_sample_is_in_the_block_of_its_class(block_bytes: int) -> None:
    segments = [ProxySegment(0, torch.rand(7, 2)), ProxySegment(7, torch.rand(4, 2))]
    labels = torch.tensor([10, 0, 6, 3, 3])
    budget = MemoryBudget(block_bytes=block_bytes)
    blocks = make_blocks(segments, labels, item_bytes=4, budget=budget)
    classes = [(b.segment, row) for b in blocks for row in range(b.start, b.stop)]
    assert classes == [(0, row) for row in range(7)] + [(1, row) for row in range(4)]
    sizes = {1: 11, 60: 5, 0: 2}
    assert len(blocks) == sizes[block_bytes]
    placed: dict[int, int] = {}
    for block in blocks:
        first, own = segments[block.segment].first + block.start, block.own
        assert isinstance(own, ListedEntries)
        placed |= {int(r): first + int(c) for r, c in zip(own.rows, own.columns, strict=True)}
    assert [placed[row] for row in range(5)] == labels.tolist()


def test_samples_of_other_shards_are_in_no_block() -> None:
    segments, labels = [ProxySegment(5, torch.rand(3, 2))], torch.tensor([0, 6, 9])
    reducer: ShardReducer = OtherShard()
    (block,) = make_blocks(segments, labels, item_bytes=4, budget=MemoryBudget(), reducer=reducer)
    assert isinstance(block.own, ListedEntries)
    assert block.own.rows.tolist() == [1]
    assert block.own.columns.tolist() == [1]


def test_blocks_are_views_of_the_proxies_in_the_compute_dtype() -> None:
    proxies = torch.rand(4, 2)
    blocks = make_blocks(
        [ProxySegment(0, proxies)], torch.tensor([0]), item_bytes=4, budget=MemoryBudget()
    )
    ((_, same),) = iter_blocks(blocks, [proxies], torch.float32)
    ((_, wide),) = iter_blocks(blocks, [proxies], torch.float64)
    assert same.data_ptr() == proxies.data_ptr()
    assert wide.dtype == torch.float64


def test_scratch_buffers_are_reused_by_name_and_grow() -> None:
    buffers = ScratchBuffers()
    small, large = torch.rand(2, 3).T, torch.rand(4, 5)
    first = buffers.buffer_like("a", small)
    assert first.shape == small.shape
    assert first.stride() == small.stride()
    assert buffers.buffer_like("a", torch.rand(6)).data_ptr() == first.data_ptr()
    assert buffers.buffer_like("b", small).data_ptr() != first.data_ptr()
    assert buffers.buffer_like("a", large).shape == (4, 5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("length", [1e-30, 1e-19, 1.0, 1e19, 1e30])
def test_norms_of_any_finite_length(length: float, dtype: torch.dtype) -> None:
    vectors = torch.tensor([[3.0, 4.0], [0.0, 1.0]], dtype=dtype) * length
    inverse = inverse_norms(vectors)
    expected = torch.tensor([0.2 / length, 1.0 / length], dtype=dtype)
    torch.testing.assert_close(inverse, expected, rtol=1e-5, atol=0.0)
    torch.testing.assert_close(unit_rows(vectors)[0], torch.tensor([0.6, 0.8], dtype=dtype))


def test_known_squares_give_the_same_norms() -> None:
    vectors = torch.tensor([[3.0, 4.0], [0.0, 2.0]])
    squares = vectors.square().sum(dim=1)
    torch.testing.assert_close(inverse_norms(vectors, squares), inverse_norms(vectors))


def test_a_zero_vector_stays_zero_and_has_no_gradient() -> None:
    vectors = torch.tensor([[0.0, 0.0], [3.0, 4.0]], requires_grad=True)
    assert inverse_norms(vectors)[0] == 0
    rows = unit_rows(vectors)
    assert rows[0].tolist() == [0.0, 0.0]
    (gradient,) = torch.autograd.grad(rows.sum(), vectors)
    assert gradient[0].tolist() == [0.0, 0.0]
    assert torch.isfinite(gradient).all()


def test_half_precision_is_computed_in_float32() -> None:
    half, single, double = (
        torch.zeros(1, dtype=t) for t in (torch.float16, torch.float32, torch.float64)
    )
    assert widest_dtype(half) == widest_dtype(half, single) == torch.float32
    assert widest_dtype(half, double) == torch.float64


def test_similarities_are_kept_up_to_the_budget() -> None:
    plain, several = (
        [ProxySegment(0, torch.empty(*shape, device="meta"))] for shape in ((100, 8), (100, 2, 8))
    )
    bytes_needed = 10 * 100 * 4
    assert similarities_fit_budget(plain, 10, 4, MemoryBudget(keep_bytes=bytes_needed))
    assert not similarities_fit_budget(plain, 10, 4, MemoryBudget(keep_bytes=bytes_needed - 1))
    # Two proxies, the class, the sum of the weights and their shift.
    assert similarities_fit_budget(several, 10, 4, MemoryBudget(keep_bytes=5 * bytes_needed))
    assert not similarities_fit_budget(several, 10, 4, MemoryBudget(keep_bytes=4 * bytes_needed))


def test_powers_of_two_never_underflow_in_float32() -> None:
    powers = floored_exp2_(torch.tensor([0.0, -1.0, -200.0]))
    assert powers[:2].tolist() == [1.0, 0.5]
    assert float(powers[2]) == pytest.approx(math.exp(-60.0), rel=1e-4)
    assert float(floored_exp2_(torch.tensor(-200.0, dtype=torch.float64))) == 2.0**-200


def test_a_narrow_output_is_rounded_once_at_the_end() -> None:
    out = torch.zeros(1, dtype=torch.bfloat16)
    with widened_output(out, torch.float32) as result:
        result.zero_()
        for _ in range(256):
            result += 1.0 / 256  # would be lost in bfloat16
    assert float(out) == 1.0
    same = torch.zeros(1)
    with widened_output(same, torch.float32) as result:
        assert result is same
