"""Events of a real training epoch of ResNet-50 on the pretend device, in their order.

The epoch is that of `ModelReplica.train_epoch`: drawing, uploads, steps, checks of the loss. Images
and batches are small, because the number and order of events do not depend on their size; the bytes
of uploads are scaled to the size that is modelled.
"""

from __future__ import annotations

import contextlib
import importlib.util
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tests.benchmarks.virtual_clock import (
    AwaitExchanges,
    Event,
    Exchange,
    Launch,
    Upload,
    Wait,
)
from tests.support.pretend_device import (
    DeviceCounters,
    PretendTensor,
    count_device_work,
    pin,
    register_pretend_device,
)
from trainables.config import TrainingSettings, TrialSpec
from trainables.data import feed
from trainables.data.dataset import Dataset, DatasetPart
from trainables.distributed.world import SingleProcessWorld, World
from trainables.training.context import TrainingContext
from trainables.training.loss_monitor import LossMonitor
from trainables.training.replica import ModelReplica
from trainables.training.tasks import FoldTask
from trainables.utils.heartbeat import Heartbeat

STORED_PIXELS, INPUT_PIXELS, BATCH_SIZE = 36, 32, 16
MODELLED_STORED_PIXELS = 256
IMAGES_PER_CLASS = 4


class EventRecorder(DeviceCounters):  # type: ignore[no-untyped-call]
    """Counters of the pretend device that also keep the order of what they count."""

    def __init__(self) -> None:
        super().__init__()
        self.events: list[Event] = []
        self._seen = self._count_totals()

    def run(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """Run an operation, count it and record its events."""
        self._record_new_events("")  # waits that are not operations, such as `synchronize`
        result = super().run(func, args, kwargs)
        self._record_new_events(func._schema.name.split("::")[1])
        return result

    def record_event(self, event: Event) -> None:
        """Record an event that is not an operation of torch."""
        self._record_new_events("")
        self.events.append(event)

    def _count_totals(self) -> tuple[int, int, int, int]:
        counters = (self.launches, self.waits, self.uploads)
        launches, waits, uploads = (sum(counter.values()) for counter in counters)
        return launches, waits, uploads, self.uploaded_bytes

    def _record_new_events(self, kernel: str) -> None:
        totals = self._count_totals()
        launches, waits, uploads, n_bytes = (
            now - before for now, before in zip(totals, self._seen, strict=True)
        )
        self._seen = totals
        self.events.extend([Launch(kernel)] * launches)
        if uploads:
            self.events.append(Upload(n_bytes, is_blocking=waits > 0))
        else:
            self.events.extend([Wait()] * waits)


class RecordedExchange:
    """An exchange that has begun; kernels after `wait` need its result."""

    def wait(self) -> None:
        """Record that the device waits for it, and not the host."""
        recorder = DeviceCounters.active[-1]
        if isinstance(recorder, EventRecorder):
            recorder.record_event(AwaitExchanges())


class RecordedWorld:
    """First of several ranks on the pretend device; the others send what this one has."""

    rank = 0

    def __init__(self, size: int) -> None:
        self.size, self.device = size, register_pretend_device()
        self.heartbeat = Heartbeat()

    def all_reduce_sum_(self, partial: Tensor) -> None:
        """Record an exchange."""
        _record_exchange(partial)

    def all_reduce_sum_many_(self, partials: Sequence[Tensor]) -> None:
        """Record one exchange of all tensors."""
        _record_exchange(*partials)

    def start_all_reduce_sum(self, partial: Tensor) -> RecordedExchange:
        """Record an exchange beside which kernels may run."""
        _record_exchange(partial, is_overlapped=True)
        return RecordedExchange()

    def all_reduce_max_(self, partial: Tensor) -> None:
        """Record an exchange."""
        _record_exchange(partial)

    def broadcast_(self, values: Tensor) -> None:
        """Record an exchange."""
        _record_exchange(values)

    def all_gather(self, rows: Tensor, total: int) -> Tensor:
        """Record an exchange and return the own rows once for every rank."""
        _record_exchange(rows)
        return torch.cat([rows.detach()] * self.size)[:total]

    def all_gather_many(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Record one exchange and return every tensor once for every rank, without a kernel."""
        _record_exchange(*tensors)
        return [
            PretendTensor(torch.stack([tensor.host_tensor] * self.size))
            for tensor in (tensor.detach() for tensor in tensors)
            if isinstance(tensor, PretendTensor)
        ]

    def gather_in_pieces(self, rows: Tensor, total: int) -> Iterator[Tensor]:
        """Yield the own rows once for every rank."""
        yield self.all_gather(rows, total).cpu()


def _record_exchange(*tensors: Tensor, is_overlapped: bool = False) -> None:
    recorder = DeviceCounters.active[-1]
    if isinstance(recorder, EventRecorder):
        n_bytes = sum(tensor.nbytes for tensor in tensors)
        recorder.record_event(Exchange(n_bytes, is_overlapped))


@dataclass(frozen=True)
class RecordedEpoch:
    """Events of an epoch.

    Args:
        events: Events from the beginning to the end of `train_epoch`.
        step_events: Events of one training step within an epoch.
        n_steps: Number of training steps.
        ranks: World size.
    """

    events: tuple[Event, ...]
    step_events: tuple[Event, ...]
    n_steps: int
    ranks: int

    @property
    def has_elementwise_batch_norm(self) -> bool:
        """Whether batch norm consists of elementwise kernels instead of torch's own."""
        kernels = {event.kernel for event in self.step_events if isinstance(event, Launch)}
        return not any("batch_norm" in kernel for kernel in kernels)

    def count_step_events(self) -> dict[str, int]:
        """Return the number of launches, waits, uploads and exchanges of a step."""
        kinds = {"launches": Launch, "waits": Wait, "uploads": Upload, "exchanges": Exchange}
        return {
            name: sum(isinstance(event, kind) for event in self.step_events)
            for name, kind in kinds.items()
        }


def record_epoch(
    *, n_steps: int, ranks: int = 1, is_staged: bool = False, modelled_batch: int = 120
) -> RecordedEpoch:
    """Train an epoch of ResNet-50 on the pretend device and return its events.

    Args:
        n_steps: Number of training steps.
        ranks: World size.
        is_staged: Whether items are copied for every batch instead of being resident.
        modelled_batch: Images of a rank in a step, to which the bytes of uploads are scaled.
    """
    world: World = SingleProcessWorld(register_pretend_device())
    if ranks > 1:
        world = RecordedWorld(ranks)
        _register_native_batch_norm()
    recorder = EventRecorder()
    with count_device_work(recorder), _pin_staging_buffers():
        replica = _make_replica(world, n_steps, is_staged=is_staged)
        step_events = _record_step(replica, recorder)
        recorder.events.clear()
        replica.train_epoch(1)
    scale = modelled_batch * MODELLED_STORED_PIXELS**2 / (BATCH_SIZE // ranks * STORED_PIXELS**2)
    events, step_events = (
        [replace(e, n_bytes=e.n_bytes * scale) if isinstance(e, Upload) else e for e in some]
        for some in (recorder.events, step_events)
    )
    return RecordedEpoch(tuple(events), tuple(step_events), n_steps, ranks)


def _record_step(replica: ModelReplica, recorder: EventRecorder) -> list[Event]:
    """Return the events of the third step; the first creates the optimiser's state."""
    replica._start_epoch(0, 0)
    monitor = LossMonitor(replica.world)
    batches = (replica._draw_batches(0) * 4)[:4]
    steps = replica._iter_batches(batches, torch.Generator().manual_seed(0))
    for step, (inputs, labels) in enumerate(steps):
        replica._run_training_step(inputs, labels, monitor)
        if step == 2:
            break
        recorder.events.clear()
    return list(recorder.events)


@contextlib.contextmanager
def _pin_staging_buffers() -> Iterator[None]:
    """Treat the buffers of `StagedFeed` as pinned, as they are on CUDA."""
    allocate = feed.allocate_pinned
    feed.allocate_pinned = lambda *args: pin(allocate(*args))
    try:
        yield
    finally:
        feed.allocate_pinned = allocate


def _make_replica(world: World, n_steps: int, *, is_staged: bool) -> ModelReplica:
    random = np.random.default_rng(0)
    n_images = n_steps * BATCH_SIZE
    labels = np.arange(n_images, dtype=np.int64) // IMAGES_PER_CLASS
    pixels = random.integers(0, 256, (n_images, STORED_PIXELS, STORED_PIXELS, 3), dtype=np.uint8)
    part = DatasetPart(pixels, labels)
    data = Dataset("random", part, part, tuple(map(str, range(len(set(labels))))), "random")
    context = TrainingContext(data, {"name": "resnet50"}, None, INPUT_PIXELS, Path())
    if is_staged:
        context.item_store.memory_fraction = 0.0
    spec = TrialSpec(
        trial="recorded",
        loss="norm_softmax",
        loss_knobs={"temperature": 0.05},
        settings=TrainingSettings(
            batch_size=BATCH_SIZE,
            images_per_class=IMAGES_PER_CLASS,
            augment="papers",
        ),
        seed=0,
        dataset={},
        backbone={},
        cache_dir="",
    )
    return ModelReplica(spec, context, FoldTask(part, part), seed=0, fold=0, world=world)


def _register_native_batch_norm() -> None:
    """Let torch's kernels of batch norm over ranks run on CPUs, if there are stand-ins for them."""
    name = "tests.support.native_batch_norm"
    if importlib.util.find_spec(name) is not None:
        importlib.import_module(name).register_native_batch_norm()
