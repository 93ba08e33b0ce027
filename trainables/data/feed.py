"""Batch feeds: the model's inputs for training and evaluation, on the device of a trial.

- `HostFeed` prepares batches on the CPU, ahead of their use, for trials that train on it.
- `ResidentFeed` keeps all stored items in the memory of an accelerator and prepares batches there.
- `StagedFeed` copies the stored items of each batch to the accelerator ahead of their use, for data
  sets that do not fit.

The random numbers of an epoch are drawn on the host before its first step, in the order of the
steps and for complete batches. They therefore depend neither on the feed nor on the world size.
"""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from trainables.data.augment import AugmentationDraws, ImageTransform
from trainables.data.dataset import DatasetPart
from trainables.data.device_transform import DeviceImageTransform, compute_evaluation_boxes
from trainables.utils.prefetch import prefetch_in_threads

RESIDENT_MEMORY_SHARE = 0.4
"""Largest share of a trial's device memory that resident items may use."""
STAGED_BATCHES_AHEAD = 2
UPLOAD_CHUNK_BYTES = 128 * 2**20

Rows = NDArray[np.int64]


@dataclass(frozen=True)
class EpochDraws:
    """Rows and random numbers of this rank's share of every batch of an epoch.

    Args:
        rows: Positions in the data set part, for each batch.
        augmentation: Random numbers of the augmentation, for each batch; None for features.
    """

    rows: Sequence[Rows]
    augmentation: Sequence[AugmentationDraws] | None


class BatchFeed(Protocol):
    """Source of the model's inputs of one data set part."""

    def iter_training_inputs(self, draws: EpochDraws) -> Iterator[Tensor]:
        """Yield the augmented inputs of this rank's share of every batch of an epoch."""

    def iter_evaluation_inputs(self, batches: Sequence[Rows]) -> Iterator[Tensor]:
        """Yield the inputs of some items without augmentation, batch by batch."""


def draw_epoch(
    part: DatasetPart,
    transform: ImageTransform | None,
    batches: Sequence[Rows],
    generator: torch.Generator,
    select_own: Callable[[int], slice] = slice,
) -> EpochDraws:
    """Draw the random numbers of an epoch.

    Args:
        part: Items to train on.
        transform: Transform of images; None for features.
        batches: Positions of the items of every complete batch.
        generator: A CPU generator.
        select_own: Returns this rank's slice of a batch of some size.
    """
    own_rows = [batch[select_own(len(batch))] for batch in batches]
    if transform is None:
        return EpochDraws(own_rows, None)
    height, width = part.items.shape[1:3]
    draws = []
    for batch in batches:
        aspects = part.read_aspects(batch)
        drawn = transform.draw_augmentation(len(batch), height, width, generator, aspects)
        draws.append(drawn.select(select_own(len(batch))))
    return EpochDraws(own_rows, draws)


@dataclass
class DeviceItemStore:
    """Stored items in device memory, shared by the trials of a process.

    Args:
        memory_fraction: Fraction of the device that belongs to this process.
    """

    memory_fraction: float = 1.0
    _resident: dict[tuple[int, torch.device], tuple[NDArray[Any], Tensor]] = field(
        default_factory=dict
    )

    def load_items(self, items: NDArray[Any], device: torch.device) -> Tensor | None:
        """Return all items as a tensor on the device; None if they need too much memory."""
        key = (id(items), device)
        if key not in self._resident:
            if items.nbytes > self._count_available_bytes(device):
                return None
            self._resident[key] = (items, _upload_items(items, device))  # keeps the id in use
        return self._resident[key][1]

    def _count_available_bytes(self, device: torch.device) -> float:
        free, total = torch.get_device_module(device).mem_get_info(device)
        limit = RESIDENT_MEMORY_SHARE * self.memory_fraction * total
        used = sum(t.nbytes for (_, at), (_, t) in self._resident.items() if at == device)
        return float(min(limit - used, RESIDENT_MEMORY_SHARE * free))


def make_feed(
    part: DatasetPart,
    transform: ImageTransform | None,
    device: torch.device,
    store: DeviceItemStore,
    *,
    workers: int = 1,
) -> BatchFeed:
    """Return the feed that suits a device and its memory.

    Args:
        part: Items of the feed.
        transform: Transform of images; None for features.
        device: Device of the model.
        store: Items that are already on the device.
        workers: Threads that prepare batches on the CPU.
    """
    if device.type == "cpu":
        return HostFeed(part, transform, workers=workers)
    items = store.load_items(part.items, device)
    if items is None:
        return StagedFeed(part, transform, device)
    return ResidentFeed(part, transform, items)


class HostFeed:
    """Feed that prepares batches on the CPU, in threads, ahead of their use.

    Args:
        part: Items of the feed.
        transform: Transform of images; None for features.
        workers: Number of threads; 0 prepares batches when they are asked for.
    """

    def __init__(
        self, part: DatasetPart, transform: ImageTransform | None, *, workers: int = 1
    ) -> None:
        self._part, self._transform, self._workers = part, transform, workers

    def iter_training_inputs(self, draws: EpochDraws) -> Iterator[Tensor]:
        """Yield the augmented inputs of this rank's share of every batch of an epoch."""
        transform, augmentation = self._transform, draws.augmentation
        if transform is None or augmentation is None:
            return map(self._read_features, draws.rows)

        def prepare_batch(step: int) -> Tensor:
            rows = draws.rows[step]
            return transform.apply_augmentation(
                self._part.read_items(rows),
                augmentation[step],
                aspects=self._part.read_aspects(rows),
            )

        return prefetch_in_threads(prepare_batch, len(draws.rows), workers=self._workers)

    def iter_evaluation_inputs(self, batches: Sequence[Rows]) -> Iterator[Tensor]:
        """Yield the inputs of some items without augmentation, batch by batch."""
        transform = self._transform
        if transform is None:
            return map(self._read_features, batches)

        def prepare_batch(step: int) -> Tensor:
            rows = batches[step]
            return transform.preprocess_images(
                self._part.read_items(rows), self._part.read_aspects(rows)
            )

        return prefetch_in_threads(prepare_batch, len(batches), workers=self._workers)

    def _read_features(self, rows: Rows) -> Tensor:
        # Gathered rows are a copy, which torch may own; only another type needs a second one.
        return torch.from_numpy(np.asarray(self._part.read_items(rows), dtype=np.float32))


class ResidentFeed:
    """Feed of items that are in the memory of the device; a step uploads nothing.

    Args:
        part: Items of the feed.
        transform: Transform of images; None for features.
        items: All rows of `part.items`, on the device.
    """

    def __init__(self, part: DatasetPart, transform: ImageTransform | None, items: Tensor) -> None:
        self._part, self._items = part, items
        self._device_transform = _BatchTransform(part, transform, items.device)

    def iter_training_inputs(self, draws: EpochDraws) -> Iterator[Tensor]:
        """Yield the augmented inputs of this rank's share of every batch of an epoch."""
        prepared = self._device_transform.upload_draws(draws)
        rows = self._upload_rows(draws.rows)
        for own in _batch_slices(draws.rows):
            yield self._device_transform.augment(
                self._items.index_select(0, rows[own]), prepared, own
            )

    def iter_evaluation_inputs(self, batches: Sequence[Rows]) -> Iterator[Tensor]:
        """Yield the inputs of some items without augmentation, batch by batch."""
        boxes = self._device_transform.upload_evaluation_boxes(batches)
        rows = self._upload_rows(batches)
        for own in _batch_slices(batches):
            yield self._device_transform.preprocess(
                self._items.index_select(0, rows[own]), boxes, own
            )

    def _upload_rows(self, batches: Sequence[Rows]) -> Tensor:
        rows = np.concatenate(batches) if batches else np.zeros(0, dtype=np.int64)
        stored = rows if self._part.index is None else self._part.index[rows]
        return torch.from_numpy(stored).to(self._items.device)


class StagedFeed:
    """Feed that copies the stored items of each batch to the device ahead of their use.

    A thread reads items into pinned buffers. Copies are queued on a stream of their own, so they
    run beside the training of earlier batches and the host does not wait for them.

    Args:
        part: Items of the feed.
        transform: Transform of images; None for features.
        device: Device of the model.
    """

    def __init__(
        self, part: DatasetPart, transform: ImageTransform | None, device: torch.device
    ) -> None:
        self._part, self._device = part, device
        self._device_transform = _BatchTransform(part, transform, device)
        self._stream = torch.get_device_module(device).Stream(device=device)

    def iter_training_inputs(self, draws: EpochDraws) -> Iterator[Tensor]:
        """Yield the augmented inputs of this rank's share of every batch of an epoch."""
        prepared = self._device_transform.upload_draws(draws)
        slices = _batch_slices(draws.rows)
        for items, own in zip(self._iter_items(draws.rows), slices, strict=True):
            yield self._device_transform.augment(items, prepared, own)

    def iter_evaluation_inputs(self, batches: Sequence[Rows]) -> Iterator[Tensor]:
        """Yield the inputs of some items without augmentation, batch by batch."""
        boxes = self._device_transform.upload_evaluation_boxes(batches)
        slices = _batch_slices(batches)
        for items, own in zip(self._iter_items(batches), slices, strict=True):
            yield self._device_transform.preprocess(items, boxes, own)

    def _iter_items(self, batches: Sequence[Rows]) -> Iterator[Tensor]:
        """Yield the stored items of each batch on the device."""
        reader = _StagingReader(self._part, batches, self._device)
        accelerator = torch.get_device_module(self._device)
        in_flight: deque[tuple[Tensor, Any]] = deque()
        try:
            for _ in batches:
                while len(in_flight) < STAGED_BATCHES_AHEAD and reader.has_more:
                    in_flight.append(self._start_copy(reader, accelerator))
                items, event = in_flight.popleft()
                current = accelerator.current_stream(self._device)
                current.wait_event(event)
                items.record_stream(current)  # its memory must not be reused before this stream
                yield items
        finally:
            reader.close()

    def _start_copy(self, reader: _StagingReader, accelerator: Any) -> tuple[Tensor, Any]:
        buffer, n = reader.take_buffer()
        event = accelerator.Event()
        with accelerator.stream(self._stream):
            items = buffer[:n].to(self._device, non_blocking=True)
            event.record(self._stream)
        reader.return_buffer(buffer, event)
        return items, event


class _StagingReader:
    """Thread that reads the stored items of batches into pinned buffers, in order."""

    def __init__(self, part: DatasetPart, batches: Sequence[Rows], device: torch.device) -> None:
        self._part, self._batches = part, batches
        self._n_taken = 0
        self._filled: queue.Queue[tuple[Tensor, int] | BaseException] = queue.Queue()
        self._empty: queue.Queue[tuple[Tensor, Any] | None] = queue.Queue()
        longest = max((len(rows) for rows in batches), default=0)
        dtype = torch.from_numpy(np.empty(0, dtype=part.items.dtype)).dtype
        shape = (longest, *part.items.shape[1:])
        for _ in range(STAGED_BATCHES_AHEAD + 1):
            self._empty.put((allocate_pinned(shape, dtype, device), None))
        self._thread = threading.Thread(target=self._read_batches, name="staging", daemon=True)
        self._thread.start()

    @property
    def has_more(self) -> bool:
        """Whether batches are left to take."""
        return self._n_taken < len(self._batches)

    def take_buffer(self) -> tuple[Tensor, int]:
        """Return the buffer of the next batch and its number of items."""
        filled = self._filled.get()
        if isinstance(filled, BaseException):
            raise filled
        self._n_taken += 1
        return filled

    def return_buffer(self, buffer: Tensor, event: Any) -> None:
        """Give a buffer back; it is reused when the event of its copy has happened."""
        self._empty.put((buffer, event))

    def close(self) -> None:
        """End the thread."""
        self._empty.put(None)
        self._thread.join()

    def _read_batches(self) -> None:
        try:
            for rows in self._batches:
                free = self._empty.get()
                if free is None:
                    return
                buffer, event = free
                if event is not None:
                    event.synchronize()
                target = buffer[: len(rows)].numpy()
                target[...] = self._part.read_items(rows)
                self._filled.put((buffer, len(rows)))
        except BaseException as error:  # raised where the batch is taken
            self._filled.put(error)


class _BatchTransform:
    """Transform of stored items on the device; features pass unchanged."""

    def __init__(
        self, part: DatasetPart, transform: ImageTransform | None, device: torch.device
    ) -> None:
        self._part, self._transform, self._device = part, transform, device
        self._on_device: DeviceImageTransform | None = None
        if transform is not None:
            self._on_device = DeviceImageTransform(
                size=transform.size,
                mean=transform.mean,
                std=transform.std,
                device=device,
                max_shift_pixels=transform.max_shift_pixels,
            )

    def upload_draws(self, draws: EpochDraws) -> AugmentationDraws | None:
        """Return the random numbers of all batches on the device, one after the other."""
        if self._transform is None or not draws.augmentation:
            return None
        boxes = _concatenate([d.boxes for d in draws.augmentation])
        if boxes is None:  # training images are those of the evaluation
            boxes = self._evaluation_boxes(draws.rows)
        return AugmentationDraws(
            boxes.to(self._device),
            _to_device(_concatenate([d.shifts for d in draws.augmentation], dim=1), self._device),
            _to_device(_concatenate([d.flips for d in draws.augmentation]), self._device),
        )

    def augment(self, items: Tensor, draws: AugmentationDraws | None, own: slice) -> Tensor:
        """Return the inputs of a batch."""
        if self._on_device is None or draws is None:
            return items
        batch = draws.select(own)
        assert batch.boxes is not None
        return self._on_device.crop_and_normalise(items, batch.boxes, batch.flips, batch.shifts)

    def upload_evaluation_boxes(self, batches: Sequence[Rows]) -> Tensor | None:
        """Return the evaluation crops of all batches on the device, one after the other."""
        if self._transform is None:
            return None
        return self._evaluation_boxes(batches).to(self._device)

    def preprocess(self, items: Tensor, boxes: Tensor | None, own: slice) -> Tensor:
        """Return the inputs of a batch without augmentation."""
        if self._on_device is None or boxes is None:
            return items
        return self._on_device.crop_and_normalise(items, boxes[own])

    def _evaluation_boxes(self, batches: Sequence[Rows]) -> Tensor:
        assert self._transform is not None
        rows = np.concatenate(batches) if batches else np.zeros(0, dtype=np.int64)
        height, width = self._part.items.shape[1:3]
        return compute_evaluation_boxes(
            len(rows), height, width, self._transform.size, self._part.read_aspects(rows)
        )


def allocate_pinned(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return an empty CPU tensor from which copies to the device need not wait."""
    return torch.empty(shape, dtype=dtype, pin_memory=device.type == "cuda")


def _upload_items(items: NDArray[Any], device: torch.device) -> Tensor:
    """Return an array on the device; a memory map is read in chunks."""
    source = torch.from_numpy(np.empty(0, dtype=items.dtype))
    result = torch.empty(items.shape, dtype=source.dtype, device=device)
    rows = max(1, UPLOAD_CHUNK_BYTES // max(1, items[:1].nbytes))
    for start in range(0, len(items), rows):
        chunk = np.array(items[start : start + rows])  # copied: a map is read-only
        result[start : start + rows] = torch.from_numpy(chunk).to(device)
    return result


def _batch_slices(batches: Sequence[Rows]) -> list[slice]:
    """Return the slice of each batch in the concatenation of all."""
    ends = np.cumsum([len(batch) for batch in batches]).tolist()
    return [slice(end - len(batch), end) for end, batch in zip(ends, batches, strict=True)]


def _concatenate(parts: Sequence[Tensor | None], dim: int = 0) -> Tensor | None:
    present = [part for part in parts if part is not None]
    return torch.cat(present, dim=dim) if present else None


def _to_device(values: Tensor | None, device: torch.device) -> Tensor | None:
    return None if values is None else values.to(device)
