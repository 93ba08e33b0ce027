"""Scores of softmax-type losses: per sample, the logits of wrong classes and the own similarity.

Every softmax-type loss is a function of three numbers per sample,

    negatives = log sum_{c != y} exp(z_c),   positive = S_y,   total = sum_{c != y} z_c,

with S_c the similarity to class c and z_c = scale * h(S_c) its logit. The loss computes the margin,
the positive logit, label smoothing and the mean with autograd on vectors of the batch size. This
module computes the part of size batch x classes: it iterates over blocks of proxies and keeps per
sample a level, a sum of exponentials relative to it, the own similarity and the sum of logits.
These are combined by maximum and sum over blocks, and likewise over ranks (`ShardReducer`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from trainables.losses.kernels.blocks import (
    SINGLE_SHARD,
    MemoryBudget,
    ProxySegment,
    ScratchBuffers,
    ShardReducer,
    inverse_norms,
    iter_blocks,
    make_blocks,
    merge_segments,
    similarities_fit_budget,
    widest_dtype,
)
from trainables.losses.kernels.class_backward import BackwardScan
from trainables.losses.kernels.class_forward import (
    BlockSimilarities,
    ForwardScan,
    compute_similarities,
)
from trainables.losses.kernels.logits import ClassLogits
from trainables.losses.kernels.mixture import InterpolatedBatch, InterpolatedSamples
from trainables.losses.kernels.options import KernelOptions, SimilarityRule
from trainables.losses.kernels.own_entries import can_read_values
from trainables.utils.precision import strict_float32


class ClassScores(NamedTuple):
    """Scores per sample, and the spread of the proxies.

    Args:
        negatives: logsumexp of the logits of the wrong classes; -inf without a wrong class.
        positive: Similarity to the own class.
        total: Sum of the logits of the wrong classes, if requested.
        spread: One number, if requested: the sum of distances between the proxies of each class of
            the first segment.
    """

    negatives: Tensor
    positive: Tensor
    total: Tensor | None
    spread: Tensor | None


def compute_class_scores(
    embeddings: Tensor,
    labels: Tensor,
    segments: Sequence[ProxySegment],
    scale: Tensor | float,
    *,
    rule: SimilarityRule,
    between: InterpolatedSamples | None = None,
    with_total: bool = False,
    budget: MemoryBudget | None = None,
    reducer: ShardReducer = SINGLE_SHARD,
    unused: Tensor | None = None,
) -> ClassScores:
    """Return the scores of embeddings against all segments, differentiable once.

    Gradients flow to the embeddings, the proxies of every segment and a tensor `scale`.

    Args:
        embeddings: (batch, dim).
        labels: Labels of the batch and of the interpolated samples.
        segments: Proxies of all classes, or of this shard.
        scale: Factor of the logits.
        rule: How proxies become similarities and logits.
        between: Interpolated samples that follow the batch.
        with_total: Whether to compute `total`.
        budget: Memory for similarities.
        reducer: Combines the results of shards.
        unused: Mask of classes of the first segment that this step does not use.
    """
    options = KernelOptions(rule, with_total, budget or MemoryBudget(), reducer, unused)
    if unused is None and not rule.with_spread:
        segments = merge_segments(segments, len(labels), options.budget)
    firsts = [segment.first for segment in segments]
    proxies = [segment.proxies for segment in segments]
    factor = None if between is None else between.factor
    with strict_float32(embeddings.device):
        scores = _ClassScoresFunction.apply(  # type: ignore[no-untyped-call]
            embeddings, between, factor, labels, scale, options, firsts, *proxies
        )
    return ClassScores(*scores)


class _ClassScoresFunction(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        embeddings: Tensor,
        between: InterpolatedSamples | None,
        factor: Tensor | None,
        labels: Tensor,
        scale: Tensor | float,
        options: KernelOptions,
        firsts: list[int],
        *proxies: Tensor,
    ) -> tuple[Tensor | None, ...]:
        ctx.set_materialize_grads(False)
        dtype = widest_dtype(embeddings, *proxies)
        segments = [ProxySegment(first, p) for first, p in zip(firsts, proxies, strict=True)]
        size = torch.finfo(dtype).bits // 8
        blocks = make_blocks(
            segments,
            labels,
            item_bytes=size,
            budget=options.budget,
            reducer=options.reducer,
            unused=options.unused,
        )
        x = embeddings.to(dtype)
        inverse_x = inverse_norms(x)
        x = x * inverse_x[:, None] if options.rule.normalise else x
        samples = InterpolatedBatch(x, between)
        keep = similarities_fit_budget(segments, samples.n_rows, size, options.budget)
        logits = ClassLogits(_readable_scale(scale), options.rule, ScratchBuffers())
        scan = ForwardScan(x, samples.n_rows, logits, options)
        kept: list[BlockSimilarities] = []
        products: list[Tensor | None] = []
        for block, p in iter_blocks(blocks, proxies, dtype):
            products.append(scan.proxy_products(block, p))
            similarities = compute_similarities(
                samples, p, block, options.rule, products[-1], logits
            )
            scan.add_block(block, similarities.classes)
            scan.add_spread(block, products[-1], similarities.inverse_p)
            if keep:
                kept.append(similarities)
        scores = ClassScores(*scan.finish_scores())
        ctx.save_for_backward(x, inverse_x, scores.negatives, *proxies)
        ctx.blocks, ctx.kept, ctx.options, ctx.logits = blocks, kept, options, logits
        ctx.products, ctx.input_dtype, ctx.between = products, embeddings.dtype, between
        ctx.scale = scale
        return tuple(scores)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        x, inverse_x, negatives, *proxies = ctx.saved_tensors
        # The kept similarities are overwritten; a second backward computes them again.
        kept, ctx.kept = ctx.kept, []
        needs = ctx.needs_input_grad
        grad_proxies = [
            torch.empty_like(p) if n else None for p, n in zip(proxies, needs[7:], strict=True)
        ]
        with strict_float32(x.device):
            logits, options, samples = ctx.logits, ctx.options, InterpolatedBatch(x, ctx.between)
            back = BackwardScan(
                samples, negatives, grads, logits, options, grad_proxies, with_scale=needs[4]
            )
            for number, (block, p) in enumerate(iter_blocks(ctx.blocks, proxies, x.dtype)):
                products = ctx.products[number]
                similarities = (
                    kept[number]
                    if kept
                    else compute_similarities(samples, p, block, options.rule, products, logits)
                )
                back.add_block(block, p, similarities, products)
            grad_x, grad_scale = back.finish_gradients(inverse_x)
        return (
            grad_x.to(ctx.input_dtype) if needs[0] else None,
            None,
            back.grad_factor if needs[2] else None,
            None,
            grad_scale.to(ctx.scale) if needs[4] else None,
            None,
            None,
            *grad_proxies,
        )


def _readable_scale(scale: Tensor | float) -> Tensor | float:
    """Return the scale as a number, unless the host would have to wait for it."""
    if isinstance(scale, Tensor) and not can_read_values(scale):
        return scale.detach()
    return float(scale)
