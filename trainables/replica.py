"""One model in training: a seed on a fold.

Everything random is derived from (seed, fold, epoch), so a replica that continues from the end of
an epoch does bit for bit what it would have done without the interruption.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from trainables.data.augment import Augment
from trainables.data.dataset import Part
from trainables.data.sampler import epoch_batches
from trainables.losses import build_loss, reseed, set_progress
from trainables.model import EmbeddingModel
from trainables.optimizer import MovementCheck, build_optimizer, clip_gradients, set_learning_rates
from trainables.retrieval import evaluate
from trainables.seeding import derive
from trainables.settings import TrialSpec
from trainables.workbench import Bench

EVALUATION_BATCH = 512


class DivergedError(Exception):
    """The loss is no longer a number."""


@dataclass(frozen=True)
class Task:
    """What one replica learns from and is scored on.

    Args:
        train: Items to learn from.
        score: Items of other classes to score on.
    """

    train: Part
    score: Part


class Replica:
    """A model, its loss and its optimiser.

    Args:
        spec: The trial.
        bench: Data and backbone.
        task: Items to learn from and to score on.
        seed: Of this replica.
        fold: Of this replica; only makes its random streams its own.
        device: Where it trains.
    """

    def __init__(
        self,
        spec: TrialSpec,
        bench: Bench,
        task: Task,
        *,
        seed: int,
        fold: int,
        device: torch.device,
    ) -> None:
        self._settings, self.task, self.device = spec.settings, task, device
        self._recall_at = spec.recall_at
        self._stream = derive(seed, "fold", fold)
        classes, self._labels = np.unique(task.train.labels, return_inverse=True)
        self.model, self.augment = self._build_model(bench)
        self.loss = self._build_loss(spec, n_classes=len(classes))
        self.optimizer = build_optimizer(self.model, self.loss, spec.settings)

    def train_epoch(self, epoch: int) -> dict[str, float]:
        """Train epoch `epoch` (from 0).

        Raises:
            DivergedError: The loss became infinite or NaN.
        """
        started = time.perf_counter()
        seed = derive(self._stream, "epoch", epoch)
        generator = torch.Generator().manual_seed(seed)
        torch.manual_seed(seed)  # dropout and the like draw from the global generator
        self._start_epoch(epoch, seed)
        movement = MovementCheck(self.loss) if epoch == 0 else None
        batches = self._batches(seed)
        total = 0.0
        for batch in batches:
            total += self._step(batch, generator)
        if movement is not None and self._settings.proxy_lr > 0:
            movement.check(self.loss)
        seconds = time.perf_counter() - started
        images = sum(len(batch) for batch in batches)
        return {
            "loss": total / len(batches),
            "train_seconds": seconds,
            "images_per_second": images / seconds,
        }

    def time_steps(self, steps: int) -> tuple[float, float]:
        """Seconds of a few training steps (after a first one), and their share of an epoch."""
        batches = self._batches(self._stream)
        generator = torch.Generator().manual_seed(self._stream)
        self._start_epoch(0, self._stream)
        self._step(batches[0], generator)
        timed = batches[1 : steps + 1] or batches[:1]
        started = time.perf_counter()
        for batch in timed:
            self._step(batch, generator)
        return time.perf_counter() - started, len(timed) / len(batches)

    def score(self) -> dict[str, float]:
        """Retrieval metrics on the classes that were not trained on."""
        vectors = embed(self.model, self.task.score, self.augment, self.device)
        return score_vectors(vectors, self.task.score, self._recall_at)

    def state_dict(self) -> dict[str, Any]:
        """All that changes in training."""
        return {
            "model": self.model.state_dict(),
            "loss": self.loss.state_dict(),
            "optimizer": self.optimizer.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a state."""
        self.model.load_state_dict(state["model"])
        self.loss.load_state_dict(state["loss"])
        self.optimizer.load_state_dict(state["optimizer"])

    def _build_model(self, bench: Bench) -> tuple[EmbeddingModel, Augment | None]:
        settings = self._settings
        backbone = bench.new_backbone(
            seed=derive(self._stream, "backbone"), bn_freeze=settings.bn_freeze
        )
        augment = bench.augment(settings.augment, backbone) if backbone else None
        width = backbone.num_features if backbone else self.task.train.items.shape[1]
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(derive(self._stream, "head"))
            model = EmbeddingModel(backbone, int(width), settings)
        return model.to(self.device), augment

    def _build_loss(self, spec: TrialSpec, *, n_classes: int) -> nn.Module:
        seed = derive(self._stream, "proxies")
        # Ours start from the seed they are given; losses of other libraries from the global one.
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            knobs: dict[str, Any] = dict(spec.loss_knobs)
            dim = spec.settings.embedding_dim
            loss = build_loss(spec.loss, n_classes=n_classes, dim=dim, seed=seed, **knobs)
        return loss.to(self.device)

    def _start_epoch(self, epoch: int, seed: int) -> None:
        settings = self._settings
        set_learning_rates(self.optimizer, epoch=epoch, settings=settings)
        reseed(self.loss, derive(seed, "loss") % 2**31)
        set_progress(self.loss, epoch / settings.epochs)
        self.model.train()
        self.loss.train()

    def _batches(self, seed: int) -> list[NDArray[np.int64]]:
        return epoch_batches(
            self._labels,
            batch_size=self._settings.batch_size,
            images_per_class=self._settings.images_per_class,
            seed=derive(seed, "batches"),
        )

    def _step(self, batch: NDArray[np.int64], generator: torch.Generator) -> float:
        items = self.task.train.items[np.sort(batch)]
        labels = torch.from_numpy(self._labels[np.sort(batch)]).to(self.device)
        inputs = to_inputs(items, self.augment, generator).to(self.device)
        self.optimizer.zero_grad(set_to_none=True)
        vectors = self.model(inputs)
        value: Tensor = self.loss(vectors, labels)
        number = float(value.detach())
        # A loss that mines finds no pair among NaNs and says zero, so the vectors are asked too.
        if not np.isfinite(number) or not bool(torch.isfinite(vectors.detach().sum())):
            raise DivergedError(f"training diverged: the loss is {number}, some vectors are NaN")
        value.backward()  # type: ignore[no-untyped-call]
        parameters = [p for group in self.optimizer.param_groups for p in group["params"]]
        clip_gradients(parameters, self._settings.clip_grad)
        self.optimizer.step()
        return number


def to_inputs(
    items: NDArray[Any], augment: Augment | None, generator: torch.Generator | None
) -> Tensor:
    """Stored items as the model's input; with a generator they are augmented."""
    if augment is None:
        return torch.from_numpy(np.asarray(items, dtype=np.float32))
    return augment.evaluate(items) if generator is None else augment.train(items, generator)


@torch.no_grad()
def embed(
    model: nn.Module, part: Part, augment: Augment | None, device: torch.device
) -> NDArray[np.float32]:
    """The model's vectors of all items of a part."""
    model.eval()
    pieces = []
    for start in range(0, len(part), EVALUATION_BATCH):
        inputs = to_inputs(part.items[start : start + EVALUATION_BATCH], augment, None)
        pieces.append(model(inputs.to(device)).float().cpu())
    vectors: NDArray[np.float32] = torch.cat(pieces).numpy()
    return vectors


def score_vectors(
    vectors: NDArray[np.float32], part: Part, recall_at: tuple[int, ...]
) -> dict[str, float]:
    """Retrieval metrics of a part's vectors: all against all, or queries against the gallery.

    Raises:
        DivergedError: The vectors are not all numbers.
    """
    if not np.isfinite(vectors).all():
        raise DivergedError("the embeddings are no longer numbers")
    if part.is_query is None:
        return evaluate(vectors, part.labels, ks=recall_at)
    query = part.is_query
    return evaluate(
        vectors[query],
        part.labels[query],
        ks=recall_at,
        gallery=vectors[~query],
        gallery_labels=part.labels[~query],
    )
