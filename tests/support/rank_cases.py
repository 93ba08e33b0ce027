"""What ranks are asked to do in tests: small real trainings in float64, told in plain tensors."""

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
from trainables.backbone import Backbone
from trainables.checkpoints import load_checkpoint, save_checkpoint
from trainables.data.dataset import Dataset, Part
from trainables.losses import LOSSES, build_loss, loss_knobs, sharded_parameters
from trainables.replica import Replica, Task
from trainables.settings import Settings, TrialSpec
from trainables.shards import Shards
from trainables.spread import Spread, spread_in
from trainables.training import Training
from trainables.workbench import Bench
from trainables.world import World, gather_rows, share

N_CLASSES, PER_CLASS, SIDE = 11, 4, 8
NAMES = [
    name
    for host, info in LOSSES.items()
    for name in ([host, f"{host}+synthesis"] if info.family == "proxy" else [host])
]
STEPS = 20

State = dict[str, Tensor]
Trained = tuple[float, State, State | None]
"""Loss and gradients of the first batch, and the weights after some optimiser steps."""


class Tiny(nn.Module):
    """One convolution with its batch norm: as much of an encoder as ranks have to agree on."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.Sequential(
            nn.Conv2d(1, 5, 3, stride=2, bias=False), nn.BatchNorm2d(5), nn.Softplus()
        )

    def forward_features(self, images: Tensor) -> Tensor:
        features: Tensor = self.blocks(images)
        return features


class TinyBench(Bench):
    """A bench whose trials train a tiny encoder."""

    def new_backbone(self, *, seed: int, bn_freeze: str) -> Backbone | None:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return Backbone(
                Tiny(),
                name="tiny",
                layout="NCHW",
                num_features=5,
                image_size=SIDE,
                mean=(0.5,),
                std=(0.25,),
            )


@functools.cache
def bench(kind: str = "images", n_classes: int = N_CLASSES) -> Bench:
    """Random pictures of a few classes for a tiny encoder or a real conv4, or random features."""
    random = np.random.default_rng(3)

    def part(first: int, count: int) -> Part:
        labels = np.repeat(np.arange(first, first + count), PER_CLASS).astype(np.int64)
        base = random.integers(0, 256, (first + count, SIDE, SIDE, 1))[labels]
        noise = random.integers(0, 64, (len(labels), SIDE, SIDE, 1))
        pixels = ((base + noise) % 256).astype(np.uint8)
        if kind != "features":
            return Part(pixels, labels)
        features = pixels.reshape(len(labels), -1) / 128 - 1
        return Part(features.astype(np.float32), labels)

    names = tuple(str(i) for i in range(2 * n_classes))
    data = Dataset("noise", part(0, n_classes), part(n_classes, n_classes), names, "x")
    made = TinyBench if kind == "images" else Bench
    return made(data, {"name": "none" if kind == "features" else "conv4"}, None, SIDE, Path())


def spec(
    loss: str, *, kind: str = "images", shard: bool = False, knobs: Any = None, **settings: Any
) -> TrialSpec:
    """A trial at the loss's published point."""
    known = loss_knobs(loss)
    published = get_space(loss).published[0].values
    chosen = {
        "epochs": 2,
        "batch_size": 14,
        "images_per_class": 3,
        "embedding_dim": 6,
        "augment": "light",
        "lr_decay": "none",
        # Adam divides by |g|: with the usual 1e-8 it would blow the 16th digit of gradients that
        # vanish up to the 7th digit of the weights, whatever the ranks do.
        "adam_eps": 1e-4,
        **settings,
    }
    return TrialSpec(
        trial=f"{loss}-0000",
        loss=loss,
        loss_knobs={k: v for k, v in published.items() if k in known} | (knobs or {}),
        settings=Settings(**chosen),
        seed=1,
        split="test",
        dataset={"kind": kind},
        backbone={},
        cache_dir="",
        threads=1,
        resources={"shard_proxies": shard},
    )


def replica(world: World, trial: TrialSpec, n_classes: int = N_CLASSES) -> Replica:
    """A replica in float64."""
    data = bench(trial.dataset["kind"], n_classes)
    task = Task(train=data.dataset.train, score=data.dataset.test)
    made = Replica(trial, data, task, seed=1, fold=0, world=world)
    made.model.double().train()
    made.loss.double()
    return made


def whole_gradients(made: Replica, world: World) -> State:
    """Gradients by name; shards put together."""
    found = {f"model.{n}": p.grad for n, p in made.model.named_parameters()}
    rows = getattr(made.loss, "n_classes", 0)
    for name, parameter in made.loss.named_parameters():
        sharded = name == "proxies" and len(parameter) < rows
        assert parameter.grad is not None
        grad = world.gather(parameter.grad, rows) if sharded else parameter.grad
        found[f"loss.{name}"] = grad
    return {name: grad.clone() for name, grad in found.items() if grad is not None}


def whole_weights(made: Replica) -> State | None:
    """All weights and buffers, on the first rank."""
    state = made.state_dict()
    for name, value in state["loss"].items():
        if isinstance(value, Spread):
            pieces = list(value.pieces)
            if not pieces:
                return None
            state["loss"][name] = torch.cat(pieces)
    named = {f"model.{k}": v for k, v in state["model"].items()}
    named |= {f"loss.{k}": v for k, v in state["loss"].items()}
    return {k: v.detach().clone() for k, v in named.items() if v.dtype.is_floating_point}


def train(world: World, trial: TrialSpec, steps: int, n_classes: int = N_CLASSES) -> Trained:
    """A short training from scratch."""
    made = replica(world, trial, n_classes)
    made._start_epoch(0, 7)
    generator = torch.Generator().manual_seed(5)
    batches = made._batches(11) + made._batches(12) + made._batches(13)
    batches = (batches * (1 + steps // len(batches)))[:steps]
    first = made.gradients(batches[0], generator)
    gradients = whole_gradients(made, world)
    for batch in batches:
        made._step(batch, generator)
    return first, gradients, whole_weights(made)


def table(world: World, trials: Mapping[str, TrialSpec], steps: int) -> dict[str, Trained]:
    """`train` of many trials in one go."""
    return {name: train(world, trial, steps) for name, trial in trials.items()}


def batch_of(world: World, trial: TrialSpec, batch: list[int]) -> tuple[float, State]:
    """Loss and gradients of one given batch."""
    made = replica(world, trial)
    made._start_epoch(0, 7)
    generator = torch.Generator().manual_seed(5)
    value = made.gradients(np.array(batch), generator)
    return value, whole_gradients(made, world)


def train_and_save(world: World, trial: TrialSpec, folder: str, epochs: int) -> dict[str, Any]:
    """A trial that goes on from its checkpoint, if there is one, up to some epoch."""
    training = Training(replace(trial, checkpoint_dir=folder), bench(trial.dataset["kind"]), world)
    training.restore()
    while training.epoch < epochs:
        training.run_epoch()
    training.save()
    return {**training.last_result, "weights": whole_weights(training.replicas[0])}


def train_and_save_apart(
    world: World, trial: TrialSpec, folder: str, epochs: int
) -> dict[str, Any]:
    """The same for ranks that see a folder each; says from which epoch it went on."""
    own = replace(trial, checkpoint_dir=str(Path(folder, str(world.rank))))
    training = Training(own, bench(trial.dataset["kind"]), world)
    training.restore()
    resumed = training.epoch
    while training.epoch < epochs:
        training.run_epoch()
    training.save()
    weights = whole_weights(training.replicas[0])
    return {**training.last_result, "resumed": resumed, "weights": weights}


def train_unsaved(world: World, trial: TrialSpec, folder: str) -> dict[str, Any]:
    """A trial whose first rank cannot write its checkpoint, and that goes on."""
    training = Training(replace(trial, checkpoint_dir=folder), bench(trial.dataset["kind"]), world)
    training.run_epoch()
    error = ""
    try:
        training.save()
    except OSError as refused:
        error = str(refused)
    return {**training.run_epoch(), "error": error}


def resaved(world: World, trial: TrialSpec, folder: str) -> None:
    """A trial that loads its checkpoint and saves it again."""
    training = Training(replace(trial, checkpoint_dir=folder), bench(trial.dataset["kind"]), world)
    assert training.restore()
    training.save()


def gradients_of_wrapper(world: World, seed: int) -> tuple[State, State]:
    """Proxy-Anchor's gradients by the library's distributed wrapper, and by ours.

    A linear encoder; the wrapper is used as its documentation says, with the encoder's gradients
    averaged over ranks, as DistributedDataParallel does.
    """
    from pytorch_metric_learning import losses
    from pytorch_metric_learning.utils.distributed import DistributedLossWrapper

    weight, proxies, items, labels = wrapper_data(seed)
    own = share(len(items), world.rank, world.size)
    encoder = weight.clone().requires_grad_()
    theirs = losses.ProxyAnchorLoss(4, 3, margin=0.1, alpha=32)
    theirs.proxies = torch.nn.Parameter(proxies.clone())
    DistributedLossWrapper(theirs)(items[own] @ encoder, labels[own]).backward()
    assert encoder.grad is not None
    assert theirs.proxies.grad is not None
    world.sum_(encoder.grad)
    library = {"encoder": encoder.grad / world.size, "proxies": theirs.proxies.grad}
    return library, gradients_of_ours(world, seed)


def gradients_of_ours(world: World, seed: int) -> State:
    """Proxy-Anchor's gradients, this project's way."""
    weight, proxies, items, labels = wrapper_data(seed)
    own = share(len(items), world.rank, world.size)
    encoder = weight.clone().requires_grad_()
    loss = build_loss("proxy_anchor", n_classes=4, dim=3, alpha=32, delta=0.1).double()
    loss.load_state_dict({"proxies": proxies})
    loss(gather_rows(world, items[own] @ encoder, len(items)), labels).backward()
    gradient = loss.get_parameter("proxies").grad
    assert encoder.grad is not None
    assert gradient is not None
    world.sum_(encoder.grad)
    return {"encoder": encoder.grad, "proxies": gradient}


def wrapper_data(seed: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    weight, proxies, items = (
        torch.randn(*shape, generator=generator, dtype=torch.float64)
        for shape in ((5, 3), (4, 3), (12, 5))
    )
    return weight, proxies, items, torch.arange(12) % 4


def many_classes(world: World, name: str, n_classes: int, dim: int, folder: str) -> dict[str, Any]:
    """Two optimiser steps of a sharded loss, then saved, loaded into a new one, and a third.

    `mib` is held at most while each is done, beyond what was held before.
    """
    knobs: dict[str, Any] = dict(spec(name).loss_knobs)

    def build() -> tuple[nn.Module, torch.optim.Optimizer, Shards]:
        loss = build_loss(name, n_classes=n_classes, dim=dim, shards=world, keep_mib=8, **knobs)
        optimizer = torch.optim.AdamW(loss.parameters(), lr=1e-2)
        return loss, optimizer, Shards(loss, optimizer, sharded_parameters(loss), world)

    torch.optim.AdamW(nn.Linear(1, 1).parameters())  # what the first one imports is not meant
    before = _new_peak()
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
    found = {"rows": len(proxies), "held": held, "sums": [_sums(loss, optimizer)]}
    mib = {"train": _peak_mib() - before}

    _new_peak()
    state = dict(zip(("loss", "optimizer"), shards.state(), strict=True))
    if world.rank == 0:
        save_checkpoint(folder, name, state)
    for tensor in spread_in(state):
        tensor.finish()
    mib["save"] = _peak_mib() - before
    world.sum_(torch.zeros(1))  # until it is written
    del loss, optimizer, shards, proxies, moments, state

    _new_peak()
    loss, optimizer, shards = build()
    payload = load_checkpoint(folder, name)
    assert payload is not None
    shards.load(payload["loss"], payload["optimizer"])
    del payload
    found["sums"].append(_sums(loss, optimizer))
    values.append(step())
    mib["load"] = _peak_mib() - before
    return {**found, "values": values, "mib": mib}


def _sums(loss: nn.Module, optimizer: torch.optim.Optimizer) -> list[float]:
    """What tells the state of one rank's proxies from another."""
    proxies = loss.get_parameter("proxies")
    whole = [proxies.detach(), *(m for m in optimizer.state[proxies].values() if m.dim())]
    return [float(part.sum()) for tensor in whole for part in (tensor, tensor[0], tensor[-1])]


def _new_peak() -> float:
    """Forget the peak so far; MiB held now."""
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    return _peak_mib()


def _peak_mib() -> float:
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM"))
