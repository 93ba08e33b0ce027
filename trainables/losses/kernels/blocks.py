"""Blocks of proxies: iteration, memory budget, scratch buffers and normalisation.

Proxies come as *segments*: a first class number and a tensor of proxies of consecutive classes,
(classes, dim) or (classes, K, dim). The trained proxies are one segment, synthetic ones another,
and a rank with a shard passes only its own. Kernels cut segments into blocks that fit the cache, so
that the similarities of a block are read while they are cached.

`ShardReducer` is the interface to several ranks: everything that a kernel sums or maximises over
blocks it then sums or maximises over ranks through its reducer. `SINGLE_SHARD` does nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from trainables.losses.kernels.own_entries import (
    ListedEntries,
    MaskedEntries,
    OwnEntries,
    can_read_values,
)

# Exponentials are computed as powers of 2, with this factor in the scale of the exponent: torch's
# own loop for exp2 takes a third of the time of MKL's exp.
LOG2_E = math.log2(math.e)

# Size of a block of similarities on a GPU, which needs few large kernels.
_DEVICE_BLOCK_BYTES = 2**26

# In float32 a smaller power of 2 underflows, and denormal numbers are slow.
MIN_FLOAT32_EXPONENT = -125.0


class ProxySegment(NamedTuple):
    """Proxies of the classes `first`, `first + 1`, ...: (classes, dim) or (classes, K, dim)."""

    first: int
    proxies: Tensor


class ShardReducer(Protocol):
    """Combines partial results of class shards; both methods work in place.

    Kernels call these with per-sample vectors or scalars in forward, and in backward with the
    gradients of values that all ranks share: the embeddings, (batch, dim), the scale and the
    factors of interpolated samples. Every rank must have the same embeddings and labels.
    """

    def all_reduce_max_(self, partial: Tensor) -> None:
        """Replace the tensor by its elementwise maximum over all shards."""

    def all_reduce_sum_(self, partial: Tensor) -> None:
        """Replace the tensor by its sum over all shards."""


class _SingleShardReducer:
    """One shard has all classes: there is nothing to combine."""

    def all_reduce_max_(self, partial: Tensor) -> None:
        return None

    def all_reduce_sum_(self, partial: Tensor) -> None:
        return None


SINGLE_SHARD: ShardReducer = _SingleShardReducer()


DEFAULT_KEEP_MIB = 384.0
"""Default memory for similarities kept for backward: enough for 180 samples, 500,000 classes."""


@dataclass(frozen=True)
class MemoryBudget:
    """Memory for the similarities of a batch with all proxies.

    Args:
        keep_bytes: Up to this size the similarities are kept from forward to backward (3 matrix
            products). Above it no tensor of size batch x classes exists at any time, and backward
            computes the similarities again (4 products).
        block_bytes: Size of one block of similarities; 0 chooses by device.
    """

    keep_bytes: int = int(DEFAULT_KEEP_MIB * 2**20)
    block_bytes: int = 0


class ScratchBuffers:
    """Named scratch buffers for one block, reused for the next.

    Allocating a new buffer costs more time than writing to it.
    """

    def __init__(self) -> None:
        self._buffers: dict[str, Tensor] = {}

    def buffer_like(self, name: str, model: Tensor) -> Tensor:
        """Return a named scratch buffer shaped like `model`; its contents are undefined.

        `model` must be dense: its elements fill its memory without gaps.
        """
        buffer = self._buffers.get(name)
        if buffer is None or len(buffer) < model.numel():
            buffer = self._buffers[name] = model.new_empty(model.numel())
        return buffer.as_strided(model.shape, model.stride())


class ProxyBlock(NamedTuple):
    """Consecutive rows of one segment, and the entries of their own samples.

    Args:
        segment: Number of the segment.
        start: First row in the segment.
        stop: Row after the last one.
        own: Entries of the samples whose own class is in the block.
        unused: Mask of rows that are no classes of this step; None uses all.
    """

    segment: int
    start: int
    stop: int
    own: OwnEntries
    unused: Tensor | None = None


def widest_dtype(*tensors: Tensor) -> torch.dtype:
    """Return the widest dtype of the tensors, at least float32: half precision is only storage."""
    return torch.float64 if any(t.dtype == torch.float64 for t in tensors) else torch.float32


def make_blocks(
    segments: Sequence[ProxySegment],
    labels: Tensor,
    *,
    item_bytes: int,
    budget: MemoryBudget,
    reducer: ShardReducer = SINGLE_SHARD,
    unused: Tensor | None = None,
) -> list[ProxyBlock]:
    """Return blocks that cover all segments; each sample has an entry in the block of its class.

    `unused` is a mask of the classes of the first segment that are no classes of this step; only
    devices other than the CPU use it.
    """
    edges: list[tuple[int, int, int]] = []
    for index, (_, proxies) in enumerate(segments):
        width = _block_width(proxies, len(labels) * item_bytes, budget)
        edges += [
            (index, start, min(start + width, len(proxies)))
            for start in range(0, len(proxies), width)
        ]
    if len(edges) == 1 and reducer is SINGLE_SHARD:
        # The only block has the classes of all samples.
        columns = labels - segments[0].first if segments[0].first else labels
        if not can_read_values(labels):
            return [ProxyBlock(*edges[0], MaskedEntries(columns), unused)]
        rows = torch.arange(len(labels), device=labels.device)
        return [ProxyBlock(*edges[0], ListedEntries(rows, columns))]
    if not can_read_values(labels):
        return [
            ProxyBlock(
                index,
                start,
                stop,
                MaskedEntries.from_labels(labels, segments[index].first + start, stop - start),
                None if unused is None or index != 0 else unused[start:stop],
            )
            for index, start, stop in edges
        ]
    ordered, order = torch.sort(labels)
    firsts = [segments[i].first for i, _, _ in edges]
    lows = [first + start for first, (_, start, _) in zip(firsts, edges, strict=True)]
    highs = [first + stop for first, (_, _, stop) in zip(firsts, edges, strict=True)]
    bounds = torch.searchsorted(ordered, labels.new_tensor(lows + highs)).tolist()
    blocks = []
    for edge, low, start, stop in zip(edges, lows, bounds, bounds[len(edges) :], strict=False):
        blocks.append(
            ProxyBlock(*edge, ListedEntries(order[start:stop], ordered[start:stop] - low))
        )
    return blocks


def merge_segments(
    segments: Sequence[ProxySegment], batch: int, budget: MemoryBudget
) -> list[ProxySegment]:
    """Return adjacent segments as one, if that is better for their device; differentiable.

    A device other than the CPU then starts half the kernels. It copies the proxies, so this is for
    small ones only, whose similarities fit into one block.
    """
    first, proxies = segments[0]
    total = sum(len(p) for _, p in segments)
    is_adjacent = len(segments) == 2 and segments[1].first == first + len(proxies)
    if not is_adjacent or can_read_values(proxies) or proxies.dtype != segments[1].proxies.dtype:
        return list(segments)
    bytes_per_class = proxies.element_size() * proxies[:1].numel() if len(proxies) else 0
    is_small = total * bytes_per_class <= _DEVICE_BLOCK_BYTES
    fits = total <= _block_width(proxies, batch * proxies.element_size(), budget)
    return (
        [ProxySegment(first, torch.cat([p for _, p in segments]))]
        if is_small and fits
        else list(segments)
    )


def _block_width(proxies: Tensor, bytes_per_proxy: int, budget: MemoryBudget) -> int:
    per_class = bytes_per_proxy * (proxies.shape[1] if proxies.dim() == 3 else 1)
    # Measured: larger blocks leave the caches, smaller ones are many small operations.
    block_bytes = budget.block_bytes or (2**23 if can_read_values(proxies) else _DEVICE_BLOCK_BYTES)
    return max(1, block_bytes // max(per_class, 1))


def inverse_norms(vectors: Tensor, squares: Tensor | None = None) -> Tensor:
    """Return 1 / length of each row; 0 for a zero vector, which then has no gradient.

    Args:
        vectors: Rows of vectors.
        squares: Squared lengths of the rows, if known; the vectors are then not read.
    """
    inverse: Tensor
    if vectors.dtype == torch.float32 and not can_read_values(vectors):
        # In float64 the squares stay in range, so no check has to wait for the device.
        norms = torch.linalg.vector_norm(vectors, dim=-1, dtype=torch.float64).to(torch.float32)
    elif not can_read_values(vectors):
        norms = _scaled_norms(vectors)
    else:
        norms = torch.linalg.vector_norm(vectors, dim=-1) if squares is None else squares.sqrt()
        if _squares_in_range(norms.detach()):
            return norms.reciprocal()
        norms = _scaled_norms(vectors)
    # masked_fill is constant for zero vectors: their gradient is zero, and 1 / 0 does not occur.
    tiny = torch.finfo(norms.dtype).tiny
    inverse = norms.masked_fill(norms < tiny, torch.inf).reciprocal()
    return inverse


def _squares_in_range(norms: Tensor) -> bool:
    """Whether the squares of these norms are far from underflow and overflow."""
    if norms.numel() == 0:
        return True
    info = torch.finfo(norms.dtype)
    low, high = (info.tiny / info.eps**2) ** 0.5, (info.max * info.eps) ** 0.5
    smallest, largest = torch.aminmax(norms)
    return bool(float(smallest) > low and float(largest) < high)


def unit_rows(vectors: Tensor) -> Tensor:
    """Return rows of length one, differentiable at any finite length; a zero row stays zero."""
    if vectors.dtype == torch.float32 and not can_read_values(vectors):
        rows: Tensor = _UnitRowsFunction.apply(vectors)  # type: ignore[no-untyped-call]
        return rows
    # The result depends on directions only, so a constant factor per row is allowed; it keeps
    # 1 / length^2, which backward computes, within range.
    largest = vectors.detach().abs().amax(dim=-1, keepdim=True)
    vectors = vectors / largest.masked_fill(largest == 0, 1.0)
    return vectors * inverse_norms(vectors)[..., None]


class _UnitRowsFunction(torch.autograd.Function):
    """Rows of length one in few kernels; norms in float64 stay in range."""

    @staticmethod
    def forward(ctx: Any, vectors: Tensor) -> Tensor:
        inverse = inverse_norms(vectors)[..., None]
        rows = vectors * inverse
        ctx.save_for_backward(rows, inverse)
        return rows

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        rows, inverse = ctx.saved_tensors
        along = (grads[0] * rows).sum(dim=-1, keepdim=True)
        return torch.addcmul(grads[0], rows, along, value=-1.0).mul_(inverse)


def _scaled_norms(vectors: Tensor) -> Tensor:
    """Return the lengths of rows, even if their squares overflow or underflow."""
    largest = vectors.detach().abs().amax(dim=-1, keepdim=True)
    largest = largest.masked_fill(largest == 0, 1.0)
    scaled: Tensor = torch.linalg.vector_norm(vectors / largest, dim=-1)
    return scaled * largest[..., 0]


def similarities_fit_budget(
    segments: Sequence[ProxySegment], batch: int, item_bytes: int, budget: MemoryBudget
) -> bool:
    """Whether the similarities of a batch with all proxies are kept for backward.

    With K proxies per class there are K + 3 numbers per sample and class: similarities to the
    proxies and to the class, the sum of the weights and their shift.
    """
    planes = sum(p.shape[0] * (p.shape[1] + 3 if p.dim() == 3 else 1) for _, p in segments)
    return batch * planes * item_bytes <= budget.keep_bytes


def iter_blocks(
    blocks: Sequence[ProxyBlock], proxies: Sequence[Tensor], dtype: torch.dtype
) -> Iterator[tuple[ProxyBlock, Tensor]]:
    """Yield each block with its proxies in the compute dtype (a view if they have it already)."""
    for block in blocks:
        yield block, proxies[block.segment][block.start : block.stop].to(dtype)


def floored_exp2_(exponents: Tensor) -> Tensor:
    """Compute 2 to the power in place, for exponents whose maximum is about 0.

    In float32 denormal results are slow, and e^-60 is negligible beside 1: times any number of
    classes it is below the rounding of 1.
    """
    if exponents.dtype == torch.float32:
        exponents.clamp_(min=-60.0 * LOG2_E)
    return exponents.exp2_()


def write_gradient(
    out: Tensor | None, g: Tensor, x: Tensor, p: Tensor, along: Tensor | None
) -> None:
    """Write g^T x - along * p, a block of the gradient of the proxies, unless `out` is None."""
    if out is None:
        return
    with widened_output(out, x.dtype) as result:
        torch.mm(g.T, x, out=result)
        if along is not None:
            result.addcmul_(p, along[:, None], value=-1.0)


@contextmanager
def widened_output(out: Tensor, dtype: torch.dtype) -> Iterator[Tensor]:
    """Yield `out` if it has the dtype, else a wider tensor that is rounded into it at the end.

    The values of the wider tensor are undefined: the caller writes before it adds.
    """
    result = out if out.dtype == dtype else torch.empty_like(out, dtype=dtype)
    yield result
    if result is not out:
        out.copy_(result)
