"""What all proxy losses share: the proxies, and a place for synthetic classes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import cast

import torch
from torch import Tensor, nn

from trainables.losses.blocks import Budget, Segment
from trainables.losses.classes import Classes, fetch, sampled, start_values
from trainables.losses.knobs import is_number, whole
from trainables.losses.samples import Samples
from trainables.losses.synthesis import Synthesis
from trainables.world import Alone, World, share


@dataclass(frozen=True)
class Setup:
    """What a loss is built for; everything here is a condition, not a knob.

    Args:
        n_classes: Number of training classes; labels are 0 ... n_classes - 1.
        dim: Length of an embedding.
        seed: Start of the proxies and of the plug-in's random pairs.
        budget: Memory for the similarities of a batch with all proxies.
        world: Ranks that each hold the proxies of a share of the classes.
        negative_share: Share of the classes absent from a batch that it is compared with.
    """

    n_classes: int
    dim: int
    seed: int = 0
    budget: Budget = field(default_factory=Budget)
    world: World = field(default_factory=lambda: Alone(torch.device("cpu")))
    negative_share: float = 1.0

    def __post_init__(self) -> None:
        for name in ("n_classes", "dim"):
            given = getattr(self, name)
            value = whole(given)
            if value is None or value < 1:
                raise ValueError(f"`{name} >= 1` (an integer) must hold, but got {given!r}.")
            object.__setattr__(self, name, value)
        if whole(self.seed) is None:
            raise ValueError(f"`seed` must be an integer, but got {self.seed!r}.")
        if not is_number(self.negative_share) or not 0.0 < self.negative_share <= 1.0:
            raise ValueError(f"`0 < negative_share <= 1` must hold, got {self.negative_share!r}.")


Head = Callable[[Samples, Tensor, Classes], Tensor]


class ProxyLoss(nn.Module):
    """Learned proxies, and a head that turns embeddings, labels and proxies into a number.

    The proxies start as random directions of length about one, whatever the loss: a learning
    rate of the proxies is a step relative to that length, so it means the same for every loss.

    With several ranks each holds the proxies of consecutive classes, its share of all; they start
    and move as the same rows do in one process.

    Args:
        setup: Classes, dimension, seed, ranks.
        head: The loss as a function of (samples, labels, classes).
        proxies_per_class: 1 gives `proxies` of shape (n_classes, dim), K > 1 (n_classes, K, dim).
        synthesis: The plug-in that adds synthetic classes to each batch.
    """

    def __init__(
        self,
        setup: Setup,
        head: nn.Module,
        *,
        proxies_per_class: int = 1,
        synthesis: Synthesis | None = None,
    ) -> None:
        super().__init__()
        if isinstance(proxies_per_class, bool) or proxies_per_class != int(proxies_per_class):
            raise ValueError(f"Proxies per class must be whole, but got {proxies_per_class!r}.")
        if proxies_per_class < 1:
            raise ValueError(f"At least one proxy per class is needed, got {proxies_per_class}.")
        several = (int(proxies_per_class),) if proxies_per_class > 1 else ()
        self.n_classes, self.world = setup.n_classes, setup.world
        self.negative_share = setup.negative_share
        self._own = share(setup.n_classes, setup.world.rank, setup.world.size)
        self._seed, self._steps = setup.seed, 0
        start = start_values(setup.n_classes, (*several, setup.dim), self._own, seed=setup.seed)
        self.proxies = nn.Parameter(start)
        self.head, self.synthesis = head, synthesis

    def reseed(self, seed: int) -> None:
        """Make the classes drawn from here on a function of the seed (and of the batches)."""
        self._seed, self._steps = seed, 0

    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        """The loss of (batch, dim) embeddings with int64 labels in [0, n_classes)."""
        check_batch(embeddings, labels, n_classes=self.n_classes, dim=self.proxies.shape[-1])
        if self.world.size == 1 and self.negative_share == 1:
            samples, labels, segments = self._enlarged(embeddings, labels, self.proxies)
            trained, synthetic = self.n_classes, sum(len(s.proxies) for s in segments[1:])
        else:
            samples, labels, extra, synthetic = self._shared_synthesis(embeddings, labels)
            labels, proxies, trained = self._sampled(labels)
            segments = [Segment(self._own.start, proxies), *extra]
        classes = Classes(segments, trained + synthetic, trained, self.world)
        result: Tensor = self.head(samples, labels, classes)
        return result

    def _enlarged(
        self, embeddings: Tensor, labels: Tensor, proxies: Tensor
    ) -> tuple[Samples, Tensor, list[Segment]]:
        if self.synthesis is None:
            return Samples(embeddings), labels, [Segment(0, proxies)]
        return cast(
            tuple[Samples, Tensor, list[Segment]], self.synthesis(embeddings, labels, proxies)
        )

    def _shared_synthesis(
        self, embeddings: Tensor, labels: Tensor
    ) -> tuple[Samples, Tensor, list[Segment], int]:
        """The batch with synthetic samples, this rank's share of their classes, and their number.

        The plug-in sees only the proxies of the batch's classes, wherever they are held.
        """
        if self.synthesis is None:
            return Samples(embeddings), labels, [], 0
        present, dense = torch.unique(labels, return_inverse=True)
        parents = fetch(self.proxies, present, self._own, self.world)
        samples, _, segments = self._enlarged(embeddings, dense, parents)
        if len(segments) == 1:
            return samples, labels, [], 0
        synthetic = segments[1].proxies
        new = torch.arange(len(synthetic), device=labels.device) + self.n_classes
        own = share(len(synthetic), self.world.rank, self.world.size)
        segment = Segment(self.n_classes + own.start, synthetic[own])
        return samples, torch.cat([labels, new]), [segment], len(synthetic)

    def _sampled(self, labels: Tensor) -> tuple[Tensor, Tensor, int]:
        """Labels renumbered to the drawn classes, their proxies, and their number over ranks."""
        if self.negative_share == 1:
            return labels, self.proxies, self.n_classes
        self._steps += 1
        seed = (self._seed, self._steps)
        kept = sampled(labels, self.n_classes, self._own, self.negative_share, seed=seed)
        own = (labels >= self._own.start) & (labels < self._own.stop)
        places = torch.searchsorted(kept, labels - self._own.start) + self._own.start
        number = torch.tensor(len(kept), device=labels.device)
        self.world.sum_(number)
        return torch.where(own, places, labels), self.proxies.index_select(0, kept), int(number)


def check_batch(embeddings: Tensor, labels: Tensor, *, n_classes: int, dim: int) -> None:
    """Raise ValueError unless the batch has the shapes and labels the loss was built for."""
    if embeddings.dim() != 2 or embeddings.shape[1] != dim or len(embeddings) == 0:
        raise ValueError(
            f"Embeddings must have shape (batch >= 1, {dim}), but got {tuple(embeddings.shape)}."
        )
    if labels.shape != embeddings.shape[:1] or labels.dtype != torch.int64:
        raise ValueError(
            f"Labels must be int64 of shape ({len(embeddings)},), "
            f"but got {labels.dtype} of shape {tuple(labels.shape)}."
        )
    low, high = (int(label) for label in torch.aminmax(labels))
    if low < 0 or high >= n_classes:
        raise ValueError(f"Labels must lie in [0, {n_classes}), but got {low} to {high}.")
