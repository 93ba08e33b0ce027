"""Base of all proxy losses: learned proxies, synthetic classes and sampled negatives."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from trainables.distributed.world import SingleProcessWorld, World, rank_slice
from trainables.losses.base.classes import (
    StepClasses,
    draw_classes,
    draw_initial_proxies,
    fetch_proxies,
    place_drawn_classes,
    sample_classes,
)
from trainables.losses.base.device_draws import ClassDrawPool
from trainables.losses.base.hyperparameters import as_integer, is_number
from trainables.losses.base.synthesis import ProxySynthesis
from trainables.losses.kernels.blocks import MemoryBudget, ProxySegment, widest_dtype
from trainables.losses.kernels.mixture import EmbeddingBatch
from trainables.losses.kernels.own_entries import can_read_values


@dataclass(frozen=True)
class LossSetup:
    """Conditions that a loss is built for; none of them is a hyperparameter of the loss.

    Args:
        n_classes: Number of training classes; labels are 0 ... n_classes - 1.
        dim: Length of an embedding.
        seed: Seed of the initial proxies and of the plug-in's random pairs.
        budget: Memory for the similarities of a batch with all proxies.
        world: Ranks that each hold the proxies of a share of the classes.
        negative_share: Share of the absent classes that a batch is compared with.
    """

    n_classes: int
    dim: int
    seed: int = 0
    budget: MemoryBudget = field(default_factory=MemoryBudget)
    world: World = field(default_factory=lambda: SingleProcessWorld(torch.device("cpu")))
    negative_share: float = 1.0

    def __post_init__(self) -> None:
        for name in ("n_classes", "dim"):
            given = getattr(self, name)
            value = as_integer(given)
            if value is None or value < 1:
                raise ValueError(f"`{name} >= 1` (an integer) must hold, but got {given!r}")
            object.__setattr__(self, name, value)
        if as_integer(self.seed) is None:
            raise ValueError(f"`seed` must be an integer, but got {self.seed!r}")
        if not is_number(self.negative_share) or not 0.0 < self.negative_share <= 1.0:
            raise ValueError(
                f"`0 < negative_share <= 1` must hold, but got {self.negative_share!r}"
            )


class ProxyLoss(nn.Module):
    """Learned proxies and a head that computes the loss from embeddings, labels and proxies.

    The initial proxies have random directions and length about one for every loss. A learning rate
    of the proxies is a step relative to that length, so it has the same meaning for every loss.

    With several ranks, each holds the proxies of consecutive classes; they are initialised and
    trained as the same rows are in one process.

    Args:
        setup: Classes, dimension, seed, ranks.
        head: The loss as a function of (samples, labels, classes).
        proxies_per_class: 1 gives `proxies` of shape (n_classes, dim), K > 1 (n_classes, K, dim).
        synthesis: Plug-in that adds synthetic classes to each batch.
    """

    def __init__(
        self,
        setup: LossSetup,
        head: nn.Module,
        *,
        proxies_per_class: int = 1,
        synthesis: ProxySynthesis | None = None,
    ) -> None:
        super().__init__()
        if isinstance(proxies_per_class, bool) or proxies_per_class != int(proxies_per_class):
            raise ValueError(f"proxies per class must be an integer, but got {proxies_per_class!r}")
        if proxies_per_class < 1:
            raise ValueError(f"`proxies per class >= 1` must hold, but got {proxies_per_class}")
        several = (int(proxies_per_class),) if proxies_per_class > 1 else ()
        self.n_classes, self.world = setup.n_classes, setup.world
        self.negative_share = setup.negative_share
        self._own_classes = rank_slice(setup.n_classes, setup.world.rank, setup.world.size)
        self.reseed(setup.seed)
        start = draw_initial_proxies(
            setup.n_classes, (*several, setup.dim), self._own_classes, seed=setup.seed
        )
        self.proxies = nn.Parameter(start)
        self.head, self.synthesis = head, synthesis

    def reseed(self, seed: int) -> None:
        """Seed the draws of the classes; they then depend on the seed and the batches only."""
        self._seed, self._steps = seed, 0
        n_own = self._own_classes.stop - self._own_classes.start
        self._class_pool = ClassDrawPool(expected=n_own * self.negative_share)

    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        """Return the loss of (batch, dim) embeddings with int64 labels in [0, n_classes)."""
        check_batch(embeddings, labels, n_classes=self.n_classes, dim=self.proxies.shape[-1])
        trained: int | Tensor
        unused: Tensor | None = None
        if self.world.size == 1 and self.negative_share == 1:
            samples, labels, segments = self._add_synthetic_classes(
                embeddings, labels, self.proxies
            )
            trained, synthetic = self.n_classes, sum(len(s.proxies) for s in segments[1:])
        else:
            samples, labels, extra, synthetic = self._synthesise_across_ranks(embeddings, labels)
            labels, segment, trained, unused = self._sample_classes(labels, embeddings)
            segments = [segment, *extra]
        classes = StepClasses(segments, trained + synthetic, trained, self.world, unused)
        result: Tensor = self.head(samples, labels, classes)
        return result

    def _add_synthetic_classes(
        self, embeddings: Tensor, labels: Tensor, proxies: Tensor
    ) -> tuple[EmbeddingBatch, Tensor, list[ProxySegment]]:
        if self.synthesis is None:
            return EmbeddingBatch(embeddings), labels, [ProxySegment(0, proxies)]
        return cast(
            tuple[EmbeddingBatch, Tensor, list[ProxySegment]],
            self.synthesis(embeddings, labels, proxies),
        )

    def _synthesise_across_ranks(
        self, embeddings: Tensor, labels: Tensor
    ) -> tuple[EmbeddingBatch, Tensor, list[ProxySegment], int]:
        """Return samples, labels, this rank's segment of synthetic classes, and their number.

        The plug-in receives only the proxies of the classes of the batch, fetched from all ranks.
        """
        if self.synthesis is None:
            return EmbeddingBatch(embeddings), labels, [], 0
        if not can_read_values(labels):
            return self._synthesise_from_rows(self.synthesis, embeddings, labels)
        present, dense = torch.unique(labels, return_inverse=True)
        parents = fetch_proxies(self.proxies, present, self._own_classes, self.world)
        samples, _, segments = self._add_synthetic_classes(embeddings, dense, parents)
        if len(segments) == 1:
            return samples, labels, [], 0
        return (samples, *self._share_synthetic_classes(labels, segments[1].proxies))

    def _synthesise_from_rows(
        self, synthesis: ProxySynthesis, embeddings: Tensor, labels: Tensor
    ) -> tuple[EmbeddingBatch, Tensor, list[ProxySegment], int]:
        """Return the result of `_synthesise_across_ranks` on a device that must not be waited for.

        The proxies are fetched for every sample: only the device knows how many classes there are.
        """
        if synthesis.count_classes(len(labels)) == 0:
            return EmbeddingBatch(embeddings), labels, [], 0
        dtype = widest_dtype(embeddings, self.proxies)
        parents = fetch_proxies(self.proxies, labels, self._own_classes, self.world)
        samples, synthetic = synthesis.synthesise_from_rows(
            embeddings.to(dtype), labels, parents.to(dtype)
        )
        return (samples, *self._share_synthetic_classes(labels, synthetic))

    def _share_synthetic_classes(
        self, labels: Tensor, synthetic: Tensor
    ) -> tuple[Tensor, list[ProxySegment], int]:
        """Return labels with the synthetic ones, this rank's synthetic proxies, their number."""
        new = torch.arange(len(synthetic), device=labels.device) + self.n_classes
        own = rank_slice(len(synthetic), self.world.rank, self.world.size)
        segment = ProxySegment(self.n_classes + own.start, synthetic[own])
        return torch.cat([labels, new]), [segment], len(synthetic)

    def _sample_classes(
        self, labels: Tensor, embeddings: Tensor
    ) -> tuple[Tensor, ProxySegment, int | Tensor, Tensor | None]:
        """Return labels renumbered to the drawn classes, their proxies, number and unused ones.

        Only the labels of the embeddings are those of trained classes; synthetic ones follow.
        """
        first = self._own_classes.start
        if self.negative_share == 1 or self.n_classes == 1:
            return labels, ProxySegment(first, self.proxies), self.n_classes, None
        self._steps += 1
        if not can_read_values(labels):
            return self._sample_classes_on_device(labels, embeddings)
        seed = (self._seed, self._steps)
        drawn = sample_classes(
            labels, self.n_classes, self._own_classes, self.negative_share, seed=seed
        )
        own = (labels >= first) & (labels < self._own_classes.stop)
        places = torch.searchsorted(drawn, labels - first) + first
        n_drawn = torch.tensor(len(drawn), device=labels.device)
        self.world.all_reduce_sum_(n_drawn)
        segment = ProxySegment(first, self.proxies.index_select(0, drawn))
        return torch.where(own, places, labels), segment, int(n_drawn), None

    def _sample_classes_on_device(
        self, labels: Tensor, embeddings: Tensor
    ) -> tuple[Tensor, ProxySegment, Tensor, Tensor | None]:
        """Return the result of `_sample_classes` without a value that the host has to know."""
        drawn = self._class_pool.take_step(self._draw_classes_of_step, self._steps, labels.device)
        # The number of classes is a divisor, so it has the dtype of the loss.
        batch, dtype = len(embeddings), widest_dtype(embeddings, self.proxies)
        if len(self.proxies) == 0:
            n_used = torch.zeros((), dtype=dtype, device=labels.device)
            self.world.all_reduce_sum_(n_used)
            return labels, ProxySegment(self._own_classes.start, self.proxies), n_used, None
        placed = place_drawn_classes(labels[:batch], self.n_classes, self._own_classes, drawn)
        n_used = (~placed.unused).sum(dtype=dtype)
        self.world.all_reduce_sum_(n_used)
        # Negative numbers differ from the classes of other ranks and from synthetic ones.
        first = -len(placed.rows)
        trained = torch.where(placed.is_own, placed.columns + first, labels[:batch])
        renumbered = trained if len(labels) == batch else torch.cat([trained, labels[batch:]])
        segment = ProxySegment(first, self.proxies.index_select(0, placed.rows))
        return renumbered, segment, n_used, placed.unused

    def _draw_classes_of_step(self, step: int) -> tuple[NDArray[np.int64], int]:
        return draw_classes(
            self.n_classes, self._own_classes, self.negative_share, seed=(self._seed, step)
        )


def check_batch(embeddings: Tensor, labels: Tensor, *, n_classes: int, dim: int) -> None:
    """Raise ValueError unless the batch has the shapes and labels that the loss is built for.

    The range of labels is checked only on the CPU: for labels on another device the host would have
    to wait. A trainer knows its labels on the host and checks them there, once.
    """
    if embeddings.dim() != 2 or embeddings.shape[1] != dim or len(embeddings) == 0:
        raise ValueError(
            f"embeddings must have shape (batch >= 1, {dim}), but got {tuple(embeddings.shape)}"
        )
    if labels.shape != embeddings.shape[:1] or labels.dtype != torch.int64:
        raise ValueError(
            f"labels must be int64 of shape ({len(embeddings)},), "
            f"but got {labels.dtype} of shape {tuple(labels.shape)}"
        )
    if not can_read_values(labels):
        return
    low, high = (int(label) for label in torch.aminmax(labels))
    if low < 0 or high >= n_classes:
        raise ValueError(f"labels must lie in [0, {n_classes}), but got {low} to {high}")
