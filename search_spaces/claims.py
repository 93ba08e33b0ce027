"""Claims of papers as data: a statement, its source and a test that trials can decide.

The test is one of the kinds below; `study/analyses/claims/judge.py` evaluates it on the trials of a
study. Nothing here computes anything.

The field `knob` of a test names a hyperparameter. It is stored with every study, so it keeps its
name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class StableRange:
    """Within [low, high] the hyperparameter costs less than the tolerance (None: unbounded)."""

    knob: str
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class GoodValue:
    """The value scores within the tolerance of the best value of the hyperparameter."""

    knob: str
    value: float | str


@dataclass(frozen=True)
class BetterValue:
    """One value or range of a hyperparameter beats another by more than the tolerance.

    `better` and `worse` are values, or (low, high) ranges of a numeric hyperparameter.
    """

    knob: str
    better: float | str | tuple[float, float]
    worse: float | str | tuple[float, float]


@dataclass(frozen=True)
class Sensitive:
    """Moving the hyperparameter over its range costs more than the tolerance."""

    knob: str


@dataclass(frozen=True)
class BetterLoss:
    """The tuned loss beats the other tuned loss; `other="HOST"` is the host of the plug-in."""

    other: str


@dataclass(frozen=True)
class FasterLoss:
    """The loss makes most of its own gain in fewer epochs than the other, whichever ends higher."""

    other: str


@dataclass(frozen=True)
class CostRatio:
    """An epoch costs at most `at_most` times an epoch of the other loss."""

    other: str
    at_most: float


@dataclass(frozen=True)
class HigherMetric:
    """A metric other than the objective (named as reported) is higher than for the other loss."""

    metric: str
    other: str


ClaimTest = (
    StableRange
    | GoodValue
    | BetterValue
    | Sensitive
    | BetterLoss
    | FasterLoss
    | CostRatio
    | HigherMetric
)

_TEST_CLASSES_BY_NAME: dict[str, Callable[..., ClaimTest]] = {
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
class PaperClaim:
    """One statement of a paper that trials can support or contradict.

    Args:
        name: Short name, unique within its loss, for tables and commands (`alpha-stable`).
        statement: The claim in our words.
        source: Paper and section, table or figure.
        test: The test that decides the claim.
    """

    name: str
    statement: str
    source: str
    test: ClaimTest


def claim_to_dict(claim: PaperClaim) -> dict[str, Any]:
    """Return the claim as plain JSON types."""
    return {**asdict(claim), "test": {"kind": type(claim.test).__name__, **asdict(claim.test)}}


def claim_from_dict(data: Mapping[str, Any]) -> PaperClaim:
    """Return the claim from the dictionary that `claim_to_dict` made."""
    test = dict(data["test"])
    kind: Any = _TEST_CLASSES_BY_NAME[test.pop("kind")]
    arguments = {k: tuple(v) if isinstance(v, list) else v for k, v in test.items()}
    return PaperClaim(data["name"], data["statement"], data["source"], kind(**arguments))
