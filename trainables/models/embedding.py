"""Embedding model: backbone, pooling and a linear embedding layer."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from trainables.config import TrainingSettings
from trainables.utils.precision import autocast_model
from trainables.utils.precision_names import Precision

POOLING_MODES = ("avg", "max", "avg+max")
MAX_COMPILED_VARIANTS = 64
"""Compiled forms of the model per process: one per input shape and architecture."""


class EmbeddingModel(nn.Module):
    """Backbone, pooling, optional layer norm, linear embedding, and L2 normalisation.

    `forward` maps a batch of images or features to (N, embedding_dim) vectors of unit length.

    Args:
        backbone: Module that returns a feature map (N, C, h, w); None if the inputs are features.
        in_features: C, or the size of the features.
        settings: Training settings, of which `pooling`, `layer_norm` and `embedding_dim` are used.
        precision: Precision of backbone and embedding layer.
    """

    def __init__(
        self,
        backbone: nn.Module | None,
        in_features: int,
        settings: TrainingSettings,
        precision: Precision = "fp32",
    ) -> None:
        super().__init__()
        self.precision: Precision = precision
        self.is_compiled = False
        self.backbone = backbone
        self.pooling = settings.pooling
        # No affine weights, as in ProxyNCA++: it only centres and scales each vector.
        self.norm = (
            nn.LayerNorm(in_features, elementwise_affine=False)
            if settings.layer_norm
            else nn.Identity()
        )
        self.head = nn.Linear(in_features, settings.embedding_dim)

    def forward(self, items: Tensor) -> Tensor:
        """Return embeddings of unit length."""
        return F.normalize(self.compute_raw_embeddings(items), dim=-1)

    def compute_raw_embeddings(self, items: Tensor) -> Tensor:
        """Return embeddings before normalisation, for losses that depend on their length.

        They have the type of the weights: bfloat16 has too few digits for vectors of unit length.
        """
        with autocast_model(self.precision, items.device):
            vectors = self._embed_compiled(items) if self.is_compiled else self._embed(items)
        return vectors.to(self.head.weight.dtype)

    def _embed_compiled(self, items: Tensor) -> Tensor:
        try:
            return _compile_embedding()(self, items)
        except torch._dynamo.exc.FailOnRecompileLimitHit:
            # Earlier trials of this process had other shapes; theirs are compiled again if needed.
            torch._dynamo.reset()
            return _compile_embedding()(self, items)

    def _embed(self, items: Tensor) -> Tensor:
        vectors: Tensor = self.head(self.norm(self.extract_features(items)))
        return vectors

    def extract_features(self, items: Tensor) -> Tensor:
        """Return pooled backbone features, or the inputs themselves if they are features."""
        return items if self.backbone is None else pool_features(self.backbone(items), self.pooling)


@cache
def _compile_embedding() -> Callable[[EmbeddingModel, Tensor], Tensor]:
    """Return the compiled forward pass, the same for all models of a process.

    Models of one architecture and input shape share the compiled code, so only the first trial of
    a process waits for it.
    """
    torch._dynamo.config.recompile_limit = MAX_COMPILED_VARIANTS
    return torch.compile(EmbeddingModel._embed, fullgraph=True, dynamic=False)


@contextmanager
def on_device(model: nn.Module, device: torch.device) -> Iterator[None]:
    """Move a model to a device inside the context and back afterwards.

    Models that are reused by later trials must not occupy GPU memory in between.
    """
    original = next((p.device for p in model.parameters()), device)
    model.to(device)
    try:
        yield
    finally:
        model.to(original)


def pool_features(feature_map: Tensor, pooling: str) -> Tensor:
    """Pool a feature map (N, C, h, w) to vectors (N, C); `avg+max` is the sum of both."""
    if pooling == "avg":
        return feature_map.mean(dim=(2, 3))
    if pooling == "max":
        return feature_map.amax(dim=(2, 3))
    if pooling == "avg+max":
        return feature_map.mean(dim=(2, 3)) + feature_map.amax(dim=(2, 3))
    raise ValueError(f"`pooling` must be one of {', '.join(POOLING_MODES)}, but got {pooling!r}")
