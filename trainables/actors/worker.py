"""Worker process of a trial: trains one spec after another, epoch by epoch.

The process, torch, the data and the backbone are reused by the next trial; only what depends on the
hyperparameters is rebuilt. An error inside a trial is reported as a result and not raised.
"""

from __future__ import annotations

import logging
import os
import socket
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from trainables.config import TrialSpec
from trainables.distributed.world import World, WorldError, trial_device
from trainables.training.context import TrainingContext, open_context
from trainables.training.errors import DivergedError
from trainables.training.trial_trainer import TrialTrainer
from trainables.utils.device import (
    configure_allocator,
    describe_gpu,
    probe_device,
    release_memory,
)
from trainables.utils.device_errors import (
    ErrorKind,
    classify_error,
    format_error_line,
    is_device_memory_full,
)
from trainables.utils.host_paths import expand_host

_logger = logging.getLogger(__name__)

CUDA_CONTEXT_BYTES = 640 * 2**20
"""GPU memory that CUDA and its libraries use per process, in addition to tensors."""


class _CheckpointUnavailableError(Exception):
    """It is unknown whether the trial has a checkpoint; a fresh start could discard epochs."""


class TrialWorker:
    """Trains the assigned trial, from its last checkpoint if one exists.

    Args:
        world: The ranks that train together, including this process; None for a single process.
    """

    def __init__(self, world: World | None = None) -> None:
        self._world = world
        self._context: tuple[Any, TrainingContext] | None = None
        self._spec: TrialSpec | None = None
        self._training: TrialTrainer | None = None
        self._gpu_name = ""
        self.device_failed = False
        """Whether an error has made this process unable to train further trials on its GPU."""

    def assign_trial(self, spec: TrialSpec) -> None:
        """Set the next trial. `step` builds it, because a build error must become a result."""
        self.release_trial()
        self._spec = spec
        release_memory(self._device)  # of a trial that was stopped early

    def release_trial(self) -> None:
        """Free the trial's memory, after a checkpoint that is being written."""
        if self._training is not None:
            self._training.finish_checkpoint()
        self._training = None

    def step(self) -> dict[str, Any]:
        """Train one epoch of all folds and seeds and return the result.

        Its `state` is `running`, `finished`, `diverged`, `failed` or `lost`. A lost trial is
        intact but cannot continue here and now, because another rank died, the storage of its
        checkpoint does not respond or its GPU failed, which then is named in `faulty_gpu`. The
        checkpoint of a finished trial is complete; that of a running one may be older than the
        report, or still be written.
        """
        epoch = self._training.epoch if self._training else 0
        result: dict[str, Any] = {"epoch": epoch, "host": socket.gethostname(), "error": ""}
        try:
            result |= self._train_next_epoch()
        except DivergedError as error:
            result |= {"state": "diverged", "error": str(error)}
        except WorldError as error:
            result |= {"state": "lost", "error": format_error_line(error)}
        except _CheckpointUnavailableError as error:
            result |= {"state": "lost", "error": str(error)}
        except Exception as error:
            result |= self._describe_failure(error)
        if result["state"] != "running":
            self.release_trial()
            release_memory(self._device)
        if result["state"] not in ("running", "finished"):
            result |= self._check_device(result)
        return result

    @property
    def _device(self) -> torch.device:
        assert self._spec is not None
        return self._world.device if self._world else trial_device(self._spec.resources)

    def _describe_failure(self, error: Exception) -> dict[str, Any]:
        """Return the result of an error: a fault of the GPU or of another rank is not the trial's.

        A device-side assertion is the trial's own, but leaves the GPU unusable for this process.
        """
        kind = classify_error(error)
        is_lost = kind.is_device_fault or kind is ErrorKind.RANK_LOST
        self.device_failed = kind.is_device_fault or kind is ErrorKind.DEVICE_ASSERTION
        text = f"pid {os.getpid()} on {socket.gethostname()}\n{traceback.format_exc()}"
        result: dict[str, Any] = {
            "state": "lost" if is_lost else "failed",
            "error": format_error_line(error),
        }
        if is_lost and not kind.is_device_fault:
            return result
        result["traceback"] = text
        result["out_of_memory"] = is_device_memory_full(error)
        if kind.is_device_fault:
            result |= self._describe_gpu_fault(is_certain=kind is ErrorKind.HARDWARE_FAULT)
        return result

    def _describe_gpu_fault(self, *, is_certain: bool) -> dict[str, Any]:
        gpu_name = self._gpu_name or describe_gpu(self._device)
        return {"faulty_gpu": gpu_name, "hardware_fault": is_certain}

    def _check_device(self, result: Mapping[str, Any]) -> dict[str, Any]:
        """Probe the GPU after any failure; a trial that failed on a broken GPU is lost.

        Ranks of a lost trial are not probed: they are replaced anyway, and an exchange with a dead
        rank may occupy the GPU.
        """
        if self.device_failed or (self._world and result["state"] == "lost"):
            return {}
        problem = probe_device(self._device)
        self.device_failed = bool(problem)
        if not problem:
            return {}
        error = f"{result['error']}; then the GPU failed: {problem}"
        return {"state": "lost", "error": error, **self._describe_gpu_fault(is_certain=False)}

    def _train_next_epoch(self) -> dict[str, Any]:
        """Return the report of the next epoch.

        A restored trial first repeats the report of its checkpoint, because the process may have
        died after writing the checkpoint and before sending the report. The controller counts
        each epoch once.
        """
        assert self._spec is not None
        training = self._training
        restored, warnings = False, list[str]()
        if training is None:
            self._prepare_device()
            self._training = training = TrialTrainer(self._spec, self._open_context(), self._world)
            restored = self._restore_checkpoint(training, warnings.append)
        if not restored:
            self._train_and_save(training, warnings.append)
            warnings += training.pop_memory_notes()
        state = "finished" if training.is_done else "running"
        context = self._open_context()
        environment = {
            "warning": "; ".join(warnings),
            "fingerprint": context.dataset.fingerprint,
            "weights": context.initial_weights_fingerprint,
            "device": training.device,
            **training.describe_environment(),
        }
        return {**training.last_result, "state": state, **environment}

    def _prepare_device(self) -> None:
        assert self._spec is not None
        if self._device.type != "cpu":
            configure_allocator()
            limit_gpu_memory(self._spec.resources)
            self._gpu_name = describe_gpu(self._device)  # which a failed driver could not tell

    def _restore_checkpoint(self, training: TrialTrainer, warn: Callable[[str], None]) -> bool:
        """Restore the checkpoint; return whether one exists."""
        try:
            return training.restore_checkpoint(lambda text: warn(f"{text}; it is ignored"))
        except OSError as error:
            raise _CheckpointUnavailableError(format_error_line(error)) from error

    def _train_and_save(self, training: TrialTrainer, warn: Callable[[str], None]) -> None:
        """Train an epoch while the checkpoint of the one before is written, if one is due.

        The checkpoint of the last epoch is complete on return. An error is passed to `warn`.

        Without a new checkpoint the trial only loses more epochs if it is interrupted, so a full
        disk does not fail it.
        """

        def report_error(epoch: int, error: OSError) -> None:
            text = f"checkpoint of epoch {epoch} was not written: {format_error_line(error)}"
            _logger.warning("%s: %s", self._spec.trial if self._spec else "", text)
            warn(f"{text}; if interrupted, the trial resumes from an older checkpoint")

        training.start_checkpoint(report_error)
        training.run_epoch()
        training.complete_checkpoint(report_error)

    def _open_context(self) -> TrainingContext:
        assert self._spec is not None
        spec = self._spec
        key = (spec.dataset, spec.backbone, spec.cache_dir)
        if self._context is None or self._context[0] != key:
            self._context = None  # free the old data before loading other data
            cache_dir = Path(expand_host(spec.cache_dir))
            context = open_context(spec.dataset, spec.backbone, cache_dir=cache_dir)
            context.item_store.memory_fraction = compute_gpu_fraction(spec.resources) or 1.0
            self._context = (key, context)
        return self._context[1]


def compute_gpu_fraction(resources: Mapping[str, Any]) -> float:
    """Return the fraction of a GPU that each rank of a trial has; 0 without a GPU."""
    return float(resources.get("gpus_per_trial", 0)) / int(resources.get("ranks_per_trial", 1))


def limit_gpu_memory(resources: Mapping[str, Any]) -> None:
    """Limit a trial that has a fraction of a GPU to that fraction of its memory.

    torch counts only its tensors. The memory that CUDA uses per process is subtracted from the
    fraction; otherwise the last of several trials on a GPU would run out of memory.
    """
    fraction = compute_gpu_fraction(resources)
    if torch.cuda.is_available() and 0 < fraction < 1:
        reserve = CUDA_CONTEXT_BYTES / torch.cuda.get_device_properties(0).total_memory
        torch.cuda.set_per_process_memory_fraction(max(fraction - reserve, fraction / 2))
