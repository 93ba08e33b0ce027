"""Trials that fail in various ways, with the real Tune trainable, worker and trainer."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import torch

from trainables.actors.trainable import StudyTrial
from trainables.actors.worker import TrialWorker
from trainables.training.context import TrainingContext


class FailingTrial(StudyTrial):
    """Trial of `FAILING_LOSS` with the fault of its number in `FAULTS`; others train normally."""

    def step(self) -> dict[str, Any]:
        """Train one epoch with the fault of the trial."""
        assert isinstance(self._workers, TrialWorker)
        spec = self._workers._spec
        assert spec is not None
        number = int(spec.trial.rsplit("-", 1)[1])
        fault = FAULTS.get(number) if spec.loss == FAILING_LOSS else None
        with fault(self._workers) if fault else contextlib.nullcontext():
            return super().step()


@contextlib.contextmanager
def fail_reading_data(worker: TrialWorker) -> Iterator[None]:
    """Raise an input/output error when the data is prepared."""
    with mock.patch.object(
        TrainingContext, "prepare_data", side_effect=OSError(5, "Input/output error")
    ):
        yield


@contextlib.contextmanager
def run_out_of_memory(worker: TrialWorker) -> Iterator[None]:
    """Raise CUDA's out-of-memory error in a training step."""
    error = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 is full.")
    with mock.patch.object(torch.Tensor, "backward", side_effect=error):
        yield


@contextlib.contextmanager
def set_weights_to_nan(worker: TrialWorker) -> Iterator[None]:
    """Set the weights to NaN after the first epoch, so that the loss is NaN."""
    if worker._training is not None:
        weights = next(iter(worker._training.replicas[0].model.head.parameters()))
        weights.data.fill_(torch.nan)
    yield


@contextlib.contextmanager
def kill_worker_once(worker: TrialWorker) -> Iterator[None]:
    """Kill the process after its second epoch, as the kernel does when memory runs out."""
    training, spec = worker._training, worker._spec
    assert spec is not None
    marker = Path(spec.checkpoint_dir) / f"{spec.trial}.killed"
    if training is not None and training.epoch == 2 and not marker.exists():
        marker.write_text("")
        os.kill(os.getpid(), signal.SIGKILL)
    yield


@contextlib.contextmanager
def break_device(worker: TrialWorker) -> Iterator[None]:
    """Raise a device-side assertion in this and all later steps of the process."""
    error = RuntimeError("CUDA error: device-side assert triggered")
    mock.patch.object(torch.Tensor, "backward", side_effect=error).start()
    yield


FAILING_LOSS = "contrastive"
FAULTS = {
    1: fail_reading_data,
    2: run_out_of_memory,
    3: set_weights_to_nan,
    4: kill_worker_once,
    5: break_device,
}
