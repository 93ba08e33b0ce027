"""Batch sampler: class-balanced or shuffled batches of an epoch."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

IndexArray = NDArray[np.int64]


def sample_epoch_batches(
    labels: ArrayLike, *, batch_size: int, images_per_class: int, seed: int | Sequence[int]
) -> list[IndexArray]:
    """Return the batches of one epoch: as many complete batches as there are images for.

    With `images_per_class > 0` batches are class-balanced: classes take turns, all of them before
    any is repeated, and each contributes the next `images_per_class` of its shuffled images. A
    class with fewer images contributes all it has and another class fills the batch, so a batch
    contains no image twice. If `batch_size` is not a multiple of `images_per_class`, the last class
    of a batch contributes fewer. With `images_per_class == 0` images are shuffled, and the
    incomplete last batch is dropped.

    Args:
        labels: Class id of every image.
        batch_size: Images per batch.
        images_per_class: Images per class and batch, or 0.
        seed: The same seed gives the same batches; pass (seed, epoch).
    """
    labels = np.asarray(labels, dtype=np.int64)
    if batch_size < 1 or images_per_class < 0:
        raise ValueError(
            "`batch_size >= 1` and `images_per_class >= 0` must hold, "
            f"got {batch_size=}, {images_per_class=}"
        )
    if batch_size > len(labels):
        raise ValueError(f"a batch of {batch_size} needs {batch_size} images, got {len(labels)}")
    rng = np.random.default_rng(seed)
    n_batches = len(labels) // batch_size
    if images_per_class == 0:
        return list(rng.permutation(len(labels))[: n_batches * batch_size].reshape(n_batches, -1))
    n_classes = len(np.unique(labels))
    needed = -(-batch_size // images_per_class)
    if needed > n_classes:
        raise ValueError(
            f"a batch of {batch_size} with {images_per_class} images per class needs {needed} "
            f"classes, got {n_classes}; reduce batch_size or increase images_per_class"
        )
    sampler = _BalancedBatchSampler(labels, rng)
    return [sampler.next_batch(batch_size, images_per_class) for _ in range(n_batches)]


class _BalancedBatchSampler:
    """Batches in which classes, and the images of each class, take turns."""

    def __init__(self, labels: IndexArray, rng: np.random.Generator) -> None:
        order = np.argsort(labels, kind="stable")
        starts = np.flatnonzero(np.diff(labels[order], prepend=labels[order][0] - 1))
        self.images_by_class = np.split(order, starts[1:])
        self.rng = rng
        self.class_queue: deque[int] = deque()
        self.remaining_images = [np.empty(0, dtype=np.int64) for _ in self.images_by_class]

    def next_batch(self, batch_size: int, images_per_class: int) -> IndexArray:
        parts: list[IndexArray] = []
        filled, used, later = 0, set[int](), []
        while filled < batch_size and len(used) < len(self.images_by_class):
            if not self.class_queue:
                self.class_queue.extend(self.rng.permutation(len(self.images_by_class)).tolist())
            label = self.class_queue.popleft()
            if label in used:  # a new round of classes began inside this batch
                later.append(label)
                continue
            used.add(label)
            part = self._next_images(label, min(images_per_class, batch_size - filled))
            parts.append(part)
            filled += len(part)
        self.class_queue.extendleft(reversed(later))
        return np.concatenate(parts)

    def _next_images(self, label: int, count: int) -> IndexArray:
        count = min(count, len(self.images_by_class[label]))
        if len(self.remaining_images[label]) < count:
            # First the rest of the old round, then a new round that begins with other images.
            rest = self.remaining_images[label]
            fresh = self.rng.permutation(np.setdiff1d(self.images_by_class[label], rest))
            self.remaining_images[label] = np.concatenate([rest, fresh, self.rng.permutation(rest)])
        part, self.remaining_images[label] = (
            self.remaining_images[label][:count],
            self.remaining_images[label][count:],
        )
        return part
