"""Every loss equals its formula, written as naive loops.

The oracles loop over samples, classes and pairs with scalars, without blocks, log space or folded
norms. Value and gradients must agree on every batch of the `batch` fixture.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import relu

from trainables.losses import LOSSES

pytestmark = pytest.mark.split

Oracle = Callable[..., Tensor]
Batch = tuple[Tensor, Tensor]


def unit(v: Tensor) -> Tensor:
    scaled: Tensor = v / torch.linalg.vector_norm(v)
    return scaled


def mean(values: Sequence[Tensor], like: Tensor) -> Tensor:
    return torch.stack(list(values)).mean() if values else like.sum() * 0.0


def cross_entropy(
    logits: list[Tensor], own: int, smoothing: float = 0.0, own_in_sum: bool = True
) -> Tensor:
    z = torch.stack(logits)
    inside = [k for k in range(len(z)) if own_in_sum or k != own]
    log_sum = torch.logsumexp(z[inside], dim=0)
    targets = torch.full_like(z, smoothing / max(len(z) - 1, 1))
    targets[own] = 1.0 - smoothing
    return sum((t * (log_sum - zk) for t, zk in zip(targets, z, strict=True)), z.sum() * 0.0)


def class_similarity(x: Tensor, proxies: Tensor, gamma: float | None = None) -> Tensor:
    """Return the similarity of a sample to a class: to its nearest proxy, or SoftTriple's mean."""
    if proxies.dim() == 1:
        return unit(x) @ unit(proxies)
    s = torch.stack([unit(x) @ unit(p) for p in proxies])
    return s.max() if gamma is None else (torch.softmax(s / gamma, dim=0) * s).sum()


def softmax(x: Tensor, y: Tensor, p: Tensor, *, label_smoothing: float) -> Tensor:
    terms = [
        cross_entropy([xi @ pc for pc in p], int(yi), label_smoothing)
        for xi, yi in zip(x, y, strict=True)
    ]
    return mean(terms, x)


def margin_softmax(
    x: Tensor,
    y: Tensor,
    p: Tensor,
    own: Callable[[Tensor], Tensor],
    other: Callable[[Tensor], Tensor],
    *,
    gamma: float | None = None,
    label_smoothing: float = 0.0,
    own_in_sum: bool = True,
) -> Tensor:
    terms = []
    for xi, yi in zip(x, y, strict=True):
        s = [class_similarity(xi, pc, gamma) for pc in p]
        z = [own(sc) if c == int(yi) else other(sc) for c, sc in enumerate(s)]
        terms.append(cross_entropy(z, int(yi), label_smoothing, own_in_sum))
    return mean(terms, x)


def norm_softmax(x: Tensor, y: Tensor, p: Tensor, *, temperature: float, **rest: Any) -> Tensor:
    return margin_softmax(x, y, p, lambda s: s / temperature, lambda s: s / temperature, **rest)


def am_softmax(x: Tensor, y: Tensor, p: Tensor, *, gamma: float, m: float, **rest: Any) -> Tensor:
    return margin_softmax(x, y, p, lambda s: gamma * (s - m), lambda s: gamma * s, **rest)


def arcface(x: Tensor, y: Tensor, p: Tensor, *, gamma: float, m: float, **rest: Any) -> Tensor:
    def own(s: Tensor) -> Tensor:
        angle = torch.acos(s)
        if angle > torch.pi - m:
            return gamma * (s - m * math.sin(m))
        return gamma * torch.cos(angle + m)

    return margin_softmax(x, y, p, own, lambda s: gamma * s, **rest)


def proxy_nca(x: Tensor, y: Tensor, p: Tensor, *, scale: float, **rest: Any) -> Tensor:
    def logit(s: Tensor) -> Tensor:
        return -scale * (2.0 - 2.0 * s)

    return margin_softmax(x, y, p, logit, logit, own_in_sum=False, **rest)


def proxy_nca_pp(x: Tensor, y: Tensor, p: Tensor, *, temperature: float, **rest: Any) -> Tensor:
    def logit(s: Tensor) -> Tensor:
        return -(2.0 - 2.0 * s) / temperature

    return margin_softmax(x, y, p, logit, logit, **rest)


def circle(x: Tensor, y: Tensor, p: Tensor, *, gamma: float, m: float, **rest: Any) -> Tensor:
    return margin_softmax(
        x,
        y,
        p,
        lambda s: gamma * relu(1 + m - s.detach()) * (s - (1 - m)),
        lambda s: gamma * relu(s.detach() + m) * (s - m),
        **rest,
    )


def soft_triple(
    x: Tensor,
    y: Tensor,
    p: Tensor,
    *,
    lambda_: float,
    gamma: float,
    tau: float,
    delta: float,
    centers: int,
    **rest: Any,
) -> Tensor:
    loss = margin_softmax(
        x, y, p, lambda s: lambda_ * (s - delta), lambda s: lambda_ * s, gamma=gamma, **rest
    )
    if centers == 1:
        return loss
    spread = x.sum() * 0.0
    for centres in p:
        for t in range(centers):
            for s in range(t + 1, centers):
                cosine = unit(centres[t]) @ unit(centres[s])
                spread = spread + torch.sqrt(2.0 + 1e-5 - 2.0 * cosine)
    return loss + tau * spread / (len(p) * centers * (centers - 1))


def proxy_anchor(x: Tensor, y: Tensor, p: Tensor, *, alpha: float, delta: float) -> Tensor:
    pulls, pushes = [], []
    for c, pc in enumerate(p):
        s = [unit(xi) @ unit(pc) for xi in x]
        own = [torch.exp(-alpha * (si - delta)) for si, yi in zip(s, y, strict=True) if yi == c]
        wrong = [torch.exp(alpha * (si + delta)) for si, yi in zip(s, y, strict=True) if yi != c]
        if own:
            pulls.append(torch.log(1.0 + sum(own, x.sum() * 0.0)))
        pushes.append(torch.log(1.0 + sum(wrong, x.sum() * 0.0)))
    return mean(pulls, x) + mean(pushes, x)


def distance(a: Tensor, b: Tensor) -> Tensor:
    d: Tensor = torch.linalg.vector_norm(unit(a) - unit(b))
    return d


def positives_and_negatives(y: Tensor, i: int) -> tuple[list[int], list[int]]:
    others = [j for j in range(len(y)) if j != i]
    return [j for j in others if y[j] == y[i]], [j for j in others if y[j] != y[i]]


def pair_softplus(
    x: Tensor,
    y: Tensor,
    negative: Callable[[Tensor], Tensor],
    positive: Callable[[Tensor], Tensor],
    reduction: str,
) -> Tensor:
    s = [[unit(a) @ unit(b) for b in x] for a in x]
    if reduction == "batch":
        pairs = [(i, j) for i in range(len(y)) for j in range(i + 1, len(y))]
        positives = [positive(s[i][j]) for i, j in pairs if y[i] == y[j]]
        negatives = [negative(s[i][j]) for i, j in pairs if y[i] != y[j]]
        has_both = positives and negatives
        return _softplus(negatives, positives) if has_both else x.sum() * 0.0
    terms = []
    for i in range(len(y)):
        same, other = positives_and_negatives(y, i)
        if same and other:
            terms.append(
                _softplus([negative(s[i][j]) for j in other], [positive(s[i][j]) for j in same])
            )
    total = sum(terms, x.sum() * 0.0)
    return total / max(len(y) if reduction == "all" else len(terms), 1)


def _softplus(negatives: list[Tensor], positives: list[Tensor]) -> Tensor:
    z = torch.logsumexp(torch.stack(negatives), 0) + torch.logsumexp(torch.stack(positives), 0)
    return torch.logsumexp(torch.stack([z, torch.zeros_like(z)]), 0)


def circle_pair(
    x: Tensor, y: Tensor, *, gamma: float, m: float, reduction: str = "valid"
) -> Tensor:
    return pair_softplus(
        x,
        y,
        lambda s: gamma * relu(s.detach() + m) * (s - m),
        lambda s: -gamma * relu(1 + m - s.detach()) * (s - (1 - m)),
        reduction,
    )


def unified_pair(
    x: Tensor, y: Tensor, *, gamma: float, m: float, reduction: str = "valid"
) -> Tensor:
    return pair_softplus(x, y, lambda s: gamma * (s + m), lambda s: -gamma * s, reduction)


def triplet(x: Tensor, y: Tensor, *, margin: float, mining: str = "hard") -> Tensor:
    terms = []
    for i in range(len(y)):
        same, other = positives_and_negatives(y, i)
        near = [distance(x[i], x[j]) for j in same]
        far = [distance(x[i], x[j]) for j in other]
        if mining == "hard" and same and other:
            terms.append(relu(max(near) - min(far) + margin))
        if mining == "semihard":
            gaps = [p - n for p in near for n in far]
            terms += [relu(g + margin) for g in gaps if -margin <= g < 0]
    return mean(terms, x)


def contrastive(x: Tensor, y: Tensor, *, margin: float, pos_margin: float) -> Tensor:
    pull, push = [], []
    for i in range(len(y)):
        same, other = positives_and_negatives(y, i)
        pull += [relu(distance(x[i], x[j]) - pos_margin) for j in same]
        push += [relu(margin - distance(x[i], x[j])) for j in other]
    return mean([v for v in pull if v > 0], x) + mean([v for v in push if v > 0], x)


def multi_similarity(
    x: Tensor,
    y: Tensor,
    *,
    alpha: float,
    beta: float,
    base: float,
    mining: str = "margin",
    epsilon: float = 0.1,
) -> Tensor:
    terms = []
    for i in range(len(y)):
        same, other = positives_and_negatives(y, i)
        near = [unit(x[i]) @ unit(x[j]) for j in same]
        far = [unit(x[i]) @ unit(x[j]) for j in other]
        if mining == "margin":
            mined = [s for s in near if far and s - epsilon < max(far)]
            far = [s for s in far if near and s + epsilon > min(near)]
            near = mined
        one = torch.ones((), dtype=x.dtype)
        pull = torch.log(sum((torch.exp(-alpha * (s - base)) for s in near), one)) / alpha
        push = torch.log(sum((torch.exp(beta * (s - base)) for s in far), one)) / beta
        terms.append(pull + push)
    return mean(terms, x) + x.sum() * 0.0


def margin(x: Tensor, y: Tensor, *, margin: float, beta: float) -> Tensor:
    hinges = []
    for i in range(len(y)):
        same, other = positives_and_negatives(y, i)
        for p in same:
            for n in other:
                hinges.append(relu(distance(x[i], x[p]) - beta + margin))
                hinges.append(relu(beta - distance(x[i], x[n]) + margin))
    return mean([h for h in hinges if h > 0], x)


ORACLES: dict[str, Oracle] = {
    "softmax": softmax,
    "norm_softmax": norm_softmax,
    "am_softmax": am_softmax,
    "arcface": arcface,
    "proxy_nca": proxy_nca,
    "proxy_nca_pp": proxy_nca_pp,
    "soft_triple": soft_triple,
    "proxy_anchor": proxy_anchor,
    "circle": circle,
    "circle_pair": circle_pair,
    "unified": am_softmax,
    "unified_pair": unified_pair,
    "triplet": triplet,
    "contrastive": contrastive,
    "multi_similarity": multi_similarity,
    "margin": margin,
}

# Beside the published point: hyperparameters away from their defaults, one set per line.
VARIANTS: list[tuple[str, dict[str, Any]]] = [
    ("softmax", {"label_smoothing": 0.2}),
    ("norm_softmax", {"temperature": 0.3, "label_smoothing": 0.1}),
    ("norm_softmax", {"temperature": 0.1, "proxies_per_class": 3}),
    ("am_softmax", {"gamma": 10.0, "m": 0.2, "label_smoothing": 0.1, "proxies_per_class": 2}),
    ("arcface", {"gamma": 12.0, "m": 1.3}),
    ("arcface", {"gamma": 12.0, "m": 0.0}),
    ("arcface", {"gamma": 12.0, "m": 0.3, "proxies_per_class": 2}),
    ("proxy_nca", {"scale": 2.0, "label_smoothing": 0.1, "proxies_per_class": 2}),
    ("proxy_nca_pp", {"temperature": 0.7, "label_smoothing": 0.3, "proxies_per_class": 2}),
    ("soft_triple", {"centers": 1}),
    ("soft_triple", {"centers": 3, "gamma": 2.0, "delta": 0.4, "tau": 0.0}),
    ("soft_triple", {"centers": 2, "label_smoothing": 0.1, "tau": 0.7}),
    ("proxy_anchor", {"alpha": 4.0, "delta": 0.5}),
    ("circle", {"gamma": 20.0, "m": -0.2}),
    ("circle", {"gamma": 30.0, "m": 0.5, "label_smoothing": 0.1, "proxies_per_class": 2}),
    ("circle_pair", {"gamma": 20.0, "m": 0.1, "reduction": "all"}),
    ("circle_pair", {"reduction": "batch"}),
    ("unified", {"gamma": 9.0, "m": 0.0, "proxies_per_class": 2}),
    ("unified_pair", {"gamma": 9.0, "reduction": "batch"}),
    ("unified_pair", {"gamma": 9.0, "reduction": "all"}),
    ("triplet", {"margin": 0.4, "mining": "semihard"}),
    ("triplet", {"margin": 1.0}),
    ("contrastive", {"margin": 1.5, "pos_margin": 0.4}),
    ("multi_similarity", {"alpha": 5.0, "beta": 10.0, "base": 0.2, "mining": "none"}),
    ("multi_similarity", {"epsilon": 0.4}),
    ("margin", {"margin": 0.5, "beta": 0.9}),
]


def published_params(name: str) -> dict[str, Any]:
    from search_spaces import get_space
    from trainables.losses import loss_params

    known = loss_params(name)
    return {k: v for k, v in get_space(name).published[0].values.items() if k in known}


def per_distinct_row(x: Tensor, gradient: Tensor) -> Tensor:
    """Return the gradients summed over equal vectors: a maximum may pick any of the copies."""
    _, index = torch.unique(x.detach(), dim=0, return_inverse=True)
    return torch.zeros_like(gradient).index_add(0, index, gradient)


def check(name: str, changed: dict[str, Any], loss: Any, batch: Batch) -> None:
    x, y = batch[0].clone().requires_grad_(), batch[1]
    params = published_params(name) | changed
    several = params.pop("proxies_per_class", 1)
    inputs = [x, *loss.parameters()]
    if "proxies" in dict(loss.named_parameters()):
        assert loss.proxies.dim() == 2 + (max(several, params.get("centers", 1)) > 1)
        expected = ORACLES[name](x, y, loss.proxies, **params)
    else:
        expected = ORACLES[name](x, y, **params)
    value = loss(x, y)
    torch.testing.assert_close(value, expected, rtol=1e-9, atol=1e-12)
    gradients = torch.autograd.grad(value, inputs)
    wanted = torch.autograd.grad(expected, inputs, allow_unused=True)
    for tensor, gradient, want in zip(inputs, gradients, wanted, strict=True):
        want = torch.zeros_like(tensor) if want is None else want
        if tensor is x:
            gradient, want = per_distinct_row(x, gradient), per_distinct_row(x, want)
        scale = float(want.abs().max().clamp(min=1.0))
        torch.testing.assert_close(gradient, want, rtol=1e-9, atol=1e-10 * scale)


@pytest.mark.parametrize("name", LOSSES)
def test_equals_naive_loops_at_the_published_point(
    name: str, make_loss: Callable[..., Any], batch: Batch
) -> None:
    check(name, {}, make_loss(name), batch)


@pytest.mark.parametrize(("name", "changed"), VARIANTS, ids=lambda v: v if type(v) is str else "")
def test_equals_naive_loops_at_other_points(
    name: str, changed: dict[str, Any], make_loss: Callable[..., Any], batch: Batch
) -> None:
    check(name, changed, make_loss(name, **changed), batch)


def test_every_loss_has_an_oracle() -> None:
    assert set(ORACLES) == set(LOSSES)
