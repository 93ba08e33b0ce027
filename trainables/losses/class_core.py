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
    inverse_norms,
    iterate,
    own_similarities_fit,
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
    """

    normalise: bool = True
    centre_temperature: float | None = None
    circle_margin: float | None = None


class Scores(NamedTuple):
    """Per sample: log-sum-exp of the wrong classes' logits, own similarity, sum of wrong logits."""

    negatives: Tensor
    positive: Tensor
    total: Tensor


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
    `circle_margin`). `total` is zero unless asked for. With no wrong class `negatives` is -inf.
    """
    options = _Options(rule, with_total, budget or Budget(), reducer)
    scale = scale if isinstance(scale, Tensor) else torch.tensor(scale, dtype=torch.float64)
    firsts = [segment.first for segment in segments]
    proxies = [segment.proxies for segment in segments]
    with torch.autocast(embeddings.device.type, enabled=False):
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
        scale: Tensor,
        options: _Options,
        firsts: list[int],
        *proxies: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor]:
        dtype = compute_dtype(embeddings, *proxies)
        segments = [Segment(first, p) for first, p in zip(firsts, proxies, strict=True)]
        size = torch.finfo(dtype).bits // 8
        blocks = cut(segments, labels, item_bytes=size, budget=options.budget)
        x = embeddings.to(dtype)
        inverse_x = inverse_norms(x) if options.rule.normalise else torch.ones_like(x[:, 0])
        x = x * inverse_x[:, None] if options.rule.normalise else x
        keep = own_similarities_fit(segments, len(x), size, options.budget)
        scan = _Scan(x, float(scale), options)
        kept: list[tuple[Tensor, Tensor]] = []
        for block, p in iterate(blocks, proxies, dtype):
            similarities, inverse_p = scan.similarities(p)
            scan.add(block, similarities)
            if keep:
                kept.append((similarities, inverse_p))
        scores = scan.finish()
        ctx.save_for_backward(x, inverse_x, labels, scores.negatives, *proxies)
        ctx.blocks, ctx.kept, ctx.options, ctx.scale = blocks, kept, options, scale
        ctx.input_dtype = embeddings.dtype
        return scores.negatives, scores.positive, scores.total

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, inverse_x, _, negatives, *proxies = ctx.saved_tensors
        # The kept similarities are used up; a second backward computes them again.
        kept, ctx.kept = ctx.kept, []
        with torch.autocast(x.device.type, enabled=False):
            back = _Back(x, negatives, grads, float(ctx.scale), ctx.options, _wanted(ctx, proxies))
            scan = _Scan(x, float(ctx.scale), ctx.options)
            for number, (block, p) in enumerate(iterate(ctx.blocks, proxies, x.dtype)):
                back.add(block, p, *(kept[number] if kept else scan.similarities(p)))
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
        self.x, self.scale, self.options = x, scale, options
        self.maximum = torch.full_like(x[:, 0], -torch.inf)
        self.sum = torch.zeros_like(x[:, 0])
        self.positive = torch.zeros_like(x[:, 0])
        self.total = torch.zeros_like(x[:, 0])

    def similarities(self, p: Tensor) -> tuple[Tensor, Tensor]:
        """Similarities to a block's proxies, (batch, classes) or (K, batch, classes), and 1/norms.

        The proxies' norms scale columns of the result: no normalised copy of the proxies.
        """
        inverse_p = inverse_norms(p) if self.options.rule.normalise else torch.ones_like(p[..., 0])
        if p.dim() == 2:
            similarities = self.x @ p.T
            return (
                similarities.mul_(inverse_p) if self.options.rule.normalise else similarities
            ), inverse_p
        inverse_p = inverse_p.T.contiguous()
        similarities = self.x.new_empty(p.shape[1], len(self.x), len(p))
        for k in range(p.shape[1]):
            torch.mm(self.x, p[:, k].T, out=similarities[k])
        if self.options.rule.normalise:
            similarities.mul_(inverse_p[:, None])
        return similarities, inverse_p

    def add(self, block: Block, similarities: Tensor) -> None:
        rule = self.options.rule
        classes = pool(similarities, rule.centre_temperature)
        self.positive[block.rows] = classes[block.rows, block.columns]
        z = _logits(classes, self.scale, rule)
        if self.options.with_total:
            z[block.rows, block.columns] = 0.0
            self.total += z.sum(dim=1)
        z[block.rows, block.columns] = -torch.inf
        maximum = torch.maximum(self.maximum, z.amax(dim=1))
        shift = _finite(maximum)
        self.sum *= torch.exp(self.maximum - shift)
        self.sum += z.sub_(shift[:, None]).exp_().sum(dim=1)
        self.maximum = maximum

    def finish(self) -> Scores:
        """Combine with the other shards, if any."""
        reducer = self.options.reducer
        local = self.maximum.clone()
        reducer.maximum_(self.maximum)
        self.sum *= torch.exp(local - _finite(self.maximum))
        reducer.sum_(self.sum)
        reducer.sum_(self.positive)
        reducer.sum_(self.total)
        return Scores(_finite(self.maximum) + self.sum.log(), self.positive, self.total)


class _Back:
    """Gradients block by block (backward); overwrites the similarities it is given."""

    def __init__(
        self,
        x: Tensor,
        negatives: Tensor,
        grads: Sequence[Tensor],
        scale: float,
        options: _Options,
        grad_proxies: list[Tensor | None],
    ) -> None:
        self.x, self.scale, self.options = x, scale, options
        self.negatives = _finite(negatives)
        self.grad_negatives, self.grad_positive, self.grad_total = (g.to(x.dtype) for g in grads)
        self.grad_proxies = grad_proxies
        self.grad_x = torch.zeros_like(x)
        self.grad_scale = x.new_zeros(())

    def add(self, block: Block, p: Tensor, similarities: Tensor, inverse_p: Tensor) -> None:
        rule = self.options.rule
        classes = pool(similarities, rule.centre_temperature)
        # d loss / d logit: softmax over the wrong classes, then by index the own class.
        g = _logits(classes, self.scale, rule).sub_(self.negatives[:, None]).exp_()
        g.mul_(self.grad_negatives[:, None])
        if self.options.with_total:
            g.add_(self.grad_total[:, None])
        if rule.circle_margin is None:
            g.mul_(self.scale)
            g[block.rows, block.columns] = 0.0
            self.grad_scale += torch.dot(g.flatten(), classes.flatten()) / self.scale
        else:
            g.mul_((classes + rule.circle_margin).relu_()).mul_(self.scale)
        g[block.rows, block.columns] = self.grad_positive[block.rows]
        if p.dim() == 3:
            g = pool_backward(g, classes, similarities, rule.centre_temperature)
        self._products(block, p, g, similarities, inverse_p)

    def _products(
        self, block: Block, p: Tensor, g: Tensor, similarities: Tensor, inverse_p: Tensor
    ) -> None:
        """The two matrix products, with both normalisations of the proxies folded in."""
        normalise = self.options.rule.normalise
        if normalise:
            # A normalised proxy moves only sideways: subtract its share along itself.
            along = similarities.mul_(g).sum(dim=-2).mul_(inverse_p).mul_(inverse_p).neg_()
            g.mul_(inverse_p.unsqueeze(-2))
        grad = self.grad_proxies[block.segment]
        for k in range(p.shape[1] if p.dim() == 3 else 1):
            proxies, gk = (p[:, k], g[k]) if p.dim() == 3 else (p, g)
            self.grad_x.addmm_(gk, proxies)
            if grad is None:
                continue
            out = grad[block.start : block.stop]
            out = out[:, k] if p.dim() == 3 else out
            direct = out.dtype == self.x.dtype
            result = torch.mm(gk.T, self.x, out=out) if direct else gk.T @ self.x
            if normalise:
                ak = along[k] if p.dim() == 3 else along
                result.addcmul_(proxies, ak[:, None])
            if not direct:
                out.copy_(result)

    def finish(self, inverse_x: Tensor) -> tuple[Tensor, Tensor]:
        """Gradients of the raw embeddings and of the scale, summed over shards."""
        self.options.reducer.sum_(self.grad_x)
        self.options.reducer.sum_(self.grad_scale)
        if self.options.rule.normalise:
            along = (self.grad_x * self.x).sum(dim=1, keepdim=True)
            self.grad_x.addcmul_(self.x, along, value=-1.0).mul_(inverse_x[:, None])
        return self.grad_x, self.grad_scale


def _logits(classes: Tensor, scale: float, rule: Rule) -> Tensor:
    """z = scale * h(S), in a new tensor."""
    if rule.circle_margin is None:
        return classes * scale
    weights = (classes + rule.circle_margin).relu_()
    return (classes - rule.circle_margin).mul_(weights).mul_(scale)


def _finite(maximum: Tensor) -> Tensor:
    """Zero where there was nothing to maximise, so that no inf - inf arises."""
    return torch.where(maximum == -torch.inf, 0.0, maximum)
