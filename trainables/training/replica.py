"""One model in training: a seed on a fold.

Everything random is derived from (seed, fold, epoch), so a replica that continues from the end of
an epoch does bit for bit what it would have done without the interruption. Batches and their
augmentation are the same for any number of ranks; each rank embeds its share of every batch. (Only
dropout draws per rank: its masks, not their distribution, depend on the number of ranks.)
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from trainables.batch_norm import synchronise_batch_norm
from trainables.concentration import similarity_concentration
from trainables.data.augment import Augment
from trainables.data.dataset import Part
from trainables.data.sampler import epoch_batches
from trainables.losses import (
    build_loss,
    counts_lengths,
    reseed,
    set_progress,
    sharded_parameters,
)
from trainables.model import EmbeddingModel
from trainables.optimizer import MovementCheck, build_optimizer, clip_gradients, set_learning_rates
from trainables.retrieval import evaluate, nmi
from trainables.seeding import derive
from trainables.settings import TrialSpec
from trainables.shards import Shards
from trainables.usage import moments
from trainables.workbench import Bench
from trainables.world import Alone, World, gather_rows, share

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
        world: The ranks that train it together; each holds a replica of its own.
    """

    def __init__(
        self,
        spec: TrialSpec,
        bench: Bench,
        task: Task,
        *,
        seed: int,
        fold: int,
        world: World,
    ) -> None:
        self._settings, self.task, self.world = spec.settings, task, world
        self._spec = spec
        self._stream = derive(seed, "fold", fold)
        classes, self._labels = np.unique(task.train.labels, return_inverse=True)
        self.model, self.augment = self._build_model(bench)
        self.loss = self._build_loss(spec, n_classes=len(classes))
        self.optimizer = build_optimizer(self.model, self.loss, spec.settings)
        self._shards = Shards(self.loss, self.optimizer, sharded_parameters(self.loss), world)
        self._agree()

    def train_epoch(self, epoch: int, watch: Callable[[], None] = lambda: None) -> dict[str, float]:
        """Train epoch `epoch` (from 0); `watch` is called a few times while it trains.

        Raises:
            DivergedError: The loss became infinite or NaN.
        """
        started = time.perf_counter()
        seed = derive(self._stream, "epoch", epoch)
        generator = torch.Generator().manual_seed(seed)
        # Dropout and the like draw from the global generator.
        torch.manual_seed(derive(seed, "rank", self.world.rank) if self.world.rank else seed)
        self._start_epoch(epoch, seed)
        movement = MovementCheck(self.loss, self.optimizer) if epoch == 0 else None
        batches = self._batches(seed)
        total = 0.0
        watched = moments(len(batches))
        for step, batch in enumerate(batches):
            total += self._step(batch, generator)
            if step in watched:
                watch()
        if movement is not None:
            movement.check(self.loss)
        seconds = time.perf_counter() - started
        images = sum(len(batch) for batch in batches)
        return {
            "loss": total / len(batches),
            "images_per_second": images / seconds,
            **{f"lr_{g['name']}": float(g["lr"]) for g in self.optimizer.param_groups},
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
        vectors = embed(self.model, self.task.score, self.augment, self.world)
        return score_vectors(vectors, self.task.score, self._spec, self.world)

    def state_dict(self) -> dict[str, Any]:
        """All that changes in training; saved it is the same for any world size."""
        loss, optimizer = self._shards.state()
        return {"model": self.model.state_dict(), "loss": loss, "optimizer": optimizer}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a state, whatever number of ranks saved it."""
        self.model.load_state_dict(state["model"])
        self._shards.load(state["loss"], state["optimizer"])

    def gradients(self, batch: NDArray[np.int64], generator: torch.Generator) -> float:
        """The loss of a global batch; its gradients are left in the parameters, on all ranks.

        Raises:
            DivergedError: The loss is infinite or NaN, or an embedding is; on all ranks at once.
        """
        world, batch = self.world, np.sort(batch)
        own = share(len(batch), world.rank, world.size)
        items = self.task.train.read(batch[own])
        aspects = self.task.train.read_aspects(batch[own])
        labels = torch.from_numpy(self._labels[batch]).to(world.device)
        place = (own.start, len(batch))
        inputs = to_inputs(items, self.augment, generator, aspects=aspects, part=place)
        self.optimizer.zero_grad(set_to_none=True)
        inputs = inputs.to(self.model.head.weight)
        raw = counts_lengths(self._spec.loss)
        embedded = self.model.vectors(inputs) if raw else self.model(inputs)
        vectors = gather_rows(world, embedded, len(batch))
        value: Tensor = self.loss(vectors, labels)
        number = float(value.detach())
        # A loss that mines finds no pair among NaNs and says zero, so the vectors are asked too.
        wrong = not np.isfinite(number) or not bool(torch.isfinite(vectors.detach().sum()))
        verdict = torch.tensor(float(wrong), device=world.device)
        world.maximum_(verdict)
        if float(verdict) > 0:
            raise DivergedError(f"training diverged: the loss is {number}, some vectors are NaN")
        value.backward()  # type: ignore[no-untyped-call]
        self._exchange_gradients()
        return number

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
        synchronise_batch_norm(model, self.world)
        return model.to(self.world.device), augment

    def _build_loss(self, spec: TrialSpec, *, n_classes: int) -> nn.Module:
        seed = derive(self._stream, "proxies")
        knobs: dict[str, Any] = dict(spec.loss_knobs)
        # Ours start from the seed they are given; losses of other libraries from the global one.
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            loss = build_loss(
                spec.loss,
                n_classes=n_classes,
                dim=spec.settings.embedding_dim,
                seed=seed,
                shards=self.world if spec.resources.get("shard_proxies") else None,
                negative_share=spec.settings.negative_share,
                keep_mib=spec.resources.get("keep_mib"),
                **knobs,
            )
        return loss.to(self.world.device)

    def _agree(self) -> None:
        """Start from the first rank's weights, should nodes differ in libraries or files."""
        tensors = [*self.model.state_dict().values(), *self._shards.replicated_state()]
        for tensor in tensors:
            self.world.broadcast_(tensor)

    def _exchange_gradients(self) -> None:
        """Sum the encoder's gradients over ranks; of a replicated loss all take the first rank's.

        Those are equal but for the order in which a GPU adds; equal bits keep ranks together.
        """
        if self.world.size == 1:
            return
        encoder = [p.grad for p in self.model.parameters() if p.grad is not None]
        _in_one(encoder, self.world.sum_)
        _in_one(self._shards.replicated_gradients(), self.world.broadcast_)

    def _start_epoch(self, epoch: int, seed: int) -> None:
        settings = self._settings
        set_learning_rates(self.optimizer, epoch=epoch, settings=settings)
        reseed(self.loss, derive(seed, "loss") % 2**31)
        # The last epoch trains at the schedule's end.
        set_progress(self.loss, epoch / max(settings.epochs - 1, 1))
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
        number = self.gradients(batch, generator)
        parameters = [p for group in self.optimizer.param_groups for p in group["params"]]
        clip_gradients(parameters, self._settings.clip_grad)
        self.optimizer.step()
        return number


def _in_one(tensors: list[Tensor], exchange: Callable[[Tensor], None]) -> None:
    """Exchange many tensors at the price of one."""
    if not tensors:
        return
    flat = torch.cat([tensor.flatten() for tensor in tensors])
    exchange(flat)
    parts = torch.split(flat, [tensor.numel() for tensor in tensors])
    for tensor, part in zip(tensors, parts, strict=True):
        tensor.copy_(part.view_as(tensor))


def to_inputs(
    items: NDArray[Any],
    augment: Augment | None,
    generator: torch.Generator | None,
    *,
    aspects: NDArray[np.float32] | None = None,
    part: tuple[int, int] | None = None,
) -> Tensor:
    """Stored items as the model's input; with a generator they are augmented.

    Args:
        aspects: Of the items, see `Part`.
        part: Where the items stand in their batch, see `Augment.train`.
    """
    if augment is None:
        return torch.from_numpy(np.array(items, dtype=np.float32))  # a copy: maps are read-only
    if generator is None:
        return augment.evaluate(items, aspects)
    return augment.train(items, generator, aspects=aspects, part=part)


@torch.no_grad()
def embed(
    model: nn.Module, part: Part, augment: Augment | None, world: World | None = None
) -> NDArray[np.float32]:
    """The model's vectors of all items of a part, on every rank.

    Ranks share whole batches: the vectors are bit for bit those of one rank.
    """
    world = world or Alone()
    model.eval()
    starts = range(0, len(part), EVALUATION_BATCH)
    own = starts[share(len(starts), world.rank, world.size)]
    first = next(iter(model.parameters()), torch.empty(0))
    pieces = []
    for start in own:
        rows = slice(start, start + EVALUATION_BATCH)
        inputs = to_inputs(part.read(rows), augment, None, aspects=part.read_aspects(rows))
        pieces.append(model(inputs.to(world.device, first.dtype)).float().cpu())
    if world.size == 1:
        return _array(torch.cat(pieces))
    return _array(_gather_pieces(world, pieces, len(part), len(starts)))


def _gather_pieces(world: World, pieces: list[Tensor], total: int, n_batches: int) -> Tensor:
    """All vectors from ranks that hold whole batches of them; the last batch may be short."""
    width = torch.tensor([float(max((p.shape[1] for p in pieces), default=0))])
    world.maximum_(width)
    padded = torch.zeros(len(pieces), EVALUATION_BATCH, int(width))
    for i, piece in enumerate(pieces):
        padded[i, : len(piece)] = piece
    return world.gather(padded, n_batches).flatten(0, 1)[:total]


def _array(vectors: Tensor) -> NDArray[np.float32]:
    array: NDArray[np.float32] = vectors.numpy()
    return array


def score_vectors(
    vectors: NDArray[np.float32],
    part: Part,
    spec: TrialSpec,
    world: World | None = None,
) -> dict[str, float]:
    """Retrieval metrics of a part's vectors: all against all, or queries against the gallery.

    Args:
        spec: Says which K and whether the clusters of all items are scored, too.

    Raises:
        DivergedError: The vectors are not all numbers.
    """
    if not np.isfinite(vectors).all():
        raise DivergedError("the embeddings are no longer numbers")
    more = {"similarity_concentration": similarity_concentration(vectors, part.labels)}
    if spec.nmi:
        more["nmi"] = nmi(vectors, part.labels)
    if part.is_query is None:
        return {**evaluate(vectors, part.labels, ks=spec.recall_at, world=world), **more}
    query = part.is_query
    found = evaluate(
        vectors[query],
        part.labels[query],
        ks=spec.recall_at,
        gallery=vectors[~query],
        gallery_labels=part.labels[~query],
        world=world,
    )
    return {**found, **more}
