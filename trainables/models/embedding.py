"""From images (or features) to unit vectors."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from trainables.settings import Settings

POOLINGS = ("avg", "max", "avg+max")


class EmbeddingModel(nn.Module):
    """Backbone, pooling, optional layer norm, linear embedding, L2.

    Args:
        backbone: Gives a feature map (N, C, h, w); None when the inputs are features already.
        in_features: C, or the size of the features.
        settings: `pooling`, `layer_norm` and `embedding_dim` are read.

    Forward gives (N, embedding_dim) vectors of unit length.
    """

    def __init__(self, backbone: nn.Module | None, in_features: int, settings: Settings) -> None:
        super().__init__()
        self.backbone = backbone
        self.pooling = settings.pooling
        # Without affine weights, as ProxyNCA++ has it: it only centres and scales each vector.
        self.norm = (
            nn.LayerNorm(in_features, elementwise_affine=False)
            if settings.layer_norm
            else nn.Identity()
        )
        self.head = nn.Linear(in_features, settings.embedding_dim)

    def forward(self, items: Tensor) -> Tensor:
        """Unit vectors."""
        return F.normalize(self.vectors(items), dim=-1)

    def vectors(self, items: Tensor) -> Tensor:
        """The vectors with the lengths they have, for losses that count these."""
        vectors: Tensor = self.head(self.norm(self.features(items)))
        return vectors

    def features(self, items: Tensor) -> Tensor:
        """Pooled backbone features, or the inputs themselves when they are features."""
        return items if self.backbone is None else pool(self.backbone(items), self.pooling)


@contextmanager
def placed(model: nn.Module, device: torch.device) -> Iterator[None]:
    """A model on another device, for a while: what stays from trial to trial stays off the GPU."""
    home = next((p.device for p in model.parameters()), device)
    model.to(device)
    try:
        yield
    finally:
        model.to(home)


def pool(feature_map: Tensor, pooling: str) -> Tensor:
    """A feature map (N, C, h, w) as vectors (N, C); `avg+max` is the sum of the two."""
    if pooling == "avg":
        return feature_map.mean(dim=(2, 3))
    if pooling == "max":
        return feature_map.amax(dim=(2, 3))
    if pooling == "avg+max":
        return feature_map.mean(dim=(2, 3)) + feature_map.amax(dim=(2, 3))
    raise ValueError(f"`pooling` is one of {', '.join(POOLINGS)}, but got {pooling!r}.")
