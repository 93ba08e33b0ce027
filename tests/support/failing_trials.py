"""Trials in which something goes wrong, on the real path: Tune, its actor, worker and training."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import torch

from trainables.trial import StudyTrial
from trainables.workbench import Bench
from trainables.worker import Worker


class TroubledTrial(StudyTrial):
    """What strikes a trial of the contrastive loss depends on its number; see `TROUBLES`."""

    def step(self) -> dict[str, Any]:
        """One epoch, with what strikes it."""
        assert isinstance(self._crew, Worker)
        spec = self._crew._spec
        assert spec is not None
        number = int(spec.trial.rsplit("-", 1)[1])
        trouble = TROUBLES.get(number) if spec.loss == STRUCK else None
        with trouble(self._crew) if trouble else contextlib.nullcontext():
            return super().step()


@contextlib.contextmanager
def unreadable(worker: Worker) -> Iterator[None]:
    """The disk with the data does not answer."""
    with mock.patch.object(Bench, "data", side_effect=OSError(5, "Input/output error")):
        yield


@contextlib.contextmanager
def out_of_memory(worker: Worker) -> Iterator[None]:
    """As CUDA says it, in the middle of a training step."""
    error = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 is full.")
    with mock.patch.object(torch.Tensor, "backward", side_effect=error):
        yield


@contextlib.contextmanager
def poisoned(worker: Worker) -> Iterator[None]:
    """After an epoch a weight is no longer a number, so neither is the loss."""
    if worker._training is not None:
        weights = next(iter(worker._training.replicas[0].model.head.parameters()))
        weights.data.fill_(torch.nan)
    yield


@contextlib.contextmanager
def killed_once(worker: Worker) -> Iterator[None]:
    """After its second epoch the process is killed, as by the kernel when memory runs out."""
    training, spec = worker._training, worker._spec
    assert spec is not None
    marker = Path(spec.checkpoint_dir) / f"{spec.trial}.killed"
    if training is not None and training.epoch == 2 and not marker.exists():
        marker.write_text("")
        os.kill(os.getpid(), signal.SIGKILL)
    yield


@contextlib.contextmanager
def broken_device(worker: Worker) -> Iterator[None]:
    """As CUDA says it after a device-side assertion: from here on this process computes nothing."""
    error = RuntimeError("CUDA error: device-side assert triggered")
    mock.patch.object(torch.Tensor, "backward", side_effect=error).start()
    yield


STRUCK = "contrastive"
TROUBLES = {1: unreadable, 2: out_of_memory, 3: poisoned, 4: killed_once, 5: broken_device}
