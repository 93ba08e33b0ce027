"""What all proxy losses share: the proxies, and a place for synthetic classes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from trainables.losses.blocks import Budget, Segment
from trainables.losses.synthesis import Synthesis


@dataclass(frozen=True)
class Setup:
    """What a loss is built for; everything here is a condition, not a knob.

    Args:
        n_classes: Number of training classes; labels are 0 ... n_classes - 1.
        dim: Length of an embedding.
        seed: Start of the proxies and of the plug-in's random pairs.
        budget: Memory for the similarities of a batch with all proxies.
    """

    n_classes: int
    dim: int
    seed: int = 0
    budget: Budget = field(default_factory=Budget)

    def __post_init__(self) -> None:
        for name in ("n_classes", "dim"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ValueError(f"`{name} >= 1` (an integer) must hold, but got {value!r}.")


Head = Callable[[Tensor, Tensor, list[Segment]], Tensor]


class ProxyLoss(nn.Module):
    """Learned proxies, and a head that turns embeddings, labels and proxies into a number.

    The proxies start as random directions of length about one, whatever the loss: a learning
    rate of the proxies is a step relative to that length, so it means the same for every loss.

    Args:
        setup: Classes, dimension, seed.
        head: The loss as a function of (embeddings, labels, segments of proxies).
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
        generator = torch.Generator().manual_seed(setup.seed)
        start = torch.randn(setup.n_classes, *several, setup.dim, generator=generator)
        self.proxies = nn.Parameter(start.mul_(setup.dim**-0.5))
        self.head, self.synthesis = head, synthesis

    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        """The loss of (batch, dim) embeddings with int64 labels in [0, n_classes)."""
        check_batch(embeddings, labels, n_classes=len(self.proxies), dim=self.proxies.shape[-1])
        segments = [Segment(0, self.proxies)]
        if self.synthesis is not None:
            embeddings, labels, segments = self.synthesis(embeddings, labels, self.proxies)
        result: Tensor = self.head(embeddings, labels, segments)
        return result


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
    low, high = torch.aminmax(labels)
    if low < 0 or high >= n_classes:
        raise ValueError(f"Labels must lie in [0, {n_classes}), but got {int(low)} to {int(high)}.")
