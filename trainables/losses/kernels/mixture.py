"""Which samples lie between two others, so that they need no matrix product of their own?

A synthetic embedding is factor * (place a + (1 - place) b), with a and b two embeddings as they
are compared. So its similarity to any proxy is the same mixture of two similarities that are known,
and its gradient goes to these: it costs a few passes over similarities, not three products.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Between(NamedTuple):
    """Samples between two of the batch, all vectors of one length.

    `first` and `second` are their places in the batch, `place` is the share of the first, a
    constant, and `factor` puts the mixture back on the sphere; it has a gradient.
    """

    first: Tensor
    second: Tensor
    place: Tensor
    factor: Tensor

    def of(self, vectors: Tensor) -> Tensor:
        """The samples themselves, from the batch as it is compared."""
        place = self.place[:, None]
        mixed = place * vectors[self.first] + (1.0 - place) * vectors[self.second]
        return mixed * self.factor[:, None]


class Samples(NamedTuple):
    """A batch of embeddings, (batch, dim), and samples between them that follow it, if any."""

    embeddings: Tensor
    between: Between | None = None


class Mixture:
    """Similarities of a batch with the samples between it, and gradients back to the batch.

    Args:
        x: The batch as it is compared.
        between: The samples that follow it.
    """

    def __init__(self, x: Tensor, between: Between | None) -> None:
        self.x, self.count, self.rows = x, len(x), len(x)
        self.factor: Tensor | None = None
        if between is None:
            return
        self.factor = between.factor.detach().to(x.dtype)
        self.rows += len(self.factor)
        first = between.place.to(x.dtype) * self.factor
        new = torch.arange(len(first), device=x.device)
        places = torch.stack([new.repeat(2), torch.cat([between.first, between.second])])
        weights = torch.cat([first, self.factor - first])
        size = (len(first), self.count)
        self._down = torch.sparse_coo_tensor(places, weights, size, check_invariants=False)
        self._up = self._down.t()

    def similarities_(self, out: Tensor, p: Tensor, factors: Tensor) -> Tensor:
        """Fill (rows, proxies) with inner products, times the factors of the proxies."""
        known = torch.mm(self.x, p.T, out=out[: self.count]).mul_(factors)
        if self.factor is None:
            return out
        if _in_rows(out):
            out[self.count :] = torch.mm(self._down, known)
        else:
            torch.mm(self._down.to_dense(), known, out=out[self.count :])
        return out

    def back_(self, g: Tensor) -> Tensor:
        """The gradient of the batch's similarities, those of the samples between added to it."""
        if self.factor is None:
            return g
        known, mixed = g[: self.count], g[self.count :]
        if _in_rows(g):
            return known.add_(torch.mm(self._up, mixed))
        return known.addmm_(self._up.to_dense(), mixed)

    def new_gradient(self) -> Tensor | None:
        """Room for the gradient of the factors."""
        return None if self.factor is None else torch.zeros_like(self.factor)

    def add_factors_(self, total: Tensor, sums: Tensor) -> None:
        """Add the factors' gradient, from each row's sum of similarity times gradient."""
        if self.factor is not None:
            # Similarities are the factor times what it multiplies; a factor of 0 has no slope.
            total += torch.where(self.factor > 0, sums[self.count :] / self.factor, 0.0)


def _in_rows(matrix: Tensor) -> bool:
    """Whether adding two rows up is quick; else a small dense product is quicker."""
    return matrix.stride(1) == 1 and matrix.device.type == "cpu"
