"""Which losses are one and the same function?

On the unit sphere d^2 = 2 - 2 cos, so a softmax over squared distances is one over cosines. Each
softmax-type loss has a canonical form, (cosine scale, margin); losses that share it at every point
must not be ranked against each other: the gap between two of them is the noise of the study.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import NamedTuple

from search_spaces.space import Value
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


# Which knob is the cosine scale, and as what.
_SCALES: Mapping[str, tuple[str, Callable[[float], float]]] = {
    "norm_softmax": ("temperature", lambda temperature: 1.0 / temperature),
    "proxy_nca_pp": ("temperature", lambda temperature: 2.0 / temperature),
    "am_softmax": ("gamma", float),
    "unified": ("gamma", float),
    "arcface": ("gamma", float),
    "soft_triple": ("lambda_", float),
}

# Which knob is the margin, and on what; the others have none.
_MARGINS: Mapping[str, tuple[str, str]] = {
    "am_softmax": ("m", "cosine"),
    "unified": ("m", "cosine"),
    "arcface": ("m", "angle"),
    "soft_triple": ("delta", "cosine"),
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
    if host not in _SCALES or (host == "soft_triple" and point["centers"] != 1):
        return None
    knob, scale = _SCALES[host]
    margin, kind = _margin(host, point)
    rest = _rest(point, plugin=host != loss)
    return Canonical(scale(_number(point[knob])), margin or 0.0, kind, tuple(sorted(rest.items())))


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
        searched: Per loss, the knobs the study varies: such a knob is at no one value.

    Returns:
        Groups in the order of `losses`; a loss without an alias is in none.
    """
    groups: dict[object, list[str]] = {}
    for loss in losses:
        key = _class_of(loss, (fixed or {}).get(loss, {}), (searched or {}).get(loss, ()))
        if key is not None:
            groups.setdefault(key, []).append(loss)
    return [tuple(group) for group in groups.values() if len(group) > 1]


def function_knobs(loss: str) -> set[str]:
    """The knobs that shape a loss of canonical form; all others are its training's."""
    host = loss.removesuffix(SUFFIX)
    own = {_SCALES[host][0], *_MARGINS.get(host, ())[:1], *_NEUTRAL}
    if host == "soft_triple":
        own |= {"centers", "gamma", "tau"}
    return own | {"anneal_ratio", "synthesis_alpha", "synthesis_mu"}


def _class_of(loss: str, fixed: Mapping[str, Value], searched: Collection[str]) -> object | None:
    """A key shared by exactly the losses that are one function at all points left free."""
    host = loss.removesuffix(SUFFIX)
    if host not in _SCALES or (host == "soft_triple" and fixed.get("centers") != 1):
        return None
    free = set(searched)
    fixed = {knob: value for knob, value in fixed.items() if knob not in free}
    plugin = host != loss and fixed.get("synthesis_mu") != 0
    margin, kind = _margin(host, fixed)
    knob, scale = _SCALES[host]
    # Twelve digits: 1 / 0.05 and 2 / 0.1 are one number.
    known = f"{scale(_number(fixed[knob])):.12g}" if knob in fixed else None
    rest = _rest(fixed, plugin=plugin)
    if "temperature_mode" in free:
        rest["anneal_ratio"] = fixed.get("anneal_ratio", _ANNEAL_RATIO)
    free &= {*_NEUTRAL, "anneal_ratio", "synthesis_alpha", "synthesis_mu"}
    rest = {knob: value for knob, value in rest.items() if knob not in free}
    return kind, margin, known, plugin, tuple(sorted(rest.items())), tuple(sorted(free))


def _margin(host: str, point: Mapping[str, Value]) -> tuple[float | None, str]:
    """The margin (None where the point leaves it open) and what it is on."""
    if host not in _MARGINS:
        return 0.0, "cosine"
    knob, kind = _MARGINS[host]
    margin = _number(point[knob]) if knob in point else None
    return margin, "cosine" if margin == 0 else kind


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
