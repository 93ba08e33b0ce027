"""Functions that ranks run in tests: small trainings in float64 that return plain tensors."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from search_spaces import get_space
from trainables.config import TrainingSettings, TrialSpec
from trainables.data.dataset import Dataset, DatasetPart
from trainables.distributed.world import World, gather_rows, rank_slice
from trainables.losses import LOSSES, build_loss, loss_params, sharded_parameters
from trainables.models.backbone import TimmBackbone
from trainables.training.checkpoint_writer import CheckpointWriter
from trainables.training.checkpoints import load_checkpoint, save_checkpoint
from trainables.training.context import TrainingContext
from trainables.training.loss_monitor import LossMonitor
from trainables.training.replica import ModelReplica
from trainables.training.sharded_saving import ShardedTensor, find_sharded_tensors
from trainables.training.sharded_state import ShardedState
from trainables.training.tasks import FoldTask
from trainables.training.trial_trainer import TrialTrainer

N_CLASSES, IMAGES_PER_CLASS, IMAGE_SIZE = 11, 4, 8
LOSS_NAMES = [
    name
    for host, info in LOSSES.items()
    for name in ([host, f"{host}+synthesis"] if info.family == "proxy" else [host])
]
N_STEPS = 20

State = dict[str, Tensor]
TrainingResult = tuple[float, State, State | None]
"""Loss and gradients of the first batch, and the weights after some optimiser steps."""


class TinyEncoder(nn.Module):
    """Encoder of one convolution and its batch norm, the parts that ranks must synchronise."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.Sequential(
            nn.Conv2d(1, 5, 3, stride=2, bias=False), nn.BatchNorm2d(5), nn.Softplus()
        )

    def forward_features(self, images: Tensor) -> Tensor:
        features: Tensor = self.blocks(images)
        return features


class TinyTrainingContext(TrainingContext):
    """Training context whose trials train a `TinyEncoder`."""

    def new_backbone(self, *, seed: int, bn_freeze: str) -> TimmBackbone | None:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return TimmBackbone(
                TinyEncoder(),
                name="tiny",
                layout="NCHW",
                num_features=5,
                image_size=IMAGE_SIZE,
                mean=(0.5,),
                std=(0.25,),
            )


@functools.cache
def make_training_context(kind: str = "images", n_classes: int = N_CLASSES) -> TrainingContext:
    """Return a context of random images for a tiny encoder or conv4, or of random features."""
    random = np.random.default_rng(3)

    def part(first: int, count: int) -> DatasetPart:
        labels = np.repeat(np.arange(first, first + count), IMAGES_PER_CLASS).astype(np.int64)
        base = random.integers(0, 256, (first + count, IMAGE_SIZE, IMAGE_SIZE, 1))[labels]
        noise = random.integers(0, 64, (len(labels), IMAGE_SIZE, IMAGE_SIZE, 1))
        pixels = ((base + noise) % 256).astype(np.uint8)
        if kind != "features":
            return DatasetPart(pixels, labels)
        features = pixels.reshape(len(labels), -1) / 128 - 1
        return DatasetPart(features.astype(np.float32), labels)

    names = tuple(str(i) for i in range(2 * n_classes))
    data = Dataset("noise", part(0, n_classes), part(n_classes, n_classes), names, "x")
    context_class = TinyTrainingContext if kind == "images" else TrainingContext
    return context_class(
        data, {"name": "none" if kind == "features" else "conv4"}, None, IMAGE_SIZE, Path()
    )


def make_rank_spec(
    loss: str, *, kind: str = "images", shard: bool = False, params: Any = None, **settings: Any
) -> TrialSpec:
    """Return a trial at the published point of the loss."""
    known = loss_params(loss)
    published = get_space(loss).published[0].values
    chosen = {
        "epochs": 2,
        "batch_size": 14,
        "images_per_class": 3,
        "embedding_dim": 6,
        "augment": "light",
        "lr_decay": "none",
        # Adam divides by |g|: with the usual 1e-8 a difference in the 16th digit of a vanishing
        # gradient would become one in the 7th digit of the weights, independent of the ranks.
        "adam_eps": 1e-4,
        **settings,
    }
    return TrialSpec(
        trial=f"{loss}-0000",
        loss=loss,
        loss_knobs={k: v for k, v in published.items() if k in known} | (params or {}),
        settings=TrainingSettings(**chosen),
        seed=1,
        split="test",
        dataset={"kind": kind},
        backbone={},
        cache_dir="",
        threads=1,
        resources={"shard_proxies": shard},
    )


def make_replica(world: World, trial: TrialSpec, n_classes: int = N_CLASSES) -> ModelReplica:
    """Return a replica in float64."""
    context = make_training_context(trial.dataset["kind"], n_classes)
    task = FoldTask(train=context.dataset.train, evaluation=context.dataset.test)
    replica = ModelReplica(trial, context, task, seed=1, fold=0, world=world)
    replica.model.double().train()
    replica.loss.double()
    return replica


def collect_gradients(replica: ModelReplica, world: World) -> State:
    """Return the gradients by name, with shards concatenated."""
    found = {f"model.{n}": p.grad for n, p in replica.model.named_parameters()}
    rows = getattr(replica.loss, "n_classes", 0)
    for name, parameter in replica.loss.named_parameters():
        sharded = name == "proxies" and len(parameter) < rows
        assert parameter.grad is not None
        grad = world.all_gather(parameter.grad, rows) if sharded else parameter.grad
        found[f"loss.{name}"] = grad
    return {name: grad.clone() for name, grad in found.items() if grad is not None}


def collect_weights(replica: ModelReplica) -> State | None:
    """Return all weights and buffers on the first rank; None on others if proxies are sharded."""
    state = replica.state_dict()
    for name, value in state["loss"].items():
        if isinstance(value, ShardedTensor):
            pieces = list(value.pieces)
            if not pieces:
                return None
            state["loss"][name] = torch.cat(pieces)
    named = {f"model.{k}": v for k, v in state["model"].items()}
    named |= {f"loss.{k}": v for k, v in state["loss"].items()}
    return {k: v.detach().clone() for k, v in named.items() if v.dtype.is_floating_point}


def train_steps(
    world: World, trial: TrialSpec, steps: int, n_classes: int = N_CLASSES
) -> TrainingResult:
    """Train a new replica for a few steps."""
    replica = make_replica(world, trial, n_classes)
    replica._start_epoch(0, 7)
    generator = torch.Generator().manual_seed(5)
    batches = replica._draw_batches(11) + replica._draw_batches(12) + replica._draw_batches(13)
    batches = (batches * (1 + steps // len(batches)))[:steps]
    first = replica.compute_gradients(batches[0], generator)
    gradients = collect_gradients(replica, world)
    monitor = LossMonitor(world)
    for inputs, labels in replica._iter_batches(batches, generator):
        replica._run_training_step(inputs, labels, monitor)
    return first, gradients, collect_weights(replica)


def train_trials(
    world: World, trials: Mapping[str, TrialSpec], steps: int
) -> dict[str, TrainingResult]:
    """Return the results of `train_steps` for several trials."""
    return {name: train_steps(world, trial, steps) for name, trial in trials.items()}


def compute_batch_gradients(
    world: World, trial: TrialSpec, batch: list[int]
) -> tuple[float, State]:
    """Return the loss and the gradients of one given batch."""
    replica = make_replica(world, trial)
    replica._start_epoch(0, 7)
    generator = torch.Generator().manual_seed(5)
    value = replica.compute_gradients(np.array(batch), generator)
    return value, collect_gradients(replica, world)


def train_and_save(world: World, trial: TrialSpec, folder: str, epochs: int) -> dict[str, Any]:
    """Train up to an epoch, from the checkpoint if there is one, and write a checkpoint."""
    training = TrialTrainer(
        replace(trial, checkpoint_dir=folder), make_training_context(trial.dataset["kind"]), world
    )
    training.restore_checkpoint()
    while training.epoch < epochs:
        training.run_epoch()
    training.write_checkpoint()
    return {**training.last_result, "weights": collect_weights(training.replicas[0])}


def train_and_save_per_rank(
    world: World, trial: TrialSpec, folder: str, epochs: int
) -> dict[str, Any]:
    """Train like `train_and_save`, with a checkpoint directory for each rank.

    `resumed` in the result is the epoch of the loaded checkpoint.
    """
    own = replace(trial, checkpoint_dir=str(Path(folder, str(world.rank))))
    training = TrialTrainer(own, make_training_context(trial.dataset["kind"]), world)
    training.restore_checkpoint()
    resumed = training.epoch
    while training.epoch < epochs:
        training.run_epoch()
    training.write_checkpoint()
    weights = collect_weights(training.replicas[0])
    return {**training.last_result, "resumed": resumed, "weights": weights}


def train_after_failed_write(world: World, trial: TrialSpec, folder: str) -> dict[str, Any]:
    """Train another epoch after the first rank failed to write its checkpoint."""
    training = TrialTrainer(
        replace(trial, checkpoint_dir=folder), make_training_context(trial.dataset["kind"]), world
    )
    training.run_epoch()
    error = ""
    try:
        training.write_checkpoint()
    except OSError as write_error:
        error = str(write_error)
    return {**training.run_epoch(), "error": error}


def train_with_own_clock(world: World, trial: TrialSpec, folder: str) -> dict[str, Any]:
    """Train a trial that writes checkpoints by time, with a clock of its own on each rank.

    On the first rank a write takes 10 s and an epoch 100 s; clocks of other ranks stand still.
    `saved` in the result are the epochs whose checkpoints were written.
    """
    training = TrialTrainer(
        replace(trial, checkpoint_dir=folder), make_training_context(trial.dataset["kind"]), world
    )
    now, saved = 0.0, list[int]()

    def read_clock() -> float:
        nonlocal now
        now += 10.0 if world.rank == 0 else 0.0
        return now

    def raise_error(epoch: int, error: OSError) -> None:
        raise error

    training._writer = CheckpointWriter(folder, trial.trial, clock=read_clock)
    while not training.is_done:
        before = training._saved_epoch
        training.start_checkpoint(raise_error)
        training.finish_checkpoint()
        training.run_epoch()
        now += 100.0 if world.rank == 0 else 0.0
        if training._saved_epoch > before:
            saved.append(training._saved_epoch)
    training.complete_checkpoint(raise_error)
    return {"saved": [*saved, training._saved_epoch]}


def count_heartbeats(world: World, trial: TrialSpec) -> tuple[int, int, bool, bool]:
    """Train an epoch and evaluate it.

    Returns:
        Beats of the training, beats of the evaluation, and whether the rank is timed after each.
    """
    heartbeat, replica = world.heartbeat, make_replica(world, trial)
    heartbeat.start_trial()
    replica.train_epoch(0)
    n_trained, is_timed = heartbeat._n_beats, heartbeat.seconds_since_beat is not None
    replica.compute_metrics()
    n_evaluated = heartbeat._n_beats - n_trained
    return n_trained, n_evaluated, is_timed, heartbeat.seconds_since_beat is not None


def resave_checkpoint(world: World, trial: TrialSpec, folder: str) -> None:
    """Load the checkpoint of a trial and save it again."""
    training = TrialTrainer(
        replace(trial, checkpoint_dir=folder), make_training_context(trial.dataset["kind"]), world
    )
    assert training.restore_checkpoint()
    training.write_checkpoint()


def compute_wrapper_gradients(world: World, seed: int) -> tuple[State, State]:
    """Return Proxy-Anchor's gradients with the library's distributed wrapper and with this project.

    The encoder is linear. The wrapper is used as documented, with the encoder's gradients averaged
    over ranks, as DistributedDataParallel does.
    """
    from pytorch_metric_learning import losses
    from pytorch_metric_learning.utils.distributed import DistributedLossWrapper

    weight, proxies, items, labels = make_wrapper_data(seed)
    own = rank_slice(len(items), world.rank, world.size)
    encoder = weight.clone().requires_grad_()
    library_loss = losses.ProxyAnchorLoss(4, 3, margin=0.1, alpha=32)
    library_loss.proxies = torch.nn.Parameter(proxies.clone())
    DistributedLossWrapper(library_loss)(items[own] @ encoder, labels[own]).backward()
    assert encoder.grad is not None
    assert library_loss.proxies.grad is not None
    world.all_reduce_sum_(encoder.grad)
    library = {"encoder": encoder.grad / world.size, "proxies": library_loss.proxies.grad}
    return library, compute_own_gradients(world, seed)


def compute_own_gradients(world: World, seed: int) -> State:
    """Return Proxy-Anchor's gradients as this project computes them."""
    weight, proxies, items, labels = make_wrapper_data(seed)
    own = rank_slice(len(items), world.rank, world.size)
    encoder = weight.clone().requires_grad_()
    loss = build_loss("proxy_anchor", n_classes=4, dim=3, alpha=32, delta=0.1).double()
    loss.load_state_dict({"proxies": proxies})
    loss(gather_rows(world, items[own] @ encoder, len(items)), labels).backward()
    gradient = loss.get_parameter("proxies").grad
    assert encoder.grad is not None
    assert gradient is not None
    world.all_reduce_sum_(encoder.grad)
    return {"encoder": encoder.grad, "proxies": gradient}


def make_wrapper_data(seed: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    weight, proxies, items = (
        torch.randn(*shape, generator=generator, dtype=torch.float64)
        for shape in ((5, 3), (4, 3), (12, 5))
    )
    return weight, proxies, items, torch.arange(12) % 4


def train_many_classes(
    world: World, name: str, n_classes: int, dim: int, folder: str
) -> dict[str, Any]:
    """Train a sharded loss for two steps, save it, load it into a new one and train a third step.

    `mib` in the result is the additional peak memory of training, saving and loading.
    """
    params: dict[str, Any] = dict(make_rank_spec(name).loss_knobs)

    def build() -> tuple[nn.Module, torch.optim.Optimizer, ShardedState]:
        loss = build_loss(name, n_classes=n_classes, dim=dim, shards=world, keep_mib=8, **params)
        optimizer = torch.optim.AdamW(loss.parameters(), lr=1e-2)
        return loss, optimizer, ShardedState(loss, optimizer, sharded_parameters(loss), world)

    torch.optim.AdamW(nn.Linear(1, 1).parameters())  # exclude its imports from the memory
    before = _reset_peak_mib()
    loss, optimizer, shards = build()
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(n_classes, (32,), generator=generator)
    vectors = torch.randn(32, dim, generator=generator)

    def step() -> float:
        optimizer.zero_grad()
        value = loss(vectors, labels)
        value.backward()
        optimizer.step()
        return float(value.detach())

    values = [step(), step()]
    proxies = loss.get_parameter("proxies")
    assert proxies.grad is not None
    moments = [m for m in optimizer.state[proxies].values() if m.dim()]
    held = sum(t.untyped_storage().nbytes() for t in (proxies, proxies.grad, *moments)) / 2**20
    found = {"rows": len(proxies), "held": held, "sums": [_sum_proxy_state(loss, optimizer)]}
    mib = {"train": _read_peak_mib() - before}

    _reset_peak_mib()
    state = dict(zip(("loss", "optimizer"), shards.collect_state_dicts(), strict=True))
    if world.rank == 0:
        save_checkpoint(folder, name, state)
    for tensor in find_sharded_tensors(state):
        tensor.finish_exchange()
    mib["save"] = _read_peak_mib() - before
    world.all_reduce_sum_(torch.zeros(1))  # wait until the file is written
    del loss, optimizer, shards, proxies, moments, state

    _reset_peak_mib()
    loss, optimizer, shards = build()
    payload = load_checkpoint(folder, name)
    assert payload is not None
    shards.load_state_dicts(payload["loss"], payload["optimizer"])
    del payload
    found["sums"].append(_sum_proxy_state(loss, optimizer))
    values.append(step())
    mib["load"] = _read_peak_mib() - before
    return {**found, "values": values, "mib": mib}


def _sum_proxy_state(loss: nn.Module, optimizer: torch.optim.Optimizer) -> list[float]:
    """Return sums that identify the state of this rank's proxies."""
    proxies = loss.get_parameter("proxies")
    tensors = [proxies.detach(), *(m for m in optimizer.state[proxies].values() if m.dim())]
    return [float(part.sum()) for tensor in tensors for part in (tensor, tensor[0], tensor[-1])]


def _reset_peak_mib() -> float:
    """Reset the peak of the resident memory and return it in MiB."""
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    return _read_peak_mib()


def _read_peak_mib() -> float:
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM"))
