"""Trainer of a trial, without Ray: all folds and seeds, one epoch at a time."""

from __future__ import annotations

import importlib.metadata
import math
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from trainables.config import TrialSpec
from trainables.distributed.world import SingleProcessWorld, World, trial_device
from trainables.training.checkpoint_exchange import load_newest_checkpoint
from trainables.training.checkpoint_writer import CheckpointWriter
from trainables.training.checkpoints import remove_partial_checkpoints
from trainables.training.context import TrainingContext
from trainables.training.replica import ModelReplica
from trainables.training.sharded_saving import find_sharded_tensors
from trainables.training.tasks import build_fold_tasks
from trainables.training.usage import UsageMonitor, reduce_usage
from trainables.utils.device import configure_device, describe_device
from trainables.utils.precision import resolve_precision
from trainables.utils.precision_names import PRECISIONS, Precision

ReportWriteError = Callable[[int, OSError], None]
"""Receives the epoch of a checkpoint that could not be written, and the error."""


class TrialTrainer:
    """Trains all replicas of a trial, one epoch at a time.

    Args:
        spec: The trial.
        context: Data set and backbone.
        world: The ranks that train the trial together; None for a single process, on a GPU if the
            trial has one. Every rank has its own `TrialTrainer` and calls the same methods.
    """

    def __init__(
        self, spec: TrialSpec, context: TrainingContext, world: World | None = None
    ) -> None:
        if spec.threads:
            torch.set_num_threads(spec.threads)
        self._spec = spec
        self.epoch = 0
        self.last_result: dict[str, Any] = {}
        self._elapsed_seconds = 0.0
        self._usage = UsageMonitor()
        self._saved_epoch = 0
        self._writer = CheckpointWriter(spec.checkpoint_dir, spec.trial)
        self._world = world = world or SingleProcessWorld(trial_device(spec.resources))
        self._precision = agree_on_precision(
            resolve_precision(spec.settings.precision, world.device), world
        )
        configure_device(world.device, self._precision, spec.resources)
        data = context.prepare_data(spec.settings.pooling, world.device, self._precision)
        tasks = build_fold_tasks(data, spec.split, spec.folds)
        self._replicas_by_seed = [
            [
                ModelReplica(
                    spec,
                    context,
                    task,
                    seed=spec.seed + i,
                    fold=fold,
                    world=world,
                    precision=self._precision,
                )
                for fold, task in enumerate(tasks)
            ]
            for i in range(spec.replicas)
        ]

    @property
    def replicas(self) -> list[ModelReplica]:
        """All replicas, ordered by seed and then by fold."""
        return [replica for seed in self._replicas_by_seed for replica in seed]

    def run_epoch(self) -> dict[str, Any]:
        """Train one epoch of every replica, evaluate them, and return the result.

        Returns:
            `epoch` (from 1), `score`, `score_std` (over seeds), `metrics`, and the total `seconds`
            of the trial so far.

        Raises:
            DivergedError: If a loss or an embedding is NaN or infinite.
        """
        started = time.perf_counter()
        by_seed = [
            average_metrics(
                [
                    {**r.train_epoch(self.epoch, self._usage.sample_gpu), **r.compute_metrics()}
                    for r in seed
                ]
            )
            for seed in self._replicas_by_seed
        ]
        self.epoch += 1
        metrics = average_metrics(by_seed)
        scores = [m[self._spec.objective] for m in by_seed]
        metrics["seconds"] = time.perf_counter() - started
        metrics |= reduce_usage(self._usage.collect_usage(), self._world)
        self._elapsed_seconds += metrics["seconds"]
        self.last_result = {
            "epoch": self.epoch,
            "score": metrics[self._spec.objective],
            "score_std": float(np.std(scores, ddof=1)) if len(scores) > 1 else math.nan,
            "metrics": metrics,
            "seconds": self._elapsed_seconds,
        }
        return self.last_result

    @property
    def device(self) -> str:
        """Type of the device that this process uses: `cuda` or `cpu`."""
        return self._world.device.type

    def describe_environment(self) -> dict[str, str]:
        """Return the precision, the name of the GPU if there is one, and the version of torch."""
        gpu = describe_device(self._world.device) if self.device == "cuda" else ""
        return {
            "precision": self._precision,
            "gpu": gpu,
            "torch_version": torch.__version__,
            "timm_version": importlib.metadata.version("timm"),
            "cudnn_version": _read_cudnn_version() if gpu else "",
        }

    def pop_memory_notes(self) -> list[str]:
        """Return the measures taken after an out-of-memory error since the last call."""
        notes = list(dict.fromkeys(n for r in self.replicas for n in r.memory_notes))
        for replica in self.replicas:
            replica.memory_notes.clear()
        return [f"the GPU ran out of memory; the trial continues with {note}" for note in notes]

    @property
    def is_done(self) -> bool:
        """Whether all epochs are trained."""
        return self.epoch >= self._spec.settings.epochs

    def start_checkpoint(self, report_error: ReportWriteError) -> None:
        """Write a checkpoint of the last epoch if one is due, in a thread of the first rank.

        Call it when the next epoch starts: a trial that is pruned after its report then writes
        nothing, and no write starts after the study has removed its checkpoint. Collective.

        Args:
            report_error: Receives the error of a checkpoint that could not be written.
        """
        if self._spec.checkpoint_dir and self.epoch > self._saved_epoch and self._is_write_due():
            self._writer.wait()
            self._save_and_report(report_error, in_thread=True)

    def complete_checkpoint(self, report_error: ReportWriteError) -> None:
        """Write the checkpoint after the last epoch and return when it is complete. Collective.

        After other epochs, only report a write in the thread that has failed.
        """
        if self._spec.checkpoint_dir and self.is_done:
            self._writer.wait()
            self._save_and_report(report_error, in_thread=False)
        else:
            self._report_failure(report_error)

    def finish_checkpoint(self) -> None:
        """Wait for a checkpoint that is being written; its error no longer matters."""
        self._writer.wait()

    def write_checkpoint(self) -> None:
        """Write the complete checkpoint on the first rank, if the trial has a checkpoint directory.

        Raises:
            OSError: On the first rank, if the checkpoint cannot be written.
        """
        if self._spec.checkpoint_dir:
            self._save_checkpoint(in_thread=False)

    def _save_and_report(self, report_error: ReportWriteError, *, in_thread: bool) -> None:
        self._report_failure(report_error)
        try:
            self._save_checkpoint(in_thread=in_thread)
        except OSError as error:
            report_error(self.epoch, error)

    def _report_failure(self, report_error: ReportWriteError) -> None:
        if (failure := self._writer.take_failure()) is not None:
            report_error(*failure)

    def _is_write_due(self) -> bool:
        """Whether `checkpoint_every` asks for a checkpoint now; the same on all ranks."""
        every = self._spec.checkpoint_every
        if every != "auto":
            return self.epoch % every == 0
        if self._world.size == 1:
            return self._writer.is_due
        # The clocks and disks of ranks differ, but they must save sharded tensors together.
        decision = torch.tensor([int(self._writer.is_due)], device=self._world.device)
        self._world.broadcast_(decision)
        return bool(decision.item())

    def _save_checkpoint(self, *, in_thread: bool) -> None:
        """Write the checkpoint on the first rank.

        Sharded tensors are always written by the calling thread: ranks exchange them piece by
        piece, and a copy for a thread would have to hold them whole on the first rank.
        """
        self._saved_epoch = self.epoch
        payload = {
            "training": self._spec.training_key(self._precision),
            "epoch": self.epoch,
            "last_result": self.last_result,
            "replicas": [r.state_dict() for r in self.replicas],
        }
        sharded_tensors = find_sharded_tensors(payload)
        try:
            if self._world.rank == 0 and in_thread and not sharded_tensors:
                self._writer.start(payload)
            elif self._world.rank == 0:
                self._writer.write(payload)
        finally:
            for tensor in sharded_tensors:  # on an error too: the other ranks send their rows
                tensor.finish_exchange()

    def restore_checkpoint(self, warn: Callable[[str], None] = lambda text: None) -> bool:
        """Restore the checkpoint, with its report as `last_result`; return whether one exists.

        Ranks on nodes without shared storage may have different checkpoints or none; the newest is
        sent to the others.

        Args:
            warn: Called with a message if a checkpoint is damaged, which is then ignored.

        Raises:
            OSError: If the storage of the checkpoint does not respond.
        """
        if not self._spec.checkpoint_dir:
            return False
        if self._world.rank == 0:  # left by a process that was killed while it wrote
            remove_partial_checkpoints(self._spec.checkpoint_dir, self._spec.trial)
        payload = load_newest_checkpoint(self._spec, self._world, warn, precision=self._precision)
        if payload is None:
            return False
        for replica, state in zip(self.replicas, payload["replicas"], strict=True):
            replica.load_state_dict(state)
        self.epoch = int(payload["epoch"])
        self._saved_epoch = self.epoch
        self.last_result = payload["last_result"]
        self._elapsed_seconds = float(self.last_result["seconds"])
        return True


def _read_cudnn_version() -> str:
    return str(torch.backends.cudnn.version())  # type: ignore[no-untyped-call]


def agree_on_precision(own: Precision, world: World) -> Precision:
    """Return the most precise of all ranks' precisions; their GPUs may be of different kinds."""
    if world.size == 1:
        return own
    index = torch.tensor([float(PRECISIONS.index(own))], device=world.device)
    world.all_reduce_max_(index)
    return PRECISIONS[int(index)]


def average_metrics(rows: list[dict[str, float]]) -> dict[str, float]:
    """Return the mean of each metric over folds or seeds."""
    return {key: float(np.mean([row[key] for row in rows])) for key in rows[0]}
