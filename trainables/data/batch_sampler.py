"""Which images make up each batch of an epoch?"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

Indices = NDArray[np.int64]


def epoch_batches(
    labels: ArrayLike, *, batch_size: int, images_per_class: int, seed: int | Sequence[int]
) -> list[Indices]:
    """The batches of one epoch: as many as fit the images once, at least one.

    With `images_per_class > 0` batches are class-balanced: distinct classes in turn, all of them
    before any comes again, and of each the next `images_per_class` of its shuffled images. A class
    that has fewer gives what it has and a further class fills the batch, so no image is twice in a
    batch. When `batch_size` is no multiple, the last class of a batch gives fewer. With
    `images_per_class == 0` it is a plain shuffle, the incomplete last batch dropped.

    Args:
        labels: Class id of every image that may be drawn.
        seed: Same seed, same batches; pass (seed, epoch).
    """
    labels = np.asarray(labels, dtype=np.int64)
    if batch_size < 1 or images_per_class < 0:
        raise ValueError(
            "`batch_size >= 1` and `images_per_class >= 0` must hold, "
            f"got {batch_size=}, {images_per_class=}."
        )
    if batch_size > len(labels):
        raise ValueError(f"a batch of {batch_size} needs as many images, got {len(labels)}.")
    rng = np.random.default_rng(seed)
    n_batches = len(labels) // batch_size
    if images_per_class == 0:
        return list(rng.permutation(len(labels))[: n_batches * batch_size].reshape(n_batches, -1))
    n_classes = len(np.unique(labels))
    needed = -(-batch_size // images_per_class)
    if needed > n_classes:
        raise ValueError(
            f"a batch of {batch_size} with {images_per_class} images per class needs {needed} "
            f"classes, got {n_classes}; lower batch_size or raise images_per_class."
        )
    turns = _Turns(labels, rng)
    return [turns.batch(batch_size, images_per_class) for _ in range(n_batches)]


class _Turns:
    """Classes in turn, and the images of each class in turn."""

    def __init__(self, labels: Indices, rng: np.random.Generator) -> None:
        order = np.argsort(labels, kind="stable")
        starts = np.flatnonzero(np.diff(labels[order], prepend=labels[order][0] - 1))
        self.images = np.split(order, starts[1:])
        self.rng = rng
        self.classes: deque[int] = deque()
        self.left = [np.empty(0, dtype=np.int64) for _ in self.images]

    def batch(self, batch_size: int, images_per_class: int) -> Indices:
        parts: list[Indices] = []
        filled, used, later = 0, set[int](), []
        while filled < batch_size and len(used) < len(self.images):
            if not self.classes:
                self.classes.extend(self.rng.permutation(len(self.images)).tolist())
            label = self.classes.popleft()
            if label in used:  # a new round began inside this batch
                later.append(label)
                continue
            used.add(label)
            part = self._next(label, min(images_per_class, batch_size - filled))
            parts.append(part)
            filled += len(part)
        self.classes.extendleft(reversed(later))
        return np.concatenate(parts)

    def _next(self, label: int, count: int) -> Indices:
        count = min(count, len(self.images[label]))
        if len(self.left[label]) < count:
            # The rest of the old round first, then a new one without those images at its head.
            rest = self.left[label]
            fresh = self.rng.permutation(np.setdiff1d(self.images[label], rest))
            self.left[label] = np.concatenate([rest, fresh, self.rng.permutation(rest)])
        part, self.left[label] = self.left[label][:count], self.left[label][count:]
        return part
