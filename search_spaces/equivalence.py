"""Which losses are one and the same function?

On the unit sphere d^2 = 2 - 2 cos, so a softmax over squared distances is one over cosines. Each
softmax-type loss has a canonical form, (cosine scale, margin); losses that share it at every point
must not be ranked against each other: the gap between two of them is the noise of the study.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)

from search_spaces.space import Value, describe
from search_spaces.synthesis import SUFFIX


class Canonical(NamedTuple):
    """Cross-entropy of scale * (cos - margin on the own class), and what else shapes it.

    Args:
        scale: Factor of the cosines.
        margin: On the own class's cosine ("cosine") or its angle ("angle", radians).
        kind: Which of the two; "cosine" where the margin is 0, as then there is no difference.
        rest: Knobs that change the function beyond that, sorted, if not at their defaults.
    """

    scale: float
    margin: float
    kind: str
    rest: tuple[tuple[str, Value], ...] = ()


class _Form(NamedTuple):
    """Where a loss's cosine scale and margin come from.

    Args:
        scale: The knob that is the scale, up to the two that follow.
        factor: The scale is the knob, or its reciprocal, times this.
        reciprocal: Whether the knob is a temperature.
        margin: The knob that is the margin; empty for a loss without one.
        kind: What the margin is on, as `Canonical.kind`; "anchor" for Proxy-Anchor, whose sums run
            over the batch, so that it has a scale and a margin but not this cross-entropy.
        unit: One unit of the margin's knob in cosines or radians.
        defaults: Of the two knobs, where a study need not give them.
    """

    scale: str
    factor: float = 1.0
    reciprocal: bool = False
    margin: str = ""
    kind: str = "cosine"
    unit: float = 1.0
    defaults: Mapping[str, Value] = {}

    def scale_at(self, value: Value) -> float:
        """The cosine scale at a value of its knob."""
        number = _number(value)
        return _rounded(self.factor / number if self.reciprocal else self.factor * number)


# pytorch-metric-learning's Proxy-NCA is a softmax over squared distances, its ArcFace in degrees.
_FORMS: Mapping[str, _Form] = {
    "norm_softmax": _Form("temperature", reciprocal=True),
    "proxy_nca_pp": _Form("temperature", 2.0, reciprocal=True),
    "am_softmax": _Form("gamma", margin="m"),
    "unified": _Form("gamma", margin="m"),
    "arcface": _Form("gamma", margin="m", kind="angle"),
    "soft_triple": _Form("lambda_", margin="delta"),
    "proxy_anchor": _Form("alpha", margin="delta", kind="anchor"),
    "pml:NormalizedSoftmaxLoss": _Form(
        "temperature", reciprocal=True, defaults={"temperature": 0.05}
    ),
    "pml:ProxyNCALoss": _Form("softmax_scale", 2.0, defaults={"softmax_scale": 1.0}),
    "pml:CosFaceLoss": _Form("scale", margin="margin", defaults={"scale": 64.0, "margin": 0.35}),
    "pml:ArcFaceLoss": _Form(
        "scale",
        margin="margin",
        kind="angle",
        unit=math.radians(1.0),
        defaults={"scale": 64.0, "margin": 28.6},
    ),
    "pml:ProxyAnchorLoss": _Form(
        "alpha", margin="margin", kind="anchor", defaults={"alpha": 32.0, "margin": 0.1}
    ),
}

# How a loss trains where that is no knob; ours start proxies at length one.
_STARTS: Mapping[str, str] = {
    "pml:NormalizedSoftmaxLoss": "as N(0, 1)",
    "pml:ProxyNCALoss": "as N(0, 1), without samples of vanishing probability",
    "pml:CosFaceLoss": "as N(0, 1)",
    "pml:ArcFaceLoss": "as N(0, 1)",
    "pml:ProxyAnchorLoss": "by Kaiming's rule",
}

# Knobs that make another function of the same scale and margin, with the value that does not.
_NEUTRAL: Mapping[str, Value] = {
    "label_smoothing": 0.0,
    "temperature_mode": "fixed",
    "proxies_per_class": 1,
    "synthesis_draw": "batch",
    "synthesis_path": "linear",
}
_ANNEAL_RATIO = 4.0


def canonical(loss: str, point: Mapping[str, Value]) -> Canonical | None:
    """The canonical form of a loss at a point; None for a loss that has none.

    `point` may hold training knobs too; they do not count. Equal forms are equal functions of
    embeddings, labels and proxies. With `+synthesis` the plug-in's knobs are part of the form.
    """
    host = loss.removesuffix(SUFFIX)
    form = _FORMS.get(host)
    if form is None or form.kind == "anchor":
        return None
    if host == "soft_triple" and point["centers"] != 1:
        return None
    point = {**form.defaults, **point}
    margin, kind = _margin(form, point)
    rest = _rest(point, plugin=host != loss)
    scale = form.scale_at(point[form.scale])
    return Canonical(scale, margin or 0.0, kind, tuple(sorted(rest.items())))


def aliases(
    losses: Sequence[str],
    fixed: Mapping[str, Mapping[str, Value]] | None = None,
    searched: Mapping[str, Collection[str]] | None = None,
) -> list[tuple[str, ...]]:
    """Groups of two or more of the losses that are one function of different knobs.

    Args:
        losses: Names as in a study, `HOST+synthesis` included.
        fixed: Per loss, the knobs the study holds at a value; a margin held at 0 makes a margin
            loss the plain one.
        searched: Per loss, the knobs the study varies: such a knob is at no one value. A library's
            knob that is neither held nor varied is at its default; without `searched` it is open.

    Returns:
        Groups in the order of `losses`; a loss without an alias is in none.
    """
    groups: dict[object, list[str]] = {}
    for loss in losses:
        held = (fixed or {}).get(loss, {})
        if searched is not None and loss in _FORMS:
            held = {**_FORMS[loss].defaults, **held}
        key = _class_of(loss, held, (searched or {}).get(loss, ()))
        if key is not None:
            groups.setdefault(key, []).append(loss)
    return [tuple(group) for group in groups.values() if len(group) > 1]


def function_knobs(loss: str) -> set[str]:
    """The knobs that shape a loss of canonical form; all others are its training's."""
    host = loss.removesuffix(SUFFIX)
    form = _FORMS[host]
    own = {form.scale, form.margin, *_NEUTRAL} - {""}
    if host == "soft_triple":
        own |= {"centers", "gamma", "tau"}
    return own | {"anneal_ratio", "synthesis_alpha", "synthesis_mu"}


def function_ranges(
    loss: str, distributions: Mapping[str, BaseDistribution]
) -> dict[str, BaseDistribution | str]:
    """Where a loss of canonical form is searched, in units that all its names share.

    Two names of one function that are searched over other ranges are not one search: the better
    range wins, and that is no noise.
    """
    form = _FORMS[loss.removesuffix(SUFFIX)]
    found: dict[str, BaseDistribution | str] = {
        knob: distribution
        for knob, distribution in distributions.items()
        if knob in {*_NEUTRAL, "anneal_ratio", "synthesis_alpha", "synthesis_mu"}
    }
    if form.scale in distributions:
        factor = 1.0 / form.factor if form.reciprocal else form.factor
        scale = _times(distributions[form.scale], factor)
        found["cosine scale"] = _reciprocal(scale) if form.reciprocal else scale
    if form.margin in distributions:
        found["margin"] = _times(distributions[form.margin], form.unit)
    return found


def start_of_proxies(loss: str) -> str:
    """How a loss of canonical form starts its proxies, in words; no knob changes it."""
    return _STARTS.get(loss, "at length one")


def _class_of(loss: str, fixed: Mapping[str, Value], searched: Collection[str]) -> object | None:
    """A key shared by exactly the losses that are one function at all points left free."""
    host = loss.removesuffix(SUFFIX)
    form = _FORMS.get(host)
    if form is None or (host == "soft_triple" and fixed.get("centers") != 1):
        return None
    free = set(searched)
    fixed = {knob: value for knob, value in fixed.items() if knob not in free}
    plugin = host != loss and fixed.get("synthesis_mu") != 0
    margin, kind = _margin(form, fixed)
    known = form.scale_at(fixed[form.scale]) if form.scale in fixed else None
    rest = _rest(fixed, plugin=plugin)
    if "temperature_mode" in free:
        rest["anneal_ratio"] = fixed.get("anneal_ratio", _ANNEAL_RATIO)
    free &= {*_NEUTRAL, "anneal_ratio", "synthesis_alpha", "synthesis_mu"}
    rest = {knob: value for knob, value in rest.items() if knob not in free}
    return kind, margin, known, plugin, tuple(sorted(rest.items())), tuple(sorted(free))


def _margin(form: _Form, point: Mapping[str, Value]) -> tuple[float | None, str]:
    """The margin (None where the point leaves it open) and what it is on."""
    if not form.margin:
        return 0.0, form.kind
    margin = _rounded(_number(point[form.margin]) * form.unit) if form.margin in point else None
    return margin, "cosine" if margin == 0 and form.kind == "angle" else form.kind


def _rest(point: Mapping[str, Value], *, plugin: bool) -> dict[str, Value]:
    """What else shapes the function at a point."""
    rest = {k: v for k, v in point.items() if k in _NEUTRAL and v != _NEUTRAL[k]}
    if rest.get("temperature_mode") == "annealed":
        rest["anneal_ratio"] = point.get("anneal_ratio", _ANNEAL_RATIO)
        if rest["anneal_ratio"] == 1:
            del rest["temperature_mode"], rest["anneal_ratio"]
    synthesis = {k: v for k, v in point.items() if k.startswith("synthesis_")}
    for knob in synthesis:
        rest.pop(knob, None)
    if plugin and synthesis.get("synthesis_mu") != 0:
        rest |= {k: v for k, v in synthesis.items() if v != _NEUTRAL.get(k)}
    return rest


def _number(value: Value) -> float:
    assert isinstance(value, int | float)
    return float(value)


def _times(distribution: BaseDistribution, factor: float) -> BaseDistribution:
    """The distribution of `factor` times the knob."""
    if factor == 1.0:
        return distribution
    if isinstance(distribution, CategoricalDistribution):
        return CategoricalDistribution([_rounded(c * factor) for c in distribution.choices])  # type: ignore[operator]
    assert isinstance(distribution, FloatDistribution | IntDistribution)
    low, high = _rounded(distribution.low * factor), _rounded(distribution.high * factor)
    # Whole numbers drawn evenly in their logarithm have no step once they are multiplied.
    step = None if distribution.log or distribution.step is None else distribution.step * factor
    return FloatDistribution(low, high, log=distribution.log, step=step)


def _reciprocal(distribution: BaseDistribution) -> BaseDistribution | str:
    """The distribution of 1 / knob: words where Optuna has none, as for evenly drawn ones."""
    if isinstance(distribution, CategoricalDistribution):
        return CategoricalDistribution([_rounded(1.0 / c) for c in distribution.choices])  # type: ignore[operator]
    if isinstance(distribution, FloatDistribution) and distribution.log:
        low, high = _rounded(1.0 / distribution.high), _rounded(1.0 / distribution.low)
        return FloatDistribution(low, high, log=True)
    return f"searched as the reciprocal of {describe(distribution)}"


def _rounded(number: float) -> float:
    """Twelve digits: 1 / 0.05 and 2 / 0.1 are one number."""
    return float(f"{number:.12g}")
