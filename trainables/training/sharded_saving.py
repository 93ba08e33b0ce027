"""How is a tensor saved that no rank holds whole?

The file is laid out first, as torch would write it, with room for the tensors; then their bytes are
filled in, those of spread tensors as they come from the ranks. So it loads as the file that one
process would have written (the zip's check sums, which torch does not look at, are of empty
tensors), and the first rank never holds more than a piece of the others' rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import IO, Any

import torch
from torch import Tensor

from trainables.world import World


class Spread:
    """A tensor whose rows are spread over ranks; each rank has one of these, and uses it once.

    Args:
        rows: This rank's.
        total: Rows over all ranks.
        world: The ranks.
    """

    def __init__(self, rows: Tensor, total: int, world: World) -> None:
        self.pieces = world.collect(rows, total)
        self._form = ((total, *rows.shape[1:]), rows.dtype)
        self._stand_in: Tensor | None = None

    def finish(self) -> None:
        """Exchange what has not been exchanged yet: the other ranks wait for it."""
        for _ in self.pieces:
            pass

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Saved as the whole tensor would be, but for its bytes."""
        shape, dtype = self._form
        with _no_bytes():  # kept: torch tells storages apart by their address
            self._stand_in = torch.empty(shape, dtype=dtype)
        return self._stand_in.__reduce_ex__(protocol)  # type: ignore[no-untyped-call]


def spread_in(payload: Any) -> list[Spread]:
    """The spread tensors of a payload, in the order in which they are saved."""
    return [leaf for leaf in _leaves(payload) if isinstance(leaf, Spread)]


def write_spread(payload: Mapping[str, Any], file: IO[bytes]) -> None:
    """As `torch.save`, of a payload that holds spread tensors; the file is open for reading, too.

    Raises:
        OSError: The disk does not take it.
    """
    with torch.serialization.skip_data(materialize_fake_tensors=True):
        torch.save(payload, file)
    file.seek(0)
    with _no_bytes():
        laid_out = torch.load(file, map_location="cpu", weights_only=True)
    for leaf, place in zip(_leaves(payload), _leaves(laid_out), strict=True):
        if isinstance(place, Tensor) and place.untyped_storage().nbytes():
            offset = place.untyped_storage()._checkpoint_offset
            if offset is None:
                raise RuntimeError("this torch does not say where in a file a tensor's bytes are")
            file.seek(offset)
            for piece in leaf.pieces if isinstance(leaf, Spread) else [_stored(leaf)]:
                file.write(piece.contiguous().flatten().view(torch.uint8).numpy().data)


def _no_bytes() -> Any:
    """Within it tensors have a form, and no memory."""
    from torch._subclasses.fake_tensor import FakeTensorMode  # takes a second

    return FakeTensorMode()


def _stored(tensor: Tensor) -> Tensor:
    """The bytes that torch saves of a tensor: all its storage, of which it may be a part."""
    return torch.empty(0, dtype=torch.uint8).set_(tensor.untyped_storage().cpu())  # type: ignore[no-untyped-call]


def _leaves(payload: Any) -> Iterator[Any]:
    if isinstance(payload, Mapping):
        payload = list(payload.values())
    if not isinstance(payload, (list, tuple)):
        yield payload
        return
    for part in payload:
        yield from _leaves(part)
