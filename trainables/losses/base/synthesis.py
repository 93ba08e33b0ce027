"""Proxy Synthesis: synthetic classes interpolated between two classes of the batch.

Gu, Ko and Kim, "Proxy Synthesis: Learning with Synthetic Classes for Deep Metric Learning",
AAAI 2021, arXiv:2103.15454. A synthetic class has one embedding between two embeddings of the batch
from different classes and one proxy between the proxies of these classes, both at the same position
lambda and normalised again. The host loss is then computed over real and synthetic classes.
"""

from __future__ import annotations

import math
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from trainables.losses.base.device_draws import HostPairDraws, PairDrawPool
from trainables.losses.kernels.blocks import (
    ProxySegment,
    inverse_norms,
    unit_rows,
    widest_dtype,
)
from trainables.losses.kernels.mixture import EmbeddingBatch, InterpolatedSamples
from trainables.losses.kernels.own_entries import can_read_values
from trainables.utils.precision import strict_float32

SynthesisPath = Literal["linear", "spherical"]
SynthesisDraw = Literal["batch", "sample"]


class ProxySynthesis(nn.Module):
    """Plug-in that adds floor(mu * batch) synthetic classes to a batch; has no parameters.

    Unlike in the authors' code, a pair never has equal labels (there a remaining pair made a second
    proxy of a real class), and mu may exceed 1. A batch of one class has no pairs and gets no
    synthetic classes; on a device other than the CPU the classes of the batch are not read, and
    such a batch must not occur.

    Args:
        alpha: lambda ~ Beta(alpha, alpha).
        mu: Synthetic classes per sample of the batch; 0 is the host loss.
        draw: One lambda per "batch", as in the authors' code, or one per "sample".
        path: "linear" interpolation, or "spherical" along the great circle.
        on_sphere: Whether the host compares directions only. If not, vectors are interpolated
            without normalisation (linear) or in direction and length (spherical).
        seed: Seed of the random pairs and lambdas; `reseed` sets it again.
    """

    def __init__(
        self,
        *,
        alpha: float,
        mu: float,
        draw: SynthesisDraw = "batch",
        path: SynthesisPath = "linear",
        on_sphere: bool = True,
        seed: int = 0,
    ) -> None:
        super().__init__()
        if not (math.isfinite(alpha) and alpha > 0):
            raise ValueError(f"`synthesis_alpha > 0` must hold, but got {alpha}")
        if not (math.isfinite(mu) and mu >= 0):
            raise ValueError(f"`synthesis_mu >= 0` must hold, but got {mu}")
        if draw not in ("batch", "sample"):
            raise ValueError(f"`synthesis_draw` must be batch or sample, but got {draw!r}")
        if path not in ("linear", "spherical"):
            raise ValueError(f"`synthesis_path` must be linear or spherical, but got {path!r}")
        self.alpha, self.mu, self.draw, self.path = alpha, mu, draw, path
        self.on_sphere = on_sphere
        self.reseed(seed)

    def reseed(self, seed: int) -> None:
        """Seed the pairs and lambdas; they then depend on the seed and the batches only."""
        self._random = np.random.default_rng(seed)
        self._pool = PairDrawPool(self._random)

    def forward(
        self, embeddings: Tensor, labels: Tensor, proxies: Tensor
    ) -> tuple[EmbeddingBatch, Tensor, list[ProxySegment]]:
        """Return samples and labels with synthetic ones appended, and real and synthetic proxies.

        Synthetic class s has the label n_classes + s. Gradients flow to both parents.
        """
        if not can_read_values(labels):
            return self._synthesise_on_device(embeddings, labels, proxies)
        first, second = self.draw_pairs(labels)
        if len(first) == 0:
            return EmbeddingBatch(embeddings), labels, [ProxySegment(0, proxies)]
        dtype = widest_dtype(embeddings, proxies)
        place = self.draw_lambdas(len(first)).to(device=embeddings.device, dtype=dtype)
        samples = self._synthesise_samples(embeddings.to(dtype), first, second, place)
        proxies, parents = _TakeRowsFunction.apply(  # type: ignore[no-untyped-call]
            proxies, labels[torch.cat([first, second])], dtype
        )
        p, q = parents[: len(first)], parents[len(first) :]
        place = place.reshape(-1, *([1] * (p.dim() - 1)))
        extra = ProxySegment(len(proxies), self.interpolate_pairs(p, q, place))
        new = torch.arange(len(first), device=labels.device) + len(proxies)
        segments = [ProxySegment(0, proxies), extra]
        return samples, torch.cat([labels, new]), segments

    def _synthesise_on_device(
        self, embeddings: Tensor, labels: Tensor, proxies: Tensor
    ) -> tuple[EmbeddingBatch, Tensor, list[ProxySegment]]:
        """Return the result of `forward` without a value that the host has to know."""
        if self.count_classes(len(labels)) == 0:
            return EmbeddingBatch(embeddings), labels, [ProxySegment(0, proxies)]
        dtype = widest_dtype(embeddings, proxies)
        proxies, parents = _TakeRowsFunction.apply(  # type: ignore[no-untyped-call]
            proxies, labels, dtype
        )
        samples, extra = self.synthesise_from_rows(embeddings.to(dtype), labels, parents)
        segments = [ProxySegment(0, proxies), ProxySegment(len(proxies), extra)]
        new = torch.arange(len(proxies), len(proxies) + len(extra), device=labels.device)
        return samples, torch.cat([labels, new]), segments

    def synthesise_from_rows(
        self, embeddings: Tensor, labels: Tensor, parents: Tensor
    ) -> tuple[EmbeddingBatch, Tensor]:
        """Return the batch with its synthetic samples, and the synthetic proxies.

        This is the form for devices other than the CPU: few kernels for embeddings and proxies
        together. Hosts that compare directions normalise the results themselves.

        Args:
            embeddings: The batch, in the dtype of the result.
            labels: Its labels.
            parents: The proxy or proxies of the class of each sample, one row per sample.
        """
        drawn = self._pool.next_step(self._draw_step, len(labels), labels.device, embeddings.dtype)
        second = _choose_partners(labels, drawn.first, drawn.share)
        several = parents if parents.dim() == 3 else parents[:, None]
        vectors = torch.cat([embeddings[:, None], several], dim=1)  # (batch, 1 + K, dim)
        if self.path == "linear":
            vectors = unit_rows(vectors) if self.on_sphere else vectors
            weights = vectors.new_zeros(len(second), len(labels))
            weights.scatter_(1, drawn.first[:, None], drawn.place[:, None])
            weights.scatter_(1, second[:, None], drawn.rest[:, None])
            with strict_float32(vectors.device):
                mixed = (weights @ vectors.flatten(1)).view(-1, *vectors.shape[1:])
        else:
            pairs = vectors.index_select(0, torch.cat([drawn.first, second]))
            a, b = pairs.chunk(2)
            mixed = self.interpolate_pairs(a, b, drawn.place[:, None, None])
        extra = mixed[:, 1:] if parents.dim() == 3 else mixed[:, 1]
        return EmbeddingBatch(torch.cat([embeddings, mixed[:, 0]])), extra

    def count_classes(self, batch: int) -> int:
        """Return the number of synthetic classes of a batch with at least two classes."""
        return math.floor(batch * self.mu + 1e-9)

    def _synthesise_samples(
        self, x: Tensor, first: Tensor, second: Tensor, place: Tensor
    ) -> EmbeddingBatch:
        """Return the batch with its synthetic samples; linear ones as mixtures of its rows."""
        if self.path == "spherical":
            return EmbeddingBatch(
                torch.cat([x, self.interpolate_pairs(x[first], x[second], place[:, None])])
            )
        if not self.on_sphere:
            return EmbeddingBatch(
                x, InterpolatedSamples(first, second, place, torch.ones_like(place))
            )
        unit = unit_rows(x)
        factor = inverse_norms(_interpolate_linearly(unit[first], unit[second], place[:, None]))
        return EmbeddingBatch(x, InterpolatedSamples(first, second, place, factor))

    def draw_pairs(self, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Return floor(mu * batch) index pairs of the batch with different labels, if any exist.

        The first members cycle through a random order of the batch, so that all are used equally
        often; the second is uniform among the samples of other classes.
        """
        batch = len(labels)
        count = self.count_classes(batch)
        self._pool.discard_unused(self._draw_step)
        classes = labels.detach().cpu().numpy()
        order = np.argsort(classes, kind="stable")
        starts = np.searchsorted(classes[order], classes, side="left")
        stops = np.searchsorted(classes[order], classes, side="right")
        others = batch - (stops - starts)
        if count == 0 or others.max(initial=0) == 0:
            empty = torch.zeros(0, dtype=torch.int64, device=labels.device)
            return empty, empty
        first, shares = self._draw_members(batch)
        # In label order the samples of other classes follow the end of the own class, cyclically.
        steps = np.floor(shares * others[first]).astype(np.int64)
        second = order[(stops[first] + steps) % batch]
        return _to_index_tensor(first, labels), _to_index_tensor(second, labels)

    def draw_lambdas(self, count: int) -> Tensor:
        """Return the lambda of each pair, float64 on the CPU."""
        return torch.from_numpy(self._draw_places(count))

    def _draw_step(self, batch: int) -> HostPairDraws:
        """Draw what `draw_pairs` and then `draw_lambdas` draw."""
        first, shares = self._draw_members(batch)
        return HostPairDraws(first, shares, self._draw_places(len(first)))

    def _draw_members(self, batch: int) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Draw the first members of the pairs, and numbers that choose the second ones."""
        count = self.count_classes(batch)
        return np.resize(self._random.permutation(batch), count), self._random.random(count)

    def _draw_places(self, count: int) -> NDArray[np.float64]:
        size = 1 if self.draw == "batch" else count
        return np.resize(self._random.beta(self.alpha, self.alpha, size), count)

    def interpolate_pairs(self, a: Tensor, b: Tensor, place: Tensor) -> Tensor:
        """Interpolate from b (place 0) to a (place 1) along the path; `place` broadcasts."""
        if self.on_sphere:
            a, b = unit_rows(a), unit_rows(b)
            return unit_rows(
                _interpolate_linearly(a, b, place)
                if self.path == "linear"
                else _interpolate_spherically(a, b, place)
            )
        if self.path == "linear":
            return _interpolate_linearly(a, b, place)
        length = _interpolate_linearly(
            a.norm(dim=-1, keepdim=True), b.norm(dim=-1, keepdim=True), place
        )
        return unit_rows(_interpolate_spherically(unit_rows(a), unit_rows(b), place)) * length


class _TakeRowsFunction(torch.autograd.Function):
    """(matrix, matrix[index] in a dtype at least as wide) with one shared gradient matrix.

    The gradient of ordinary indexing is as large as the matrix, mostly zeros, and must be added to
    that of the host: at 100,000 classes this costs more than the synthesis itself. Here the
    gradient of the rows is added in place to that of the host, which its kernel has just allocated.
    The sum is taken in the dtype of the rows, so that a matrix in half precision is rounded once
    more, not once per sample.
    """

    @staticmethod
    def forward(
        ctx: Any, matrix: Tensor, index: Tensor, dtype: torch.dtype
    ) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(index)
        ctx.set_materialize_grads(False)
        ctx.shape, ctx.dtype = matrix.shape, matrix.dtype
        return matrix.view_as(matrix), matrix[index].to(dtype)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, None, None]:
        (index,) = ctx.saved_tensors
        of_matrix, of_rows = grads
        if of_rows is None:
            return of_matrix, None, None
        if of_matrix is None:
            of_matrix = of_rows.new_zeros(ctx.shape, dtype=ctx.dtype)
        if of_matrix.dtype == of_rows.dtype:
            return of_matrix.index_add_(0, index, of_rows), None, None
        if not can_read_values(index):
            # The sum of a class is computed for each of its samples; all write the same row.
            totals = (index[:, None] == index).to(of_rows.dtype) @ of_rows.flatten(1)
            sums = of_matrix[index].to(of_rows.dtype) + totals.view_as(of_rows)
            of_matrix[index] = sums.to(of_matrix.dtype)
            return of_matrix, None, None
        rows, places = torch.unique(index, return_inverse=True)
        sums = of_matrix[rows].to(of_rows.dtype).index_add_(0, places, of_rows)
        of_matrix[rows] = sums.to(of_matrix.dtype)
        return of_matrix, None, None


def _choose_partners(labels: Tensor, first: Tensor, share: Tensor) -> Tensor:
    """Return the second members of the pairs, chosen as in `ProxySynthesis.draw_pairs`."""
    ordered, order = labels.sort(stable=True)
    own = labels[first]
    starts = torch.searchsorted(ordered, own)
    stops = torch.searchsorted(ordered, own, right=True)
    n_others = starts - stops + len(labels)
    steps = (share * n_others).long()
    return order[(stops + steps) % len(labels)]


def _to_index_tensor(values: NDArray[np.int64], like: Tensor) -> Tensor:
    return torch.from_numpy(values).to(like.device)


def _interpolate_linearly(a: Tensor, b: Tensor, place: Tensor) -> Tensor:
    return place * a + (1.0 - place) * b


def _interpolate_spherically(a: Tensor, b: Tensor, place: Tensor) -> Tensor:
    """Interpolate along the great circle from b (place 0) to a (place 1), both of unit length.

    The angle is computed from the two chords, which is accurate where an arc cosine is not.
    Parallel vectors have a sine of zero and opposite ones no unique great circle; both are
    interpolated linearly.
    """
    chord, sum_ = (a - b).norm(dim=-1, keepdim=True), (a + b).norm(dim=-1, keepdim=True)
    angle = 2.0 * torch.atan2(chord, sum_)
    sine = torch.sin(angle)
    usable = sine > 1e-4
    sine = torch.where(usable, sine, 1.0)
    curved = (torch.sin(place * angle) * a + torch.sin((1.0 - place) * angle) * b) / sine
    return torch.where(usable, curved, _interpolate_linearly(a, b, place))
