"""Scores of Proxy-Anchor: a soft maximum of each proxy over the batch, summed over proxies.

Every proxy takes a logsumexp over the samples of the batch, so a block of proxies is independent of
the others, and only one number, the sum over proxies, is combined over blocks and over ranks
(`ShardReducer`). The own similarities, one per sample, are returned as a vector: the pull depends
on the batch alone and is left to autograd.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from trainables.losses.kernels.blocks import (
    LOG2_E,
    SINGLE_SHARD,
    MemoryBudget,
    ProxyBlock,
    ProxySegment,
    ScratchBuffers,
    ShardReducer,
    floored_exp2_,
    inverse_norms,
    iter_blocks,
    make_blocks,
    merge_segments,
    similarities_fit_budget,
    widest_dtype,
    write_gradient,
)
from trainables.losses.kernels.mixture import InterpolatedBatch, InterpolatedSamples
from trainables.utils.precision import strict_float32

# Up to this alpha * |s + delta| no exponential overflows or underflows in float32.
_SAFE_EXPONENT = 60.0


def compute_anchor_scores(
    embeddings: Tensor,
    labels: Tensor,
    segments: Sequence[ProxySegment],
    *,
    alpha: float,
    delta: float,
    between: InterpolatedSamples | None = None,
    budget: MemoryBudget | None = None,
    reducer: ShardReducer = SINGLE_SHARD,
    unused: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Return the push of all proxies and the similarities to the own proxies.

    push = sum_p log(1 + sum_{x not of p} exp(alpha (s(x, p) + delta))), positive = s(x, p_y).
    `push` is a scalar, `positive` a vector over the batch and the interpolated samples `between`
    that follow it; `labels` has the labels of both. Differentiable once with respect to the
    embeddings and the proxies of every segment, (classes, dim). `unused` is a mask of the classes
    of the first segment that this step does not use.
    """
    options = _AnchorOptions(alpha, delta, budget or MemoryBudget(), reducer, unused)
    if unused is None:
        segments = merge_segments(segments, len(labels), options.budget)
    firsts = [segment.first for segment in segments]
    proxies = [segment.proxies for segment in segments]
    factor = None if between is None else between.factor
    with strict_float32(embeddings.device):
        push, positive = _AnchorScoresFunction.apply(  # type: ignore[no-untyped-call]
            embeddings, between, factor, labels, options, firsts, *proxies
        )
    return push, positive


@dataclass(frozen=True)
class _AnchorOptions:
    alpha: float
    delta: float
    budget: MemoryBudget
    reducer: ShardReducer
    unused: Tensor | None

    @property
    def log2_alpha(self) -> float:
        """Unit of the scaled similarities: alpha to the base 2."""
        return self.alpha * LOG2_E

    @property
    def log2_shift(self) -> float:
        """alpha delta to the base 2."""
        return self.alpha * self.delta * LOG2_E

    @property
    def needs_no_level(self) -> bool:
        """Whether exponentials stay in range without subtracting a level."""
        return self.alpha * (1.0 + abs(self.delta)) <= _SAFE_EXPONENT


class _AnchorScoresFunction(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        embeddings: Tensor,
        between: InterpolatedSamples | None,
        factor: Tensor | None,
        labels: Tensor,
        options: _AnchorOptions,
        firsts: list[int],
        *proxies: Tensor,
    ) -> tuple[Tensor, Tensor]:
        dtype = widest_dtype(embeddings, *proxies)
        segments = [ProxySegment(first, p) for first, p in zip(firsts, proxies, strict=True)]
        size = torch.finfo(dtype).bits // 8
        x = embeddings.to(dtype)
        inverse_x = inverse_norms(x)
        x = x * inverse_x[:, None]
        samples = InterpolatedBatch(x, between)
        keep = similarities_fit_budget(segments, samples.n_rows, size, options.budget)
        push, positive = x.new_zeros(()), x.new_zeros(samples.n_rows)
        blocks = make_blocks(
            segments,
            labels,
            item_bytes=size,
            budget=options.budget,
            reducer=options.reducer,
            unused=options.unused,
        )
        kept_similarities, per_proxy, buffers = [], [], ScratchBuffers()
        for block, p in iter_blocks(blocks, proxies, dtype):
            inverse_p = inverse_norms(p)
            scaled = _scaled_similarities(samples, p, inverse_p, options)
            block.own.copy_to_rows_(positive, block.own.take(scaled) / options.log2_alpha)
            per_proxy.append(_soft_maximum(scaled, block, options, buffers))
            push += _keep_used(per_proxy[-1], block).sum()
            kept_similarities.append((scaled if keep else None, inverse_p))
        options.reducer.all_reduce_sum_(push)
        options.reducer.all_reduce_sum_(positive)
        ctx.save_for_backward(x, inverse_x, *proxies)
        ctx.blocks, ctx.kept, ctx.per_proxy = blocks, kept_similarities, per_proxy
        ctx.options, ctx.input_dtype = options, embeddings.dtype
        ctx.between, ctx.buffers = between, buffers
        return push, positive

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, inverse_x, *proxies = ctx.saved_tensors
        options: _AnchorOptions = ctx.options
        samples = InterpolatedBatch(x, ctx.between)
        grad_push, grad_positive = (g.to(x.dtype) for g in grads)
        needs = ctx.needs_input_grad[6:]
        grad_proxies = [
            torch.empty_like(p) if need else None for p, need in zip(proxies, needs, strict=True)
        ]
        grad_x, grad_factor = torch.zeros_like(x), samples.new_factor_gradient()
        with strict_float32(x.device):
            for number, (block, p) in enumerate(iter_blocks(ctx.blocks, proxies, x.dtype)):
                scaled, inverse_p = ctx.kept[number]
                # The kept similarities are overwritten; a second backward computes them again.
                ctx.kept[number] = (None, inverse_p)
                if scaled is None:
                    scaled = _scaled_similarities(samples, p, inverse_p, options)
                # d loss / d s over the norm of the proxy.
                factors = _keep_used(grad_push * inverse_p, block)
                g = _soft_maximum_slopes(
                    scaled, ctx.per_proxy[number], factors, options, ctx.buffers
                )
                own = block.own
                own.write_(g, own.select_rows(grad_positive) * own.select_columns(inverse_p))
                # Normalisation removes the component of the gradient along the proxy.
                along = scaled.mul_(g).sum(dim=0).mul_(inverse_p).mul_(1.0 / options.log2_alpha)
                if grad_factor is not None:
                    norms = torch.where(inverse_p > 0, 1.0 / inverse_p, 0.0)
                    samples.add_factor_gradient_(grad_factor, scaled @ (norms / options.log2_alpha))
                g = samples.fold_gradient_(g)
                grad_x.addmm_(g, p)
                grad = grad_proxies[block.segment]
                out = None if grad is None else grad[block.start : block.stop]
                write_gradient(out, g, x, p, along)
        options.reducer.all_reduce_sum_(grad_x)
        if grad_factor is not None:
            options.reducer.all_reduce_sum_(grad_factor)
        along_x = (grad_x * x).sum(dim=1, keepdim=True)
        grad_x.addcmul_(x, along_x, value=-1.0).mul_(inverse_x[:, None])
        return grad_x.to(ctx.input_dtype), None, grad_factor, None, None, None, *grad_proxies


def _scaled_similarities(
    samples: InterpolatedBatch, p: Tensor, inverse_p: Tensor, options: _AnchorOptions
) -> Tensor:
    """Return the similarities times `options.log2_alpha`, the exponents of powers of 2."""
    return samples.fill_similarities_(
        p.new_empty(samples.n_rows, len(p)), p, inverse_p * options.log2_alpha
    )


def _keep_used(per_proxy: Tensor, block: ProxyBlock) -> Tensor:
    """Return the numbers of the proxies, zero for those that the step does not use."""
    return per_proxy if block.unused is None else per_proxy.masked_fill(block.unused, 0.0)


def _soft_maximum(
    scaled: Tensor, block: ProxyBlock, options: _AnchorOptions, buffers: ScratchBuffers
) -> Tensor:
    """Return log(1 + sum exp(alpha (s + delta))) of each proxy over samples of other classes."""
    own, shift = block.own, options.log2_shift
    buffer = buffers.buffer_like("shares", scaled)
    if options.needs_no_level:
        shares = torch.exp2(scaled, out=buffer)
        own.write_(shares, 0.0)
        return shares.sum(dim=0).mul_(2.0**shift).log1p_()
    own_similarities = own.take(scaled)
    own.write_(scaled, -torch.inf)
    # exp(0) is the 1 in log(1 + sum)
    maximum = scaled.amax(dim=0).add_(shift).clamp_(min=0.0)
    own.write_(scaled, own_similarities)
    shares = floored_exp2_(torch.sub(scaled, maximum - shift, out=buffer))
    own.write_(shares, 0.0)
    sums = shares.sum(dim=0).add_(torch.exp2(-maximum))
    return sums.log2_().add_(maximum).mul_(1.0 / LOG2_E)


def _soft_maximum_slopes(
    scaled: Tensor,
    per_proxy: Tensor,
    factors: Tensor,
    options: _AnchorOptions,
    buffers: ScratchBuffers,
) -> Tensor:
    """Return the derivatives of the soft maxima times `factors`; valid until the next call."""
    buffer, level = buffers.buffer_like("shares", scaled), per_proxy * LOG2_E - options.log2_shift
    if options.needs_no_level:
        return torch.exp2(scaled, out=buffer).mul_(factors * torch.exp2(-level) * options.alpha)
    return floored_exp2_(torch.sub(scaled, level, out=buffer)).mul_(factors * options.alpha)
