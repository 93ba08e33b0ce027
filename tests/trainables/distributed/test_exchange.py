"""Exchanges that have begun, and the errors of their backend."""

from __future__ import annotations

import pytest
import torch

from trainables.distributed.exchange import (
    BackendErrorTranslator,
    FinishedExchange,
    PendingAllReduce,
    WorldError,
    copy_back,
)


class StubWork:
    """Work of a process group that writes ones when it is waited for, or fails."""

    def __init__(self, sent: torch.Tensor, error: Exception | None = None) -> None:
        self.sent, self.error = sent, error

    def wait(self) -> None:
        if self.error is not None:
            raise self.error
        self.sent.fill_(1.0)


def test_a_sum_is_copied_back_to_the_tensor_that_could_not_be_sent() -> None:
    values = torch.zeros(3, 2).T
    sent = values.contiguous()
    exchange = PendingAllReduce(StubWork(sent), sent, values)
    assert not values.any()
    exchange.wait()
    assert values.all()


def test_an_error_while_waiting_is_a_world_error() -> None:
    values = torch.zeros(2)
    error = RuntimeError("Connection closed by peer")
    with pytest.raises(WorldError, match="Connection closed by peer"):
        PendingAllReduce(StubWork(values, error), values, values).wait()


def test_other_errors_are_left_alone() -> None:
    with pytest.raises(KeyError), BackendErrorTranslator():
        raise KeyError("x")


def test_a_tensor_that_was_sent_itself_is_not_copied() -> None:
    values = torch.zeros(2)
    copy_back(values, values)
    FinishedExchange().wait()
    assert values._version == 0
