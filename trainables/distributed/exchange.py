"""Exchanges between ranks that have begun, and the errors of their backend."""

from __future__ import annotations

from typing import Any, Protocol

from torch import Tensor

from trainables.utils.device_errors import ErrorKind, classify_error

_PEER_ERRORS = (ErrorKind.RANK_LOST, ErrorKind.OTHER)


class WorldError(RuntimeError):
    """A collective operation failed because another rank has exited."""


class PendingExchange(Protocol):
    """An exchange that has begun; its tensor must not be used before `wait`."""

    def wait(self) -> None:
        """Return when the tensor may be used; on a GPU the stream waits and not the host."""


class FinishedExchange:
    """An exchange that is complete."""

    def wait(self) -> None:
        """Return at once."""


class PendingAllReduce:
    """A sum that torch's process group computes.

    Args:
        work: Handle of the process group.
        sent: Tensor that the process group writes to.
        values: Tensor that receives the sum.
    """

    def __init__(self, work: Any, sent: Tensor, values: Tensor) -> None:
        self._work, self._sent, self._values = work, sent, values

    def wait(self) -> None:
        """Return when the tensor may be used."""
        with BackendErrorTranslator():
            self._work.wait()
        copy_back(self._sent, self._values)


class BackendErrorTranslator:
    """Context manager that turns errors of the backend into a WorldError.

    Errors of this rank's own device stay what they are: lack of memory is not a lost rank.
    """

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        is_peer_error = classify_error(error) in _PEER_ERRORS if error else False
        if isinstance(error, RuntimeError) and is_peer_error:
            raise WorldError(f"a rank has exited: {error}") from error


def copy_back(sent: Tensor, values: Tensor) -> None:
    """Copy what was received to the tensor itself, if a copy of it was sent."""
    if sent.data_ptr() != values.data_ptr():
        values.detach().copy_(sent)
