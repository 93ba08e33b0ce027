"""One process of a trial: takes specs one after another and trains them epoch by epoch.

The process, torch, the data and the backbone stay from trial to trial; only what the point changes
is rebuilt. Whatever goes wrong inside a trial is a result, not an exception.
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

from trainables.hosts import of_this_host
from trainables.replica import DivergedError
from trainables.settings import TrialSpec
from trainables.training import Training
from trainables.workbench import Bench, open_bench
from trainables.world import World, WorldError

_log = logging.getLogger(__name__)

CONTEXT_BYTES = 640 * 2**20
"""What CUDA and its libraries take of a GPU for each process, beside its tensors."""


class _NoAnswerError(Exception):
    """Nobody knows whether the trial has a checkpoint: starting anew might throw away epochs."""


class Worker:
    """Trains what the last spec says, from its last checkpoint if there is one.

    Args:
        world: The ranks that train together, this process being one; None is this process alone.
    """

    def __init__(self, world: World | None = None) -> None:
        self._world = world
        self._bench: tuple[Any, Bench] | None = None
        self._spec: TrialSpec | None = None
        self._training: Training | None = None
        self.is_broken = False
        """Whether no further trial can be trained in this process."""

    def start(self, spec: TrialSpec) -> None:
        """Take a trial. Nothing is built yet: building may fail, and that is a result of `step`."""
        self._spec, self._training = spec, None

    def step(self) -> dict[str, Any]:
        """One epoch of all folds and seeds.

        `state` says how it went: running, finished, diverged, failed, or lost: the trial is as
        good as before, but cannot go on here and now. Another rank is gone, or the place of its
        checkpoint does not answer.
        """
        epoch = self._training.epoch if self._training else 0
        result: dict[str, Any] = {"epoch": epoch, "host": socket.gethostname(), "error": ""}
        try:
            result |= self._advance()
        except DivergedError as error:
            result |= {"state": "diverged", "error": str(error)}
        except WorldError as error:
            result |= {"state": "lost", "error": last_line(error)}
        except _NoAnswerError as error:
            result |= {"state": "lost", "error": str(error)}
        except Exception as error:
            self.is_broken = _breaks_device(error)
            result |= {
                "state": "failed",
                "error": last_line(error),
                "traceback": f"pid {os.getpid()} on {result['host']}\n{traceback.format_exc()}",
            }
        if result["state"] != "running":
            self._training = None  # what a failed trial held must not burden the next
        if result["state"] == "failed" and torch.cuda.is_available() and not self.is_broken:
            torch.cuda.empty_cache()
        return result

    def _advance(self) -> dict[str, Any]:
        """The next epoch's report.

        A trial that continues first repeats the report of its checkpoint: the process may have
        died between writing the one and sending the other. Reports are counted once by epoch.
        """
        assert self._spec is not None
        training = self._training
        again, warnings = False, list[str]()
        if training is None:
            limit_gpu_memory(self._spec.resources)
            self._training = training = Training(self._spec, self._open_bench(), self._world)
            again = self._restore(training, warnings.append)
        if not again:
            training.run_epoch()
            if training.is_done or training.epoch % self._spec.checkpoint_every == 0:
                self._save(training, warnings.append)
        state = "finished" if training.is_done else "running"
        bench = self._open_bench()
        seen = {
            "warning": "; ".join(warnings),
            "fingerprint": bench.dataset.fingerprint,
            "weights": bench.weights,
            "device": training.device,
        }
        return {**training.last_result, "state": state, **seen}

    def _restore(self, training: Training, warn: Callable[[str], None]) -> bool:
        """Go on from the checkpoint, if there is one."""
        try:
            return training.restore(lambda text: warn(f"{text}: it does not go on from there"))
        except OSError as error:
            raise _NoAnswerError(last_line(error)) from error

    def _save(self, training: Training, warn: Callable[[str], None]) -> None:
        """Write the checkpoint; `warn` is told what went wrong, if anything did.

        Without one a trial is only slower to continue: a full disk is no reason to lose it.
        """
        try:
            training.save()
        except OSError as error:
            text = f"checkpoint of epoch {training.epoch} not written: {last_line(error)}"
            _log.warning("%s: %s", self._spec.trial if self._spec else "", text)
            warn(f"{text}; it goes on, but would start again from an older one")

    def _open_bench(self) -> Bench:
        assert self._spec is not None
        spec = self._spec
        key = (spec.dataset, spec.backbone, spec.cache_dir)
        if self._bench is None or self._bench[0] != key:
            self._bench = None  # free the old data before loading other data
            cache_dir = Path(of_this_host(spec.cache_dir))
            bench = open_bench(spec.dataset, spec.backbone, cache_dir=cache_dir)
            self._bench = (key, bench)
        return self._bench[1]


def limit_gpu_memory(resources: Mapping[str, Any]) -> None:
    """Keep a trial that has a part of a GPU to that part of its memory.

    torch counts its tensors only; what CUDA itself takes for a process comes out of the same part,
    or the last of several trials would find the memory full.
    """
    part = float(resources.get("gpus_per_trial", 0)) / int(resources.get("ranks_per_trial", 1))
    if torch.cuda.is_available() and 0 < part < 1:
        reserve = CONTEXT_BYTES / torch.cuda.get_device_properties(0).total_memory
        torch.cuda.set_per_process_memory_fraction(max(part - reserve, part / 2))


def _breaks_device(error: BaseException) -> bool:
    """Whether an error leaves the GPU unusable for this process; running out of memory does not."""
    return "CUDA error" in str(error) and not isinstance(error, torch.OutOfMemoryError)


def last_line(error: BaseException) -> str:
    """An exception in one line."""
    lines = [line for line in str(error).strip().splitlines() if line.strip()]
    text = lines[-1].strip() if lines else ""
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
