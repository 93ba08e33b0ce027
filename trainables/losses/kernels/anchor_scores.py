"""What does each proxy see of the batch, summed over all proxies?

Proxy-Anchor turns the sums round: every proxy takes a log-sum-exp over the samples of the batch,
so a block of proxies is complete in itself and only one number, the sum over proxies, has to be
combined over blocks and over ranks (`Reducer`). The own similarities, one per sample, leave as a
vector: what pulls is a matter of the batch alone, and is left to ordinary autograd.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from trainables.losses.blocks import (
    ALONE,
    LOG2_E,
    Block,
    Budget,
    Reducer,
    Rooms,
    Segment,
    compute_dtype,
    cut,
    floored_exp2_,
    full_precision,
    inverse_norms,
    iterate,
    own_similarities_fit,
    write_gradient,
)
from trainables.losses.samples import Between, Mixture

# alpha times the largest |s + delta|: up to here nothing over- or underflows in float32.
_SAFE_EXPONENT = 60.0


def anchor_scores(
    embeddings: Tensor,
    labels: Tensor,
    segments: Sequence[Segment],
    *,
    alpha: float,
    delta: float,
    between: Between | None = None,
    budget: Budget | None = None,
    reducer: Reducer = ALONE,
) -> tuple[Tensor, Tensor]:
    """(push, positive): sum_p log(1 + sum_{x not of p} exp(alpha (s + delta))), and s(x, p_y).

    `push` is a scalar, `positive` a vector over the batch and the samples `between` it, that
    follow it and whose labels `labels` has too; differentiable once with respect to
    the embeddings and every segment's proxies, (classes, dim).
    """
    options = _Options(alpha, delta, budget or Budget(), reducer)
    firsts = [segment.first for segment in segments]
    proxies = [segment.proxies for segment in segments]
    factor = None if between is None else between.factor
    with full_precision(embeddings):
        push, positive = _AnchorScores.apply(  # type: ignore[no-untyped-call]
            embeddings, between, factor, labels, options, firsts, *proxies
        )
    return push, positive


@dataclass(frozen=True)
class _Options:
    alpha: float
    delta: float
    budget: Budget
    reducer: Reducer

    @property
    def unit(self) -> float:
        """What similarities are held times of."""
        return self.alpha * LOG2_E

    @property
    def shift(self) -> float:
        """alpha delta, to the base 2."""
        return self.alpha * self.delta * LOG2_E

    @property
    def safe(self) -> bool:
        """Whether exponentials stay in range without a level."""
        return self.alpha * (1.0 + abs(self.delta)) <= _SAFE_EXPONENT


class _AnchorScores(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        embeddings: Tensor,
        between: Between | None,
        factor: Tensor | None,
        labels: Tensor,
        options: _Options,
        firsts: list[int],
        *proxies: Tensor,
    ) -> tuple[Tensor, Tensor]:
        dtype = compute_dtype(embeddings, *proxies)
        segments = [Segment(first, p) for first, p in zip(firsts, proxies, strict=True)]
        size = torch.finfo(dtype).bits // 8
        x = embeddings.to(dtype)
        inverse_x = inverse_norms(x)
        x = x * inverse_x[:, None]
        samples = Mixture(x, between)
        keep = own_similarities_fit(segments, samples.rows, size, options.budget)
        push, positive = x.new_zeros(()), x.new_zeros(samples.rows)
        blocks = cut(
            segments, labels, item_bytes=size, budget=options.budget, reducer=options.reducer
        )
        kept, per_proxy, rooms = [], [], Rooms()
        for block, p in iterate(blocks, proxies, dtype):
            inverse_p = inverse_norms(p)
            held = _held(samples, p, inverse_p, options)
            positive[block.rows] = held[block.rows, block.columns] / options.unit
            per_proxy.append(_soft_maximum(held, block, options, rooms))
            push += per_proxy[-1].sum()
            kept.append((held if keep else None, inverse_p))
        options.reducer.sum_(push)
        options.reducer.sum_(positive)
        ctx.save_for_backward(x, inverse_x, *proxies)
        ctx.blocks, ctx.kept, ctx.per_proxy, ctx.options = blocks, kept, per_proxy, options
        ctx.input_dtype, ctx.between, ctx.rooms = embeddings.dtype, between, rooms
        return push, positive

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, inverse_x, *proxies = ctx.saved_tensors
        options: _Options = ctx.options
        samples = Mixture(x, ctx.between)
        grad_push, grad_positive = (g.to(x.dtype) for g in grads)
        needs = ctx.needs_input_grad[6:]
        grad_proxies = [
            torch.empty_like(p) if need else None for p, need in zip(proxies, needs, strict=True)
        ]
        grad_x, grad_factor = torch.zeros_like(x), samples.new_gradient()
        with full_precision(x):
            for number, (block, p) in enumerate(iterate(ctx.blocks, proxies, x.dtype)):
                held, inverse_p = ctx.kept[number]
                # What was kept is used up; a second backward computes it again.
                ctx.kept[number] = (None, inverse_p)
                if held is None:
                    held = _held(samples, p, inverse_p, options)
                # d loss / d s over the norm of the proxy.
                g = _shares(held, ctx.per_proxy[number], grad_push * inverse_p, options, ctx.rooms)
                own = block.rows, block.columns
                g[own] = grad_positive[block.rows] * inverse_p[block.columns]
                # A normalised proxy moves only sideways: subtract its share along itself.
                along = held.mul_(g).sum(dim=0).mul_(inverse_p).mul_(1.0 / options.unit)
                if grad_factor is not None:
                    norms = torch.where(inverse_p > 0, 1.0 / inverse_p, 0.0)
                    samples.add_factors_(grad_factor, held @ (norms / options.unit))
                g = samples.back_(g)
                grad_x.addmm_(g, p)
                grad = grad_proxies[block.segment]
                out = None if grad is None else grad[block.start : block.stop]
                write_gradient(out, g, x, p, along)
        options.reducer.sum_(grad_x)
        if grad_factor is not None:
            options.reducer.sum_(grad_factor)
        along_x = (grad_x * x).sum(dim=1, keepdim=True)
        grad_x.addcmul_(x, along_x, value=-1.0).mul_(inverse_x[:, None])
        return grad_x.to(ctx.input_dtype), None, grad_factor, None, None, None, *grad_proxies


def _held(samples: Mixture, p: Tensor, inverse_p: Tensor, options: _Options) -> Tensor:
    """Similarities times `options.unit`: alpha s to the base 2, ready for its exponential."""
    return samples.similarities_(p.new_empty(samples.rows, len(p)), p, inverse_p * options.unit)


def _soft_maximum(held: Tensor, block: Block, options: _Options, rooms: Rooms) -> Tensor:
    """log(1 + sum exp(alpha (s + delta))) of each proxy over the samples of other classes."""
    own, room, shift = (block.rows, block.columns), rooms.like("shares", held), options.shift
    if options.safe:
        shares = torch.exp2(held, out=room)
        shares[own] = 0.0
        return shares.sum(dim=0).mul_(2.0**shift).log1p_()
    kept = held[own]
    held[own] = -torch.inf
    # exp(0) is the 1 in log(1 + sum)
    maximum = held.amax(dim=0).add_(shift).clamp_(min=0.0)
    held[own] = kept
    shares = floored_exp2_(torch.sub(held, maximum - shift, out=room))
    shares[own] = 0.0
    sums = shares.sum(dim=0).add_(torch.exp2(-maximum))
    return sums.log2_().add_(maximum).mul_(1.0 / LOG2_E)


def _shares(
    held: Tensor, per_proxy: Tensor, factors: Tensor, options: _Options, rooms: Rooms
) -> Tensor:
    """Slopes of each proxy's soft maximum times its factor; valid until the next call."""
    room, level = rooms.like("shares", held), per_proxy * LOG2_E - options.shift
    if options.safe:
        return torch.exp2(held, out=room).mul_(factors * torch.exp2(-level) * options.alpha)
    return floored_exp2_(torch.sub(held, level, out=room)).mul_(factors * options.alpha)
