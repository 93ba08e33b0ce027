"""A paper's checkable sentences as data.

A claim is words, a source and a *test*: one of the few kinds of question below, which
`study/analyses/claims.py` knows how to put to the trials. Nothing here computes anything.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class StableRange:
    """Within [low, high] the knob costs less than the tolerance (None: open to that side)."""

    knob: str
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class GoodValue:
    """The value is within the tolerance of the best value of the knob."""

    knob: str
    value: float | str


@dataclass(frozen=True)
class BetterValue:
    """One value or region of a knob scores higher than another by more than the tolerance.

    `better` and `worse` are values, or (low, high) ranges of a numeric knob.
    """

    knob: str
    better: float | str | tuple[float, float]
    worse: float | str | tuple[float, float]


@dataclass(frozen=True)
class Sensitive:
    """Moving the knob over its range costs more than the tolerance."""

    knob: str


@dataclass(frozen=True)
class BetterLoss:
    """The tuned loss beats the other tuned loss; `other="HOST"` is the plug-in's host."""

    other: str


@dataclass(frozen=True)
class FasterLoss:
    """The loss does most of its own rise in fewer epochs than the other; who ends higher aside."""

    other: str


@dataclass(frozen=True)
class CostRatio:
    """An epoch costs at most `at_most` times an epoch of the other loss."""

    other: str
    at_most: float


@dataclass(frozen=True)
class HigherMetric:
    """A metric other than the objective is higher than the other loss's (`metric` as reported)."""

    metric: str
    other: str


Test = (
    StableRange
    | GoodValue
    | BetterValue
    | Sensitive
    | BetterLoss
    | FasterLoss
    | CostRatio
    | HigherMetric
)

_KINDS: dict[str, Callable[..., Test]] = {
    kind.__name__: kind
    for kind in (
        StableRange,
        GoodValue,
        BetterValue,
        Sensitive,
        BetterLoss,
        FasterLoss,
        CostRatio,
        HigherMetric,
    )
}


@dataclass(frozen=True)
class Claim:
    """One sentence of a paper that trials can support or contradict.

    Args:
        name: Short and unique within its loss, for tables and commands (`alpha-stable`).
        statement: The claim in our words.
        source: Paper and place.
        test: How it is put to the trials.
    """

    name: str
    statement: str
    source: str
    test: Test


def claim_to_dict(claim: Claim) -> dict[str, Any]:
    """Plain JSON types."""
    return {**asdict(claim), "test": {"kind": type(claim.test).__name__, **asdict(claim.test)}}


def claim_from_dict(data: Mapping[str, Any]) -> Claim:
    """The inverse of `claim_to_dict`."""
    test = dict(data["test"])
    kind: Any = _KINDS[test.pop("kind")]
    arguments = {k: tuple(v) if isinstance(v, list) else v for k, v in test.items()}
    return Claim(data["name"], data["statement"], data["source"], kind(**arguments))
