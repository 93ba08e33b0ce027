"""What does each sample see of all classes: the sum over the wrong ones, and its own?

Every softmax-type loss is a function of three numbers per sample,

    negatives = log sum_{c != y} exp(z_c),   positive = S_y,   total = sum_{c != y} z_c,

with S_c the similarity to class c and z_c = scale * h(S_c) its logit. The margin, the positive
logit, label smoothing and the mean are left to the loss, in ordinary autograd on vectors of the
batch's length. Here is the part of size batch x classes: it walks over blocks of proxies and
keeps per sample a maximum, a sum of exponentials, the own similarity and the sum of logits.
These combine by max and sum over blocks, and in the same way over ranks (`Reducer`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from trainables.losses.blocks import (
    ALONE,
    Block,
    Budget,
    Reducer,
    Segment,
    compute_dtype,
    cut,
    floored_exp_,
    full_precision,
    inverse_norms,
    iterate,
    own_similarities_fit,
    wide,
    write_gradient,
)
from trainables.losses.centre_spread import (
    add_spread_gradient,
    inner_products,
    spread_sum,
)
from trainables.losses.centres import pool, pool_backward


@dataclass(frozen=True)
class Rule:
    """How proxies become class similarities and these become logits.

    Args:
        normalise: Cosine similarities; otherwise plain inner products.
        centre_temperature: With several proxies per class: the softness of the weights of
            SoftTriple; None takes the nearest proxy (sub-centres).
        circle_margin: The self-paced weights [S + m]_+ of Circle, h = [S + m]_+ (S - m), taken
            as constants in backward; None is h = S.
        with_spread: Also sum the distances among each trained class's proxies (K > 1).
    """

    normalise: bool = True
    centre_temperature: float | None = None
    circle_margin: float | None = None
    with_spread: bool = False


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
    with_total: bool = False,
    budget: Budget | None = None,
    reducer: Reducer = ALONE,
) -> Scores:
    """The scores of (batch, dim) embeddings against all segments, differentiable once.

    Gradients flow to the embeddings, every segment's proxies and a tensor `scale` (only without
    `circle_margin`). `total` and `spread` are None unless asked for. With no wrong class
    `negatives` is -inf.
    """
    options = _Options(rule, with_total, budget or Budget(), reducer)
    firsts = [segment.first for segment in segments]
    proxies = [segment.proxies for segment in segments]
    with full_precision(embeddings):
        scores = _ClassScores.apply(  # type: ignore[no-untyped-call]
            embeddings, labels, scale, options, firsts, *proxies
        )
    return Scores(*scores)


@dataclass(frozen=True)
class _Options:
    rule: Rule
    with_total: bool
    budget: Budget
    reducer: Reducer


class _ClassScores(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        embeddings: Tensor,
        labels: Tensor,
        scale: Tensor | float,
        options: _Options,
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
        keep = own_similarities_fit(segments, len(x), size, options.budget)
        scan = _Scan(x, float(scale), options)
        kept: list[tuple[Tensor, Tensor]] = []
        products: list[Tensor | None] = []
        for block, p in iterate(blocks, proxies, dtype):
            similarities, inverse_p = scan.similarities(p)
            scan.add(block, similarities)
            products.append(scan.add_spread(block, p))
            if keep:
                kept.append((similarities, inverse_p))
        scores = scan.finish()
        ctx.save_for_backward(x, inverse_x, labels, scores.negatives, *proxies)
        ctx.blocks, ctx.kept, ctx.options, ctx.scale = blocks, kept, options, scale
        ctx.products, ctx.input_dtype = products, embeddings.dtype
        return tuple(scores)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        x, inverse_x, _, negatives, *proxies = ctx.saved_tensors
        # The kept similarities are used up; a second backward computes them again.
        kept, ctx.kept = ctx.kept, []
        with full_precision(x):
            back = _Back(x, negatives, grads, float(ctx.scale), ctx.options, _wanted(ctx, proxies))
            back.with_scale = ctx.needs_input_grad[2]
            scan = _Scan(x, float(ctx.scale), ctx.options)
            for number, (block, p) in enumerate(iterate(ctx.blocks, proxies, x.dtype)):
                similarities, inverse_p = kept[number] if kept else scan.similarities(p)
                back.add(block, p, similarities, inverse_p, ctx.products[number])
            grad_x, grad_scale = back.finish(inverse_x)
        return (
            grad_x.to(ctx.input_dtype) if ctx.needs_input_grad[0] else None,
            None,
            grad_scale.to(ctx.scale) if ctx.needs_input_grad[2] else None,
            None,
            None,
            *back.grad_proxies,
        )


def _wanted(ctx: Any, proxies: Sequence[Tensor]) -> list[Tensor | None]:
    """An uninitialised gradient for each segment that needs one."""
    needs = ctx.needs_input_grad[5:]
    return [torch.empty_like(p) if need else None for p, need in zip(proxies, needs, strict=True)]


class _Scan:
    """Running per-sample partials over blocks (forward)."""

    def __init__(self, x: Tensor, scale: float, options: _Options) -> None:
        self.x, self.options = x, options
        self.logits = _Logits(scale, options.rule)
        self.maximum = x.new_full((len(x),), -torch.inf)
        self.sum = x.new_zeros(len(x))
        self.positive = x.new_zeros(len(x))
        self.total = x.new_zeros(len(x)) if options.with_total else None
        self.spread = x.new_zeros(()) if options.rule.with_spread else None

    def similarities(self, p: Tensor) -> tuple[Tensor, Tensor]:
        """Similarities to a block's proxies, (batch, classes) or (K, batch, classes), and 1/norms.

        The proxies' norms scale columns of the result: no normalised copy of the proxies.
        """
        normalise = self.options.rule.normalise
        inverse_p = inverse_norms(p) if normalise else torch.ones_like(p[..., 0])
        similarities = self.x @ p.flatten(0, -2).T
        if p.dim() == 2:
            return (similarities.mul_(inverse_p) if normalise else similarities), inverse_p
        per_proxy = similarities.view(len(self.x), *inverse_p.shape).permute(2, 0, 1)
        proxy_major = torch.empty(per_proxy.shape, dtype=p.dtype, device=p.device)
        return torch.mul(per_proxy, inverse_p.T[:, None], out=proxy_major), inverse_p

    def add(self, block: Block, similarities: Tensor) -> None:
        own = block.rows, block.columns
        classes = pool(similarities, self.options.rule.centre_temperature).classes
        positive = classes[own]
        self.positive[block.rows] = positive
        base = self.logits.base(classes)
        if self.total is not None:
            others = base.sum(dim=1).mul_(self.logits.factor)
            others.add_(self.logits.offset * base.shape[1])
            self.total += others
            self.total[block.rows] -= base[own] * self.logits.factor + self.logits.offset
        base[own] = -torch.inf
        peak = base.amax(dim=1).mul_(self.logits.factor)
        maximum = torch.maximum(self.maximum, peak.add_(self.logits.offset))
        shift = _finite(maximum)
        self.sum *= torch.exp(self.maximum - shift)
        shares = floored_exp_(self.logits.shifted(base, shift))
        shares[own] = 0.0
        self.sum += shares.sum(dim=1)
        self.maximum = maximum
        if classes is similarities:
            classes[own] = positive  # `base` was the similarities themselves: as they were

    def add_spread(self, block: Block, p: Tensor) -> Tensor | None:
        """Inner products of the classes' proxies, (classes, K, K), if asked for."""
        if self.spread is None or block.segment != 0:
            return None
        products = inner_products(p)
        self.spread += spread_sum(products)
        return products

    def finish(self) -> Scores:
        """Combine with the other shards, if any."""
        reducer = self.options.reducer
        if reducer is not ALONE:
            local = self.maximum.clone()
            reducer.maximum_(self.maximum)
            self.sum *= torch.exp(local - _finite(self.maximum))
            for partial in (self.sum, self.positive, self.total, self.spread):
                if partial is not None:
                    reducer.sum_(partial)
        negatives = _finite(self.maximum) + self.sum.log()
        return Scores(negatives, self.positive, self.total, self.spread)


class _Back:
    """Gradients block by block (backward); overwrites the similarities it is given."""

    def __init__(
        self,
        x: Tensor,
        negatives: Tensor,
        grads: Sequence[Tensor | None],
        scale: float,
        options: _Options,
        grad_proxies: list[Tensor | None],
    ) -> None:
        self.x, self.scale, self.options = x, scale, options
        self.logits = _Logits(scale, options.rule)
        self.negatives = _finite(negatives)
        # None: the loss does not depend on it.
        of_negatives, of_positive, self.grad_total, self.grad_spread = grads
        self.grad_negatives = x.new_zeros(len(x)) if of_negatives is None else of_negatives
        self.grad_positive = x.new_zeros(len(x)) if of_positive is None else of_positive
        self.grad_proxies = grad_proxies
        self.with_scale = False
        self.grad_x = torch.zeros_like(x)
        self.grad_scale = x.new_zeros(())

    def add(
        self,
        block: Block,
        p: Tensor,
        similarities: Tensor,
        inverse_p: Tensor,
        products: Tensor | None,
    ) -> None:
        rule, own = self.options.rule, (block.rows, block.columns)
        pooled = pool(similarities, rule.centre_temperature)
        classes = pooled.classes
        # d loss / d logit: softmax over the wrong classes, then by index the own class.
        g = floored_exp_(self.logits.shifted(self.logits.base(classes), self.negatives))
        g.mul_((self.grad_negatives * self.scale)[:, None])
        if self.grad_total is not None:
            g.add_((self.grad_total * self.scale)[:, None])
        if rule.circle_margin is None:
            if self.with_scale:
                g[own] = 0.0
                self.grad_scale += torch.dot(g.flatten(), classes.flatten()) / self.scale
        else:
            g.mul_(classes.clamp(min=-rule.circle_margin).add_(rule.circle_margin))
        g[own] = self.grad_positive[block.rows]
        if p.dim() == 3:
            g = pool_backward(g, pooled, similarities, rule.centre_temperature)
        self._multiply(block, p, g, similarities, inverse_p, products)

    def _multiply(
        self,
        block: Block,
        p: Tensor,
        g: Tensor,
        similarities: Tensor,
        inverse_p: Tensor,
        products: Tensor | None,
    ) -> None:
        """The two matrix products, with both normalisations of the proxies folded in."""
        along = None
        if self.options.rule.normalise:
            # A normalised proxy moves only sideways: subtract its share along itself.
            along = similarities.mul_(g).sum(dim=-2)
            along = (along.T if p.dim() == 3 else along) * inverse_p.square()
        if p.dim() == 3:
            per_sample = similarities.view(len(self.x), *inverse_p.shape)  # used up: room for g
            g = torch.mul(g.permute(1, 2, 0), inverse_p, out=per_sample)
        elif along is not None:
            g.mul_(inverse_p)
        g, flat = g.flatten(1), p.flatten(0, -2)
        self.grad_x.addmm_(g, flat)
        grad = self.grad_proxies[block.segment]
        if grad is None:
            return
        with wide(grad[block.start : block.stop], self.x.dtype) as out:
            if products is None or along is None or self.grad_spread is None:
                less = None if along is None else along.flatten()
                write_gradient(out.flatten(0, -2), g, self.x, flat, less)
            else:
                write_gradient(out.flatten(0, -2), g, self.x, flat, None)
                add_spread_gradient(out, p, products, self.grad_spread, along)

    def finish(self, inverse_x: Tensor) -> tuple[Tensor, Tensor]:
        """Gradients of the raw embeddings and of the scale, summed over shards."""
        self.options.reducer.sum_(self.grad_x)
        self.options.reducer.sum_(self.grad_scale)
        if self.options.rule.normalise:
            along = (self.grad_x * self.x).sum(dim=1, keepdim=True)
            self.grad_x.addcmul_(self.x, along, value=-1.0).mul_(inverse_x[:, None])
        return self.grad_x, self.grad_scale


class _Logits:
    """z = factor * base(S) + offset, so that scale, offset and shift are one pass.

    For Circle [S + m]_+ (S - m) is max(S, -m)^2 - m^2. One scratch block serves all blocks.
    """

    def __init__(self, scale: float, rule: Rule) -> None:
        self.factor, self.margin = scale, rule.circle_margin
        self.offset = 0.0 if rule.circle_margin is None else -scale * rule.circle_margin**2
        self._scratch: Tensor | None = None

    def base(self, classes: Tensor) -> Tensor:
        """S itself (no copy), or a new tensor."""
        if self.margin is None:
            return classes
        return classes.clamp(min=-self.margin).square_()

    def shifted(self, base: Tensor, shift: Tensor) -> Tensor:
        """z - shift of each row, valid until the next call."""
        if self._scratch is None or self._scratch.shape != base.shape:
            self._scratch = torch.empty_like(base)
        column = (self.offset - shift)[:, None]
        return torch.add(column, base, alpha=self.factor, out=self._scratch)


def _finite(maximum: Tensor) -> Tensor:
    """Finite also where there was nothing to maximise, so that no inf - inf arises."""
    return maximum.clamp(min=torch.finfo(maximum.dtype).min)
