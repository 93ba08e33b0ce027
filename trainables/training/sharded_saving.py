"""Saving of sharded tensors in torch's file format without gathering them in memory.

The file is first written as torch would write it, with placeholders for the bytes of tensors. Then
the bytes are filled in; those of sharded tensors arrive from the ranks in pieces. The file loads
like one written by a single process (only the zip check sums, which torch does not verify, are
those of the placeholders), and the first rank never holds more than one piece of other ranks' rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import IO, Any

import torch
from torch import Tensor

from trainables.distributed.world import World


class ShardedTensor:
    """A tensor whose rows are distributed over ranks. Each rank has an instance and uses it once.

    Args:
        rows: The rows of this rank.
        total: Number of rows of all ranks.
        world: The ranks.
    """

    def __init__(self, rows: Tensor, total: int, world: World) -> None:
        self.pieces = world.gather_in_pieces(rows, total)
        self._shape_and_dtype = ((total, *rows.shape[1:]), rows.dtype)
        self._placeholder: Tensor | None = None

    def finish_exchange(self) -> None:
        """Exchange the remaining pieces, because the other ranks wait for them."""
        for _ in self.pieces:
            pass

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Pickle like the complete tensor, without its bytes."""
        shape, dtype = self._shape_and_dtype
        with _fake_tensor_mode():  # kept alive: torch identifies storages by address
            self._placeholder = torch.empty(shape, dtype=dtype)
        return self._placeholder.__reduce_ex__(protocol)  # type: ignore[no-untyped-call]


def find_sharded_tensors(payload: Any) -> list[ShardedTensor]:
    """Return the sharded tensors of a payload in the order in which they are saved."""
    return [leaf for leaf in _iter_leaves(payload) if isinstance(leaf, ShardedTensor)]


def save_sharded(payload: Mapping[str, Any], file: IO[bytes]) -> None:
    """Save a payload with sharded tensors, like `torch.save`.

    Args:
        payload: Nested mappings and sequences of tensors, sharded tensors and plain values.
        file: A file that is open for writing and reading.

    Raises:
        OSError: If the disk rejects it.
    """
    with torch.serialization.skip_data(materialize_fake_tensors=True):
        torch.save(payload, file)
    file.seek(0)
    with _fake_tensor_mode():
        placeholders = torch.load(file, map_location="cpu", weights_only=True)
    for leaf, placeholder in zip(_iter_leaves(payload), _iter_leaves(placeholders), strict=True):
        if isinstance(placeholder, Tensor) and placeholder.untyped_storage().nbytes():
            offset = placeholder.untyped_storage()._checkpoint_offset
            if offset is None:
                raise RuntimeError("this version of torch does not report the offsets of tensors")
            file.seek(offset)
            for piece in leaf.pieces if isinstance(leaf, ShardedTensor) else [_storage_bytes(leaf)]:
                file.write(piece.contiguous().flatten().view(torch.uint8).numpy().data)


def _fake_tensor_mode() -> Any:
    """Return a context manager in which tensors have shape and dtype, but no memory."""
    from torch._subclasses.fake_tensor import FakeTensorMode  # slow to import

    return FakeTensorMode()


def _storage_bytes(tensor: Tensor) -> Tensor:
    """Return the bytes that torch saves for a tensor: those of its complete storage."""
    return torch.empty(0, dtype=torch.uint8).set_(tensor.untyped_storage().cpu())  # type: ignore[no-untyped-call]


def _iter_leaves(payload: Any) -> Iterator[Any]:
    if isinstance(payload, Mapping):
        payload = list(payload.values())
    if not isinstance(payload, (list, tuple)):
        yield payload
        return
    for part in payload:
        yield from _iter_leaves(part)
