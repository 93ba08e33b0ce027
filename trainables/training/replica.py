"""Model replica: the model of one seed and fold, with its loss and optimiser.

All random numbers are derived from (seed, fold, epoch), so a replica that is restored at the end of
an epoch continues bitwise identically. Batches and their augmentation do not depend on the number
of ranks; each rank embeds its share of every batch. Only dropout draws per rank: its masks, but not
their distribution, depend on the number of ranks.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from trainables.config import TrialSpec
from trainables.data.augment import ImageTransform
from trainables.data.batch_sampler import sample_epoch_batches
from trainables.data.feed import draw_epoch
from trainables.distributed.batch_norm import BatchShares, synchronise_batch_norm
from trainables.distributed.gradient_buckets import GradientBuckets, exchange_together
from trainables.distributed.world import World, gather_rows, rank_slice
from trainables.losses import (
    build_loss,
    reseed_loss,
    set_progress,
    sharded_parameters,
    uses_raw_embeddings,
)
from trainables.models.embedding import EmbeddingModel
from trainables.training.context import TrainingContext
from trainables.training.evaluation import embed_on_device, score_embeddings
from trainables.training.loss_monitor import LossMonitor
from trainables.training.micro_batches import (
    MemoryPlan,
    RandomState,
    backpropagate_chunks,
    embed_without_graph,
)
from trainables.training.optimizer import (
    MovementCheck,
    build_optimizer,
    clip_gradients,
    set_learning_rates,
)
from trainables.training.sharded_state import ShardedState
from trainables.training.tasks import FoldTask
from trainables.training.usage import sampling_steps
from trainables.utils.device import release_memory, synchronise_device
from trainables.utils.device_errors import is_device_memory_full
from trainables.utils.precision import resolve_precision, strict_float32
from trainables.utils.precision_names import Precision
from trainables.utils.seeding import derive_seed


class ModelReplica:
    """A model with its loss and its optimiser.

    Args:
        spec: The trial.
        context: Data set and backbone.
        task: Items to train on and to evaluate on.
        seed: Seed of this replica.
        fold: Fold of this replica, used only to derive its random streams.
        world: The ranks that train the replica together; each rank has its own instance.
        precision: Precision of the network; None chooses it for the device.
    """

    def __init__(
        self,
        spec: TrialSpec,
        context: TrainingContext,
        task: FoldTask,
        *,
        seed: int,
        fold: int,
        world: World,
        precision: Precision | None = None,
    ) -> None:
        self._settings, self.task, self.world = spec.settings, task, world
        self._spec = spec
        self.memory_notes: list[str] = []
        """Measures taken after the device ran out of memory."""
        self._stream_seed = derive_seed(seed, "fold", fold)
        self._precision = precision or resolve_precision(spec.settings.precision, world.device)
        classes, self._labels = np.unique(task.train.labels, return_inverse=True)
        self._shares = BatchShares(world)
        self.model, self.augment = self._build_model(context)
        self._feed = context.make_feed(task.train, self.augment, world.device)
        self._evaluation_feed = context.make_feed(task.evaluation, self.augment, world.device)
        self.loss = self._build_loss(spec, n_classes=len(classes))
        self.optimizer = build_optimizer(self.model, self.loss, spec.settings)
        self._sharded_state = ShardedState(
            self.loss, self.optimizer, sharded_parameters(self.loss), world
        )
        self._buckets = GradientBuckets(self.model.parameters(), world)
        self._broadcast_initial_weights()
        self._memory = self._plan_memory()

    def train_epoch(
        self, epoch: int, sample_usage: Callable[[], None] = lambda: None
    ) -> dict[str, float]:
        """Train one epoch and return loss, throughput and learning rates.

        Args:
            epoch: Number of the epoch, from 0.
            sample_usage: Called a few times during the epoch.

        Raises:
            DivergedError: If the loss or an embedding became NaN or infinite.
        """
        started = time.perf_counter()
        seed = derive_seed(self._stream_seed, "epoch", epoch)
        generator = torch.Generator().manual_seed(seed)
        # Dropout and similar layers draw from the global generator.
        torch.manual_seed(derive_seed(seed, "rank", self.world.rank) if self.world.rank else seed)
        self._start_epoch(epoch, seed)
        movement = MovementCheck(self.loss, self.optimizer) if epoch == 0 else None
        batches = self._draw_batches(seed)
        monitor = LossMonitor(self.world)
        sampled_steps = sampling_steps(len(batches))
        self.world.heartbeat.beat()
        for step, (inputs, labels) in enumerate(self._iter_batches(batches, generator)):
            self._run_training_step(inputs, labels, monitor)
            self.world.heartbeat.beat()
            if step in sampled_steps:
                monitor.check_finite()
                sample_usage()
        mean_loss = monitor.compute_mean()
        if movement is not None:
            movement.check_all_moved(self.loss)
        seconds = time.perf_counter() - started
        images = sum(len(batch) for batch in batches)
        return {
            "loss": mean_loss,
            "images_per_second": images / seconds,
            **{f"lr_{g['name']}": float(g["lr"]) for g in self.optimizer.param_groups},
        }

    def time_training_steps(self, steps: int) -> tuple[float, float]:
        """Return the seconds of a few training steps, after a first one, and their share of an
        epoch.
        """
        batches = self._draw_batches(self._stream_seed)
        generator = torch.Generator().manual_seed(self._stream_seed)
        self._start_epoch(0, self._stream_seed)
        timed = batches[1 : steps + 1] or batches[:1]
        monitor = LossMonitor(self.world)
        started = 0.0
        for step, batch in enumerate(self._iter_batches([batches[0], *timed], generator)):
            self._run_training_step(*batch, monitor)
            if step == 0:  # the first step also allocates memory and chooses kernels
                synchronise_device(self.world.device)
                started = time.perf_counter()
        synchronise_device(self.world.device)
        return time.perf_counter() - started, len(timed) / len(batches)

    def compute_metrics(self) -> dict[str, float]:
        """Return retrieval metrics on the classes that are not trained on."""
        feed = self._evaluation_feed
        vectors = embed_on_device(
            self.model, self.task.evaluation, self.augment, self.world, feed=feed
        )
        return score_embeddings(vectors, self.task.evaluation, self._spec, self.world)

    def read_inputs(self, rows: NDArray[np.int64]) -> Tensor:
        """Return the network's inputs for some training items, without augmentation."""
        inputs = next(iter(self._feed.iter_evaluation_inputs([rows])))
        return inputs.to(self.model.head.weight)

    def state_dict(self) -> dict[str, Any]:
        """Return everything that training changes; the saved form is equal for any world size."""
        loss, optimizer = self._sharded_state.collect_state_dicts()
        return {"model": self.model.state_dict(), "loss": loss, "optimizer": optimizer}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load a state that any number of ranks has saved."""
        self.model.load_state_dict(state["model"])
        self._sharded_state.load_state_dicts(state["loss"], state["optimizer"])

    def compute_gradients(self, batch: NDArray[np.int64], generator: torch.Generator) -> float:
        """Return the loss of a global batch and store its gradients in the parameters.

        Raises:
            DivergedError: If the loss or an embedding is NaN or infinite; on all ranks at once.
        """
        monitor = LossMonitor(self.world)
        for inputs, labels in self._iter_batches([batch], generator):
            self._backpropagate(inputs, labels, monitor)
        return monitor.compute_mean()

    def _iter_batches(
        self, batches: Sequence[NDArray[np.int64]], generator: torch.Generator
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield the inputs of this rank's share, and the labels, of each global batch."""
        world, ordered = self.world, [np.sort(batch) for batch in batches]
        draws = draw_epoch(
            self.task.train,
            self.augment,
            ordered,
            generator,
            lambda n: rank_slice(n, world.rank, world.size),
        )
        # Uploaded once: an upload in every step would wait for the step before it.
        labels = torch.from_numpy(self._labels[np.concatenate(ordered)]).to(world.device)
        batch_labels = torch.split(labels, [len(batch) for batch in ordered])
        yield from zip(self._feed.iter_training_inputs(draws), batch_labels, strict=True)

    def _backpropagate(self, inputs: Tensor, labels: Tensor, monitor: LossMonitor) -> None:
        """Store the gradients of a global batch in the parameters.

        A single process that runs out of memory repeats the step with less memory. Ranks cannot:
        the others would wait in an exchange.
        """
        inputs = inputs.to(self.model.head.weight)
        while True:
            self.optimizer.zero_grad(set_to_none=True)
            self._start_exchange(len(labels))
            try:
                value, vectors = self._compute_step_gradients(inputs, labels)
                break
            except RuntimeError as error:
                if not is_device_memory_full(error) or self.world.size > 1:
                    raise
                if not self._reduce_memory():
                    raise
            release_memory(self.world.device)  # not before the error has released its tensors
        monitor.add_step(value, vectors)
        self._exchange_gradients()

    def _compute_step_gradients(self, inputs: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Add the gradients of a global batch to the parameters; return its loss and embeddings."""
        chunks, embed = self._memory.split(inputs), self._embed
        states: list[RandomState] = []
        if len(chunks) == 1:
            embedded = embed(inputs)
        else:
            embedded, states = embed_without_graph(embed, chunks, self.model)
        own = embedded.detach().requires_grad_()
        # The backward pass of the loss is separate from the network's, because it is in float32.
        with strict_float32(self.world.device):
            vectors = gather_rows(self.world, own, len(labels))
            value: Tensor = self.loss(vectors, labels)
            value.backward()  # type: ignore[no-untyped-call]
        gradient = torch.zeros_like(own) if own.grad is None else own.grad
        paused = self._memory.running_statistics
        if len(chunks) == 1:
            with paused():
                embedded.backward(gradient)  # type: ignore[no-untyped-call]
        else:
            backpropagate_chunks(embed, chunks, states, gradient, self._buckets.accumulate, paused)
        return value.detach(), vectors.detach()

    def _embed(self, inputs: Tensor) -> Tensor:
        if uses_raw_embeddings(self._spec.loss):
            return self.model.compute_raw_embeddings(inputs)
        embedded: Tensor = self.model(inputs)
        return embedded

    def _plan_memory(self) -> MemoryPlan:
        plan = MemoryPlan(self.model, self._settings, self.world.size)
        wanted = bool(self._spec.resources.get("checkpoint_activations"))
        if wanted and not plan.checkpoint_activations():
            raise ValueError(
                "resources.checkpoint_activations: the backbone does not support activation "
                "checkpointing; set it to false"
            )
        for _ in range(int(self._spec.resources.get("memory_level", 0))):
            if not (measure := plan.reduce()):
                raise RuntimeError("a step does not fit into the GPU's memory, even in parts")
            self.memory_notes = [measure]
        return plan

    def _reduce_memory(self) -> bool:
        """Reduce the memory of a step after an out-of-memory error; return whether it could be."""
        measure = self._memory.reduce()
        if measure:
            self.memory_notes.append(measure)
        return bool(measure)

    def _build_model(
        self, context: TrainingContext
    ) -> tuple[EmbeddingModel, ImageTransform | None]:
        settings = self._settings
        backbone = context.new_backbone(
            seed=derive_seed(self._stream_seed, "backbone"), bn_freeze=settings.bn_freeze
        )
        augment = context.build_transform(settings.augment, backbone) if backbone else None
        width = backbone.num_features if backbone else self.task.train.items.shape[1]
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(derive_seed(self._stream_seed, "head"))
            model = EmbeddingModel(backbone, int(width), settings, self._precision)
        model.is_compiled = bool(self._spec.resources.get("compile"))
        synchronise_batch_norm(model, self.world, self._shares)
        return model.to(self.world.device), augment

    def _build_loss(self, spec: TrialSpec, *, n_classes: int) -> nn.Module:
        seed = derive_seed(self._stream_seed, "proxies")
        params: dict[str, Any] = dict(spec.loss_knobs)
        # Our losses use `seed`; losses of other libraries use the global generator.
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
                **params,
            )
        return loss.to(self.world.device)

    def _broadcast_initial_weights(self) -> None:
        """Take over the first rank's weights, because nodes may differ in libraries or files."""
        tensors = [*self.model.state_dict().values(), *self._sharded_state.replicated_state()]
        for tensor in tensors:
            self.world.broadcast_(tensor)

    def _start_exchange(self, batch_size: int) -> None:
        """Prepare batch norms and gradient buckets for a global batch."""
        if self.world.size > 1:
            self._shares.set_batch_size(batch_size)
            self._buckets.start()

    def _exchange_gradients(self) -> None:
        """Sum the encoder's gradients over ranks and broadcast those of a replicated loss.

        The latter are equal up to the order in which a GPU adds; all ranks take those of the first
        rank, so that their weights stay bitwise equal.
        """
        if self.world.size > 1:
            self._buckets.finish()
            exchange_together(self._sharded_state.replicated_gradients(), self.world.broadcast_)

    def _start_epoch(self, epoch: int, seed: int) -> None:
        settings = self._settings
        set_learning_rates(self.optimizer, epoch=epoch, settings=settings)
        reseed_loss(self.loss, derive_seed(seed, "loss") % 2**31)
        # The progress of the last epoch is 1.
        set_progress(self.loss, epoch / max(settings.epochs - 1, 1))
        self.model.train()
        self.loss.train()

    def _draw_batches(self, seed: int) -> list[NDArray[np.int64]]:
        return sample_epoch_batches(
            self._labels,
            batch_size=self._settings.batch_size,
            images_per_class=self._settings.images_per_class,
            seed=derive_seed(seed, "batches"),
        )

    def _run_training_step(self, inputs: Tensor, labels: Tensor, monitor: LossMonitor) -> None:
        self._backpropagate(inputs, labels, monitor)
        parameters = [p for group in self.optimizer.param_groups for p in group["params"]]
        clip_gradients(parameters, self._settings.clip_grad)
        self.optimizer.step()
