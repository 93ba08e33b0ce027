"""A trial without Ray: all its folds and seeds, one epoch at a time."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from trainables.checkpoints import save_checkpoint
from trainables.data.dataset import Dataset, Part
from trainables.data.splits import folds
from trainables.model import placed, pool
from trainables.replica import Replica, Task, embed, score_vectors
from trainables.restoring import newest_checkpoint
from trainables.settings import TrialSpec
from trainables.spread import spread_in
from trainables.usage import Usage, over_ranks
from trainables.workbench import Bench, untrained_backbone
from trainables.world import Alone, World, trial_device


class Training:
    """The replicas of a trial.

    Args:
        spec: The trial.
        bench: Data and backbone.
        world: The ranks that train it together; None is this process alone, on a GPU if the trial
            has one. Every rank holds a Training of its own and calls the same methods.
    """

    def __init__(self, spec: TrialSpec, bench: Bench, world: World | None = None) -> None:
        if spec.threads:
            torch.set_num_threads(spec.threads)
        self._spec = spec
        self.epoch = 0
        self.last_result: dict[str, Any] = {}
        self._seconds = 0.0
        self._usage = Usage()
        self._world = world = world or Alone(trial_device(spec.resources))
        data = bench.data(spec.settings.pooling, world.device)
        tasks = split_tasks(data, spec.split, spec.folds)
        self._replicas = [
            [
                Replica(spec, bench, task, seed=spec.seed + i, fold=fold, world=world)
                for fold, task in enumerate(tasks)
            ]
            for i in range(spec.replicas)
        ]

    @property
    def replicas(self) -> list[Replica]:
        """All replicas, seeds first, folds within a seed."""
        return [replica for seed in self._replicas for replica in seed]

    def run_epoch(self) -> dict[str, Any]:
        """Train and score one epoch of every replica.

        Returns:
            `epoch` (from 1), `score`, `score_std` (over seeds), `metrics`, and `seconds` spent on
            the trial so far.

        Raises:
            DivergedError: A loss or an embedding is no longer a number.
        """
        started = time.perf_counter()
        by_seed = [
            _mean([{**r.train_epoch(self.epoch, self._usage.sample), **r.score()} for r in seed])
            for seed in self._replicas
        ]
        self.epoch += 1
        metrics = _mean(by_seed)
        scores = [m[self._spec.objective] for m in by_seed]
        metrics["seconds"] = time.perf_counter() - started
        metrics |= over_ranks(self._usage.take(), self._world)
        self._seconds += metrics["seconds"]
        self.last_result = {
            "epoch": self.epoch,
            "score": metrics[self._spec.objective],
            "score_std": float(np.std(scores, ddof=1)) if len(scores) > 1 else math.nan,
            "metrics": metrics,
            "seconds": self._seconds,
        }
        return self.last_result

    @property
    def device(self) -> str:
        """What this process computes on: `cuda` or `cpu`."""
        return self._world.device.type

    @property
    def is_done(self) -> bool:
        """Whether the last epoch was trained."""
        return self.epoch >= self._spec.settings.epochs

    def save(self) -> None:
        """Write the checkpoint, if the trial keeps one; the first rank writes it, whole.

        Raises:
            OSError: It could not be written; on the first rank.
        """
        if not self._spec.checkpoint_dir:
            return
        payload = {
            "training": self._spec.training_key(),
            "epoch": self.epoch,
            "last_result": self.last_result,
            "replicas": [r.state_dict() for r in self.replicas],
        }
        spread = spread_in(payload)
        try:
            if self._world.rank == 0:
                save_checkpoint(self._spec.checkpoint_dir, self._spec.trial, payload)
        finally:
            for tensor in spread:  # also when the disk is full: the other ranks send all the same
                tensor.finish()

    def restore(self, warn: Callable[[str], None] = lambda text: None) -> bool:
        """Continue from the checkpoint, if there is one; `last_result` is then its report.

        Ranks on nodes that share no storage may see different ones, or none: the newest is sent to
        the others. A damaged one counts as none, and `warn` is told.

        Raises:
            OSError: The place of the checkpoint does not answer.
        """
        if not self._spec.checkpoint_dir:
            return False
        payload = newest_checkpoint(self._spec, self._world, warn)
        if payload is None:
            return False
        for replica, state in zip(self.replicas, payload["replicas"], strict=True):
            replica.load_state_dict(state)
        self.epoch = int(payload["epoch"])
        self.last_result = payload["last_result"]
        self._seconds = float(self.last_result["seconds"])
        return True


def split_tasks(data: Dataset, split: str, n_folds: int) -> list[Task]:
    """What the replicas learn from and are scored on.

    `validation` cuts folds from the training classes and never touches the test classes; `test`
    is one task: all training classes, scored on the test classes.
    """
    if split == "test":
        return [Task(train=data.train, score=data.test)]
    return [
        Task(train=_subset(data.train, train), score=_subset(data.train, held_out))
        for train, held_out in folds(data.train.labels, n_folds)
    ]


@torch.no_grad()
def untrained_metrics(
    spec: TrialSpec, bench: Bench, world: World | None = None
) -> dict[str, float]:
    """The same scores for the backbone as it came: what training has to beat.

    Args:
        world: None is this process alone, on a GPU if the trial has one.
    """
    world = world or Alone(trial_device(spec.resources))
    # Of a frozen backbone the trials need all features anyway.
    data = bench.data(spec.settings.pooling, world.device)
    backbone = untrained_backbone(bench) if data.train.kind == "images" else None
    augment = bench.augment("none", backbone) if backbone else None
    model = _Pooled(backbone, spec.settings.pooling)
    with placed(model, world.device):
        scored = [
            score_vectors(embed(model, task.score, augment, world), task.score, spec, world)
            for task in split_tasks(data, spec.split, spec.folds)
        ]
    return _mean(scored)


class _Pooled(torch.nn.Module):
    """Pooled features of unit length, with no embedding layer."""

    def __init__(self, backbone: torch.nn.Module | None, pooling: str) -> None:
        super().__init__()
        self.backbone, self.pooling = backbone, pooling

    def forward(self, items: torch.Tensor) -> torch.Tensor:
        features = items if self.backbone is None else pool(self.backbone(items), self.pooling)
        return torch.nn.functional.normalize(features, dim=-1)


def _subset(part: Part, indices: np.ndarray[Any, np.dtype[np.int64]]) -> Part:
    """Some items of a part; the memory map stays one for all, rows are gathered when read."""
    queries = None if part.is_query is None else part.is_query[indices]
    index = indices if part.index is None else part.index[indices]
    return replace(part, labels=part.labels[indices], is_query=queries, index=index)


def _mean(rows: list[dict[str, float]]) -> dict[str, float]:
    return {key: float(np.mean([row[key] for row in rows])) for key in rows[0]}
