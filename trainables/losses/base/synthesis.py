"""Proxy Synthesis: classes that do not exist, between two that do.

Gu, Ko and Kim, "Proxy Synthesis: Learning with Synthetic Classes for Deep Metric Learning",
AAAI 2021, arXiv:2103.15454. A synthetic class has one embedding between two of the batch from
different classes and one proxy between these classes' proxies, at the same place lambda; both are
put back on the sphere. The host loss then runs over real and synthetic together.
"""

from __future__ import annotations

import math
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from trainables.losses.blocks import Segment, compute_dtype, inverse_norms, unit_rows
from trainables.losses.samples import Between, Samples

Path = Literal["linear", "spherical"]
Draw = Literal["batch", "sample"]


class Synthesis(nn.Module):
    """Adds floor(mu * batch) synthetic classes to a batch; has no parameters.

    Unlike the authors' code, a pair never has equal labels (there a leftover pair made a second
    proxy of a real class), and mu may exceed 1. A batch of one class has no pair: no synthesis.

    Args:
        alpha: lambda ~ Beta(alpha, alpha).
        mu: Synthetic classes per sample of the batch; 0 is the host loss.
        draw: One lambda per "batch", as the authors' code, or one per "sample".
        path: "linear" interpolation, or "spherical" along the great circle.
        on_sphere: Whether the host compares directions only. If not, vectors are interpolated
            as they are (linear) or in direction and length (spherical).
        seed: Start of the random pairs and lambdas; `reseed` restarts them.
    """

    def __init__(
        self,
        *,
        alpha: float,
        mu: float,
        draw: Draw = "batch",
        path: Path = "linear",
        on_sphere: bool = True,
        seed: int = 0,
    ) -> None:
        super().__init__()
        if not (math.isfinite(alpha) and alpha > 0):
            raise ValueError(f"`synthesis_alpha > 0` must hold, but got {alpha}.")
        if not (math.isfinite(mu) and mu >= 0):
            raise ValueError(f"`synthesis_mu >= 0` must hold, but got {mu}.")
        if draw not in ("batch", "sample"):
            raise ValueError(f"`synthesis_draw` must be batch or sample, but got {draw!r}.")
        if path not in ("linear", "spherical"):
            raise ValueError(f"`synthesis_path` must be linear or spherical, but got {path!r}.")
        self.alpha, self.mu, self.draw, self.path = alpha, mu, draw, path
        self.on_sphere = on_sphere
        self._random = np.random.default_rng(seed)

    def reseed(self, seed: int) -> None:
        """Make all that follows a function of the seed (and of the batches)."""
        self._random = np.random.default_rng(seed)

    def forward(
        self, embeddings: Tensor, labels: Tensor, proxies: Tensor
    ) -> tuple[Samples, Tensor, list[Segment]]:
        """Samples and labels with the synthetic ones appended, real and synthetic proxies.

        Synthetic class s has the label n_classes + s. Gradients flow into both parents.
        """
        first, second = self.pairs(labels)
        if len(first) == 0:
            return Samples(embeddings), labels, [Segment(0, proxies)]
        dtype = compute_dtype(embeddings, proxies)
        place = self.places(len(first)).to(device=embeddings.device, dtype=dtype)
        samples = self._samples(embeddings.to(dtype), first, second, place)
        proxies, parents = _TakeRows.apply(  # type: ignore[no-untyped-call]
            proxies, labels[torch.cat([first, second])], dtype
        )
        p, q = parents[: len(first)], parents[len(first) :]
        place = place.reshape(-1, *([1] * (p.dim() - 1)))
        extra = Segment(len(proxies), self.interpolate(p, q, place))
        new = torch.arange(len(first), device=labels.device) + len(proxies)
        segments = [Segment(0, proxies), extra]
        return samples, torch.cat([labels, new]), segments

    def _samples(self, x: Tensor, first: Tensor, second: Tensor, place: Tensor) -> Samples:
        """The batch and what is between it: as a mixture of rows, if the path is straight."""
        if self.path == "spherical":
            return Samples(torch.cat([x, self.interpolate(x[first], x[second], place[:, None])]))
        if not self.on_sphere:
            return Samples(x, Between(first, second, place, torch.ones_like(place)))
        unit = unit_rows(x)
        factor = inverse_norms(_mix(unit[first], unit[second], place[:, None]))
        return Samples(x, Between(first, second, place, factor))

    def pairs(self, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Index pairs of the batch with different labels, floor(mu * batch) of them if any exist.

        First members go round a random order of the batch, so each serves equally often; the
        second is uniform among the samples of other classes.
        """
        batch = len(labels)
        count = math.floor(batch * self.mu + 1e-9)
        known = labels.detach().cpu().numpy()
        order = np.argsort(known, kind="stable")
        starts = np.searchsorted(known[order], known, side="left")
        stops = np.searchsorted(known[order], known, side="right")
        others = batch - (stops - starts)
        if count == 0 or others.max(initial=0) == 0:
            empty = torch.zeros(0, dtype=torch.int64, device=labels.device)
            return empty, empty
        first = np.resize(self._random.permutation(batch), count)
        # In label order all samples of other classes follow the own class's end, cyclically.
        steps = np.floor(self._random.random(count) * others[first]).astype(np.int64)
        second = order[(stops[first] + steps) % batch]
        return _indices(first, labels), _indices(second, labels)

    def places(self, count: int) -> Tensor:
        """lambda of each pair, float64 on the CPU."""
        size = 1 if self.draw == "batch" else count
        return torch.from_numpy(np.resize(self._random.beta(self.alpha, self.alpha, size), count))

    def interpolate(self, a: Tensor, b: Tensor, place: Tensor) -> Tensor:
        """`place` of a and the rest of b, along the chosen path (`place` broadcasts)."""
        if self.on_sphere:
            a, b = unit_rows(a), unit_rows(b)
            return unit_rows(_mix(a, b, place) if self.path == "linear" else _slerp(a, b, place))
        if self.path == "linear":
            return _mix(a, b, place)
        length = _mix(a.norm(dim=-1, keepdim=True), b.norm(dim=-1, keepdim=True), place)
        return unit_rows(_slerp(unit_rows(a), unit_rows(b), place)) * length


class _TakeRows(torch.autograd.Function):
    """(matrix, matrix[index] in a dtype at least as wide), whose gradients meet in one matrix.

    An ordinary index hands back a gradient as large as the matrix, mostly zeros, which then has to
    be added to the host's: at 100,000 classes that costs more than the synthesis itself. Here the
    rows' gradient is added into the host's, which its core has just made for this purpose alone.
    It is summed in its own dtype: a matrix of halves is rounded once more, not once per sample.
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
        rows, places = torch.unique(index, return_inverse=True)
        sums = of_matrix[rows].to(of_rows.dtype).index_add_(0, places, of_rows)
        of_matrix[rows] = sums.to(of_matrix.dtype)
        return of_matrix, None, None


def _indices(values: NDArray[np.int64], like: Tensor) -> Tensor:
    return torch.from_numpy(values).to(like.device)


def _mix(a: Tensor, b: Tensor, place: Tensor) -> Tensor:
    return place * a + (1.0 - place) * b


def _slerp(a: Tensor, b: Tensor, place: Tensor) -> Tensor:
    """Along the great circle from b (place 0) to a (place 1); both of unit length.

    The angle comes from the two chords, accurate where an arc cosine is not. Parallel vectors
    have no sine to divide by and opposite ones no single great circle: there the straight line.
    """
    chord, sum_ = (a - b).norm(dim=-1, keepdim=True), (a + b).norm(dim=-1, keepdim=True)
    angle = 2.0 * torch.atan2(chord, sum_)
    sine = torch.sin(angle)
    usable = sine > 1e-4
    sine = torch.where(usable, sine, 1.0)
    curved = (torch.sin(place * angle) * a + torch.sin((1.0 - place) * angle) * b) / sine
    return torch.where(usable, curved, _mix(a, b, place))
