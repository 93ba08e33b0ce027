"""Interpolated samples as mixtures of two rows of the batch.

A synthetic embedding is factor * (place a + (1 - place) b) with two embeddings a and b of the
batch. Its similarity to any proxy is the same mixture of their similarities, and its gradient
flows to these: it costs a few passes over similarities instead of three matrix products.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class InterpolatedSamples(NamedTuple):
    """Samples between two samples of the batch; all fields are vectors over these samples.

    Args:
        first: Index of the first sample in the batch.
        second: Index of the second sample in the batch.
        place: Share of the first sample, a constant.
        factor: Normalises the mixture; it has a gradient.
    """

    first: Tensor
    second: Tensor
    place: Tensor
    factor: Tensor

    def interpolate_rows(self, vectors: Tensor) -> Tensor:
        """Return the samples as vectors, computed from the rows of the batch."""
        place = self.place[:, None]
        mixed = place * vectors[self.first] + (1.0 - place) * vectors[self.second]
        return mixed * self.factor[:, None]


class EmbeddingBatch(NamedTuple):
    """A batch of embeddings, (batch, dim), and the interpolated samples that follow it."""

    embeddings: Tensor
    between: InterpolatedSamples | None = None


class InterpolatedBatch:
    """Similarities of a batch and its interpolated samples, and gradients back to the batch.

    Args:
        x: The batch, normalised if the loss compares directions.
        between: The interpolated samples that follow it.
    """

    def __init__(self, x: Tensor, between: InterpolatedSamples | None) -> None:
        self.x, self.n_embeddings, self.n_rows = x, len(x), len(x)
        self.factor: Tensor | None = None
        if between is None:
            return
        self.factor = between.factor.detach().to(x.dtype)
        self.n_rows += len(self.factor)
        first = between.place.to(x.dtype) * self.factor
        rows = torch.arange(len(first), device=x.device)
        indices = torch.stack([rows.repeat(2), torch.cat([between.first, between.second])])
        weights = torch.cat([first, self.factor - first])
        size = (len(first), self.n_embeddings)
        self._mixing = torch.sparse_coo_tensor(indices, weights, size, check_invariants=False)
        self._mixing_transposed = self._mixing.t()

    def fill_similarities_(self, out: Tensor, p: Tensor, factors: Tensor) -> Tensor:
        """Fill `out`, (rows, proxies), with inner products times the factors of the proxies."""
        batch = torch.mm(self.x, p.T, out=out[: self.n_embeddings]).mul_(factors)
        if self.factor is None:
            return out
        if _has_contiguous_rows(out):
            out[self.n_embeddings :] = torch.mm(self._mixing, batch)
        else:
            torch.mm(self._mixing.to_dense(), batch, out=out[self.n_embeddings :])
        return out

    def fold_gradient_(self, g: Tensor) -> Tensor:
        """Return the gradient of the batch with that of the interpolated samples added to it."""
        if self.factor is None:
            return g
        batch, mixed = g[: self.n_embeddings], g[self.n_embeddings :]
        if _has_contiguous_rows(g):
            return batch.add_(torch.mm(self._mixing_transposed, mixed))
        return batch.addmm_(self._mixing_transposed.to_dense(), mixed)

    def new_factor_gradient(self) -> Tensor | None:
        """Return a zero gradient of the factors; None without interpolated samples."""
        return None if self.factor is None else torch.zeros_like(self.factor)

    def add_factor_gradient_(self, total: Tensor, sums: Tensor) -> None:
        """Add the gradient of the factors, from the sum of similarity * gradient of each row."""
        if self.factor is not None:
            # Similarities contain the factor; a factor of 0 has no gradient.
            total += torch.where(self.factor > 0, sums[self.n_embeddings :] / self.factor, 0.0)


def _has_contiguous_rows(matrix: Tensor) -> bool:
    """Whether adding two rows is fast; otherwise a small dense product is faster."""
    return matrix.stride(1) == 1 and matrix.device.type == "cpu"
