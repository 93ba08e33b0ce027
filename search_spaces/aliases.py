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


_FORMS: Mapping[str, Callable[[Mapping[str, float]], tuple[float, float, str]]] = {
    "norm_softmax": lambda p: (1.0 / p["temperature"], 0.0, "cosine"),
    "proxy_nca_pp": lambda p: (2.0 / p["temperature"], 0.0, "cosine"),
    "am_softmax": lambda p: (p["gamma"], p["m"], "cosine"),
    "unified": lambda p: (p["gamma"], p["m"], "cosine"),
    "arcface": lambda p: (p["gamma"], p["m"], "angle" if p["m"] else "cosine"),
    "soft_triple": lambda p: (p["lambda_"], p["delta"], "cosine"),
}

# Knobs that make another function of the same scale and margin, with the value that does not.
_NEUTRAL: Mapping[str, Value] = {
    "label_smoothing": 0.0,
    "temperature_mode": "fixed",
    "proxies_per_class": 1,
    "synthesis_draw": "batch",
    "synthesis_path": "linear",
}

# What a loss can be as a whole: the margin is a free knob, or there is none.
_WITHOUT_MARGIN = ("norm_softmax", "proxy_nca_pp")
_COSINE_MARGIN = ("am_softmax", "unified")


def canonical(loss: str, point: Mapping[str, Value]) -> Canonical | None:
    """The canonical form of a loss at a point; None for a loss that has none.

    `point` may hold training knobs too; they do not count. Equal forms are equal functions of
    embeddings, labels and proxies. With `+synthesis` the plug-in's knobs are part of the form.
    """
    host = loss.removesuffix(SUFFIX)
    if host not in _FORMS or (host == "soft_triple" and point["centers"] != 1):
        return None
    numbers = {k: float(v) for k, v in point.items() if isinstance(v, int | float)}
    scale, margin, kind = _FORMS[host](numbers)
    rest = {k: v for k, v in point.items() if k in _NEUTRAL and v != _NEUTRAL[k]}
    if rest.get("temperature_mode") == "annealed":
        rest["anneal_ratio"] = point.get("anneal_ratio", 4.0)
    if host != loss:
        rest |= {k: v for k, v in point.items() if k.startswith("synthesis_")}
    return Canonical(scale, margin, kind, tuple(sorted(rest.items())))


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


def _class_of(loss: str, fixed: Mapping[str, Value], searched: Collection[str]) -> object | None:
    """A key shared by exactly the losses that are one function at all points left free."""
    host = loss.removesuffix(SUFFIX)
    rest = {k: v for k, v in fixed.items() if k in _NEUTRAL and v != _NEUTRAL[k]}
    varied = tuple(sorted(set(searched) & set(_NEUTRAL)))
    common = (host != loss, tuple(sorted(rest.items())), varied)
    if host in _WITHOUT_MARGIN or (host in (*_COSINE_MARGIN, "arcface") and fixed.get("m") == 0):
        return ("no margin", *common)
    if host in _COSINE_MARGIN:
        return ("cosine margin", fixed.get("m"), *common)
    if host == "soft_triple" and fixed.get("centers") == 1:
        delta = fixed.get("delta")
        return (("no margin",) if delta == 0 else ("cosine margin", delta)) + common
    return None
