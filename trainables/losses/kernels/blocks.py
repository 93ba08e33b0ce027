"""How does a loss walk over more proxies than fit beside the batch?

Proxies come as *segments*: a first class number and a tensor of proxies of consecutive classes,
(classes, dim) or (classes, K, dim). The trained proxies are one segment, synthetic ones another,
and a rank that owns a shard passes just its own. A walk cuts segments into blocks small enough for
the cache, so that a block's similarities are read while they are still warm.

The seam for several ranks is `Reducer`: whatever a core sums or maximises over blocks it then
sums or maximises over ranks through the reducer it is given. `ALONE` does nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

# Exponentials are powers of 2, with this in the factor that the exponent has anyway: torch's own
# loop for these takes a third of the time of the one it borrows from MKL for powers of e.
LOG2_E = math.log2(math.e)

# In float32 a smaller power of 2 underflows; what does takes a slower path.
LEAST_EXPONENT = -125.0


class Segment(NamedTuple):
    """Proxies of the classes `first`, `first + 1`, ...: (classes, dim) or (classes, K, dim)."""

    first: int
    proxies: Tensor


class Reducer(Protocol):
    """Combines partial results of class shards; both methods work in place.

    A core calls these with per-sample vectors or scalars in forward, and in backward with the
    gradients of what all ranks share: the embeddings, (batch, dim), the scale, the factors of
    samples between. Every rank must hold the same embeddings and labels.
    """

    def maximum_(self, partial: Tensor) -> None:
        """Replace by the elementwise maximum over all shards."""

    def sum_(self, partial: Tensor) -> None:
        """Replace by the sum over all shards."""


class _Alone:
    """One shard holds all classes: there is nothing to combine."""

    def maximum_(self, partial: Tensor) -> None:
        return None

    def sum_(self, partial: Tensor) -> None:
        return None


ALONE: Reducer = _Alone()


KEEP_MIB = 384.0
"""Similarities kept for backward by default: 180 samples with 500,000 classes."""


@dataclass(frozen=True)
class Budget:
    """How much memory the similarities of a batch with all proxies may take.

    Args:
        keep_bytes: Up to here the similarities are kept from forward to backward (3 matrix
            products). Above it nothing of size batch x classes exists at any time and
            backward computes the similarities again (4 products).
        block_bytes: Size of one block of similarities; 0 chooses by device.
    """

    keep_bytes: int = int(KEEP_MIB * 2**20)
    block_bytes: int = 0


class Rooms:
    """Memory for the numbers of one block, used again for the next.

    A new block of memory costs more than what is written to it.
    """

    def __init__(self) -> None:
        self._rooms: dict[str, Tensor] = {}

    def like(self, name: str, model: Tensor) -> Tensor:
        """The room of this name, with the model's shape and strides; what it holds is anyone's.

        The model has no gaps.
        """
        room = self._rooms.get(name)
        if room is None or len(room) < model.numel():
            room = self._rooms[name] = model.new_empty(model.numel())
        return room.as_strided(model.shape, model.stride())


class Block(NamedTuple):
    """Consecutive rows of one segment, and the samples whose own class is among them.

    `rows[i]` is a sample of the batch, `columns[i]` its class counted from the block's start.
    """

    segment: int
    start: int
    stop: int
    rows: Tensor
    columns: Tensor


def compute_dtype(*tensors: Tensor) -> torch.dtype:
    """The widest dtype among the tensors, at least float32: halves are only storage."""
    return torch.float64 if any(t.dtype == torch.float64 for t in tensors) else torch.float32


def full_precision(tensor: Tensor) -> AbstractContextManager[object]:
    """Switches autocast off on the tensor's device; costs nothing where it is off."""
    device = tensor.device.type
    on = torch.is_autocast_enabled(device)
    return torch.autocast(device, enabled=False) if on else nullcontext()


def cut(
    segments: Sequence[Segment],
    labels: Tensor,
    *,
    item_bytes: int,
    budget: Budget,
    reducer: Reducer = ALONE,
) -> list[Block]:
    """Blocks that cover all segments; each sample is listed in the one block of its class."""
    edges: list[tuple[int, int, int]] = []
    for index, (_, proxies) in enumerate(segments):
        width = _block_width(proxies, len(labels) * item_bytes, budget)
        edges += [
            (index, start, min(start + width, len(proxies)))
            for start in range(0, len(proxies), width)
        ]
    if len(edges) == 1 and reducer is ALONE:
        # Every sample's class is in the only block.
        rows = torch.arange(len(labels), device=labels.device)
        return [Block(*edges[0], rows, labels - segments[0].first if segments[0].first else labels)]
    ordered, order = torch.sort(labels)
    firsts = [segments[i].first for i, _, _ in edges]
    lows = [first + start for first, (_, start, _) in zip(firsts, edges, strict=True)]
    highs = [first + stop for first, (_, _, stop) in zip(firsts, edges, strict=True)]
    # One transfer for all blocks: asking each block for its samples would stall a GPU each time.
    bounds = torch.searchsorted(ordered, labels.new_tensor(lows + highs)).tolist()
    blocks = []
    for edge, low, start, stop in zip(edges, lows, bounds, bounds[len(edges) :], strict=False):
        blocks.append(Block(*edge, order[start:stop], ordered[start:stop] - low))
    return blocks


def _block_width(proxies: Tensor, bytes_per_proxy: int, budget: Budget) -> int:
    per_class = bytes_per_proxy * (proxies.shape[1] if proxies.dim() == 3 else 1)
    # Measured: larger blocks leave the caches, smaller ones are many small operations. A GPU wants
    # few large kernels.
    block_bytes = budget.block_bytes or (2**23 if proxies.device.type == "cpu" else 2**26)
    return max(1, block_bytes // max(per_class, 1))


def inverse_norms(vectors: Tensor, squares: Tensor | None = None) -> Tensor:
    """1 / length of each row; 0 for a zero vector, which then has no direction and no gradient.

    Who has the squared lengths at hand saves reading the vectors.
    """
    inverse: Tensor
    if vectors.dtype == torch.float32 and vectors.device.type != "cpu":
        # In float64 nothing leaves the range, and nobody waits for the device to say so.
        norms = torch.linalg.vector_norm(vectors, dim=-1, dtype=torch.float64).to(torch.float32)
    else:
        norms = torch.linalg.vector_norm(vectors, dim=-1) if squares is None else squares.sqrt()
        if _in_range(norms.detach()):
            return norms.reciprocal()
        norms = _scaled_norms(vectors)
    # A zero vector has the gradient zero: it is a constant to the choice, so 1 / 0 stays out.
    tiny = torch.finfo(norms.dtype).tiny
    inverse = norms.masked_fill(norms < tiny, torch.inf).reciprocal()
    return inverse


def _in_range(norms: Tensor) -> bool:
    """Whether the squares that these were made of are far from the ends of their range."""
    if norms.numel() == 0:
        return True
    info = torch.finfo(norms.dtype)
    low, high = (info.tiny / info.eps**2) ** 0.5, (info.max * info.eps) ** 0.5
    least, largest = torch.aminmax(norms)
    return bool(float(least) > low and float(largest) < high)


def unit_rows(vectors: Tensor) -> Tensor:
    """Rows of length one, differentiable at any finite length; a zero row stays zero."""
    # Only directions count, so a factor per row is a constant; it keeps 1 / length^2, which
    # backward needs, within range.
    largest = vectors.detach().abs().amax(dim=-1, keepdim=True)
    vectors = vectors / largest.masked_fill(largest == 0, 1.0)
    return vectors * inverse_norms(vectors)[..., None]


def _scaled_norms(vectors: Tensor) -> Tensor:
    """Lengths of rows, also where their squares leave the range (1e19 or 1e-19 in float32)."""
    largest = vectors.detach().abs().amax(dim=-1, keepdim=True)
    largest = largest.masked_fill(largest == 0, 1.0)
    scaled: Tensor = torch.linalg.vector_norm(vectors / largest, dim=-1)
    return scaled * largest[..., 0]


def own_similarities_fit(
    segments: Sequence[Segment], batch: int, item_bytes: int, budget: Budget
) -> bool:
    """Whether batch x proxies similarities may be kept for backward.

    With several proxies per class these are theirs, the class's, the sum of the weights and what
    these are relative to.
    """
    planes = sum(p.shape[0] * (p.shape[1] + 3 if p.dim() == 3 else 1) for _, p in segments)
    return batch * planes * item_bytes <= budget.keep_bytes


def iterate(
    blocks: Sequence[Block], proxies: Sequence[Tensor], dtype: torch.dtype
) -> Iterator[tuple[Block, Tensor]]:
    """Each block with its proxies in the compute dtype (a view where they already have it)."""
    for block in blocks:
        yield block, proxies[block.segment][block.start : block.stop].to(dtype)


def floored_exp2_(exponents: Tensor) -> Tensor:
    """2 to the power, in place, of exponents whose largest is about 0.

    In float32 results that underflow take a slower path, and e^-60 is as good as nothing beside
    1: times all classes of the world it is below the rounding of 1.
    """
    if exponents.dtype == torch.float32:
        exponents.clamp_(min=-60.0 * LOG2_E)
    return exponents.exp2_()


def write_gradient(
    out: Tensor | None, g: Tensor, x: Tensor, p: Tensor, along: Tensor | None
) -> None:
    """Write g^T x - along * p, a block of the proxies' gradient; None wants none."""
    if out is None:
        return
    with wide(out, x.dtype) as result:
        torch.mm(g.T, x, out=result)
        if along is not None:
            result.addcmul_(p, along[:, None], value=-1.0)


@contextmanager
def wide(out: Tensor, dtype: torch.dtype) -> Iterator[Tensor]:
    """`out` itself where it has the dtype, else a wide tensor, rounded into it at the end."""
    result = out if out.dtype == dtype else torch.empty_like(out, dtype=dtype)
    yield result
    if result is not out:
        out.copy_(result)
