"""What does each sample see of all classes: the sum over the wrong ones, and its own?

Every softmax-type loss is a function of three numbers per sample,

    negatives = log sum_{c != y} exp(z_c),   positive = S_y,   total = sum_{c != y} z_c,

with S_c the similarity to class c and z_c = scale * h(S_c) its logit. The margin, the positive
logit, label smoothing and the mean are left to the loss, in ordinary autograd on vectors of the
batch's length. Here is the part of size batch x classes: it walks over blocks of proxies and
keeps per sample a level, a sum of exponentials relative to it, the own similarity and the sum of
logits. These combine by max and sum over blocks, and in the same way over ranks (`Reducer`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from trainables.losses.blocks import (
    ALONE,
    Budget,
    Reducer,
    Rooms,
    Segment,
    compute_dtype,
    cut,
    full_precision,
    inverse_norms,
    iterate,
    own_similarities_fit,
)
from trainables.losses.class_backward import Back
from trainables.losses.class_forward import Scan, Similarities, similarities
from trainables.losses.class_logits import Logits
from trainables.losses.class_rule import Options, Rule
from trainables.losses.samples import Between, Mixture


class Scores(NamedTuple):
    """Per sample: log-sum-exp of the wrong classes' logits, own similarity, sum of wrong logits.

    `spread` is one number: the distances among the proxies of each class of the first segment.
    """

    negatives: Tensor
    positive: Tensor
    total: Tensor | None
    spread: Tensor | None


def class_scores(
    embeddings: Tensor,
    labels: Tensor,
    segments: Sequence[Segment],
    scale: Tensor | float,
    *,
    rule: Rule,
    between: Between | None = None,
    with_total: bool = False,
    budget: Budget | None = None,
    reducer: Reducer = ALONE,
) -> Scores:
    """The scores of (batch, dim) embeddings against all segments, differentiable once.

    Samples `between` them follow; `labels` are those of all.

    Gradients flow to the embeddings, every segment's proxies and a tensor `scale`. `total` and
    `spread` are None unless asked for. With no wrong class `negatives` is -inf.
    """
    options = Options(rule, with_total, budget or Budget(), reducer)
    firsts = [segment.first for segment in segments]
    proxies = [segment.proxies for segment in segments]
    factor = None if between is None else between.factor
    with full_precision(embeddings):
        scores = _ClassScores.apply(  # type: ignore[no-untyped-call]
            embeddings, between, factor, labels, scale, options, firsts, *proxies
        )
    return Scores(*scores)


class _ClassScores(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        embeddings: Tensor,
        between: Between | None,
        factor: Tensor | None,
        labels: Tensor,
        scale: Tensor | float,
        options: Options,
        firsts: list[int],
        *proxies: Tensor,
    ) -> tuple[Tensor | None, ...]:
        ctx.set_materialize_grads(False)
        dtype = compute_dtype(embeddings, *proxies)
        segments = [Segment(first, p) for first, p in zip(firsts, proxies, strict=True)]
        size = torch.finfo(dtype).bits // 8
        blocks = cut(
            segments, labels, item_bytes=size, budget=options.budget, reducer=options.reducer
        )
        x = embeddings.to(dtype)
        inverse_x = inverse_norms(x)
        x = x * inverse_x[:, None] if options.rule.normalise else x
        samples = Mixture(x, between)
        keep = own_similarities_fit(segments, samples.rows, size, options.budget)
        logits = Logits(float(scale), options.rule, Rooms())
        scan = Scan(x, samples.rows, logits, options)
        kept: list[Similarities] = []
        products: list[Tensor | None] = []
        for block, p in iterate(blocks, proxies, dtype):
            products.append(scan.products(block, p))
            found = similarities(samples, p, block, options.rule, products[-1], logits)
            scan.add(block, found.classes)
            scan.add_spread(products[-1], found.inverse_p)
            if keep:
                kept.append(found)
        scores = Scores(*scan.finish())
        ctx.save_for_backward(x, inverse_x, scores.negatives, *proxies)
        ctx.blocks, ctx.kept, ctx.options, ctx.logits = blocks, kept, options, logits
        ctx.products, ctx.input_dtype, ctx.between = products, embeddings.dtype, between
        ctx.scale = scale
        return tuple(scores)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        x, inverse_x, negatives, *proxies = ctx.saved_tensors
        # The kept similarities are used up; a second backward computes them again.
        kept, ctx.kept = ctx.kept, []
        needs = ctx.needs_input_grad
        grad_proxies = [
            torch.empty_like(p) if n else None for p, n in zip(proxies, needs[7:], strict=True)
        ]
        with full_precision(x):
            logits, options, samples = ctx.logits, ctx.options, Mixture(x, ctx.between)
            back = Back(
                samples, negatives, grads, logits, options, grad_proxies, with_scale=needs[4]
            )
            for number, (block, p) in enumerate(iterate(ctx.blocks, proxies, x.dtype)):
                products = ctx.products[number]
                found = (
                    kept[number]
                    if kept
                    else similarities(samples, p, block, options.rule, products, logits)
                )
                back.add(block, p, found, products)
            grad_x, grad_scale = back.finish(inverse_x)
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
