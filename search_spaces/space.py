"""What may be searched for one loss, and what its paper says about it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
    distribution_to_json,
    json_to_distribution,
)

from search_spaces.claims import Claim, claim_from_dict, claim_to_dict

Float = FloatDistribution
Int = IntDistribution
Choice = CategoricalDistribution

Value = bool | int | float | str
Role = Literal["scientific", "nuisance", "fixed"]


@dataclass(frozen=True)
class Knob:
    """One searched hyperparameter.

    Args:
        distribution: Range and scale, as Optuna writes them.
        symbol: The paper's letter, shown to users (`α`).
        reason: Why this range and this scale; `study losses` prints it.
        latex: The symbol for LaTeX tables (`\\alpha`); the knob's name when empty.
        unit: Shown behind values ("rad", "images"); empty for pure numbers.
    """

    distribution: BaseDistribution
    symbol: str
    reason: str
    latex: str = ""
    unit: str = ""


@dataclass(frozen=True)
class Published:
    """A setting the authors printed or shipped, as a value for every searched knob.

    Args:
        source: Where it is stated: paper, repository, data set and backbone.
        values: One value for each searched knob of the space.
        note: What had to be translated (another optimiser, another unit), if anything.
    """

    source: str
    values: Mapping[str, Value]
    note: str = ""


@dataclass(frozen=True)
class Space:
    """The knobs of one loss by role, its published points and its paper's claims.

    *Scientific* knobs are what the study asks about; *nuisance* knobs must be tuned for the
    comparison to be fair; *fixed* ones are the conditions of the experiment. A knob has one role.

    Raises:
        ValueError: A knob has two roles, or a published point misses a knob, names an unknown
            one, or lies outside its range.
    """

    loss: str
    paper: str
    scientific: Mapping[str, Knob]
    nuisance: Mapping[str, Knob] = field(default_factory=dict)
    fixed: Mapping[str, Value] = field(default_factory=dict)
    published: tuple[Published, ...] = ()
    claims: tuple[Claim, ...] = ()
    left_out: tuple[str, ...] = ()
    """Published points that the searched ranges do not hold, one line each: which and why."""

    def __post_init__(self) -> None:
        roles = [set(self.scientific), set(self.nuisance), set(self.fixed)]
        twice = (roles[0] & roles[1]) | (roles[0] & roles[2]) | (roles[1] & roles[2])
        if twice:
            raise ValueError(f"{self.loss}: a knob has one role, but {sorted(twice)} have two.")
        for point in self.published:
            self.check_point(point.values)

    @property
    def searched(self) -> dict[str, Knob]:
        """Scientific knobs, then nuisance knobs."""
        return {**self.scientific, **self.nuisance}

    @property
    def distributions(self) -> dict[str, BaseDistribution]:
        """Optuna's search space."""
        return {name: knob.distribution for name, knob in self.searched.items()}

    def role(self, knob: str) -> Role:
        """The knob's role; KeyError for a knob this space does not hold."""
        if knob in self.scientific:
            return "scientific"
        if knob in self.nuisance:
            return "nuisance"
        if knob in self.fixed:
            return "fixed"
        raise KeyError(knob)

    def check_point(self, values: Mapping[str, Value]) -> None:
        """Raise ValueError unless `values` has exactly the searched knobs, each in its range."""
        searched = self.distributions
        missing = sorted(set(searched) - set(values))
        unknown = sorted(set(values) - set(searched))
        if missing or unknown:
            raise ValueError(
                f"{self.loss}: a point needs exactly the searched knobs; "
                f"missing {missing}, unknown {unknown}."
            )
        for name, value in values.items():
            if not in_range(searched[name], value):
                raise ValueError(
                    f"{self.loss}: `{name}={value}` is outside {describe(searched[name])}."
                )

    @property
    def version(self) -> str:
        """A short hash of all that shapes the search: equal versions search the same space."""
        content = self.to_dict()
        for words in ("claims", "paper", "left_out"):
            content.pop(words)
        text = json.dumps(content, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:8]

    def with_changes(
        self,
        *,
        search: Mapping[str, BaseDistribution] | None = None,
        fixed: Mapping[str, Value] | None = None,
        hints: Mapping[str, Knob] | None = None,
    ) -> Space:
        """This space with some ranges replaced and some knobs fixed or freed.

        `hints` have symbols and reasons of knobs that this space does not search.

        A knob named in `search` becomes searched (scientific unless it already was nuisance);
        one named in `fixed` is no longer searched. Published points drop values of knobs that are
        no longer searched; a point that misses a newly searched knob takes the knob's old fixed
        value. Where there is none, or it falls outside the new range, the point is refused and
        `left_out` says so.
        """
        search, fixed = dict(search or {}), dict(fixed or {})
        scientific, nuisance = dict(self.scientific), dict(self.nuisance)
        constants = {**self.fixed, **fixed}
        for name, distribution in search.items():
            group = nuisance if name in nuisance else scientific
            known = group.get(name) or (hints or {}).get(name)
            group[name] = (
                replace(known, distribution=distribution)
                if known is not None
                else Knob(distribution, symbol=name, reason="set in the study file")
            )
            constants.pop(name, None)
        for name in fixed:
            scientific.pop(name, None)
            nuisance.pop(name, None)
        searched = {**scientific, **nuisance}
        published, left_out = [], list(self.left_out)
        for point in self.published:
            values = {k: point.values.get(k, self.fixed.get(k)) for k in searched}
            known_values = {k: v for k, v in values.items() if v is not None}
            why = [f"it has no value of {k}" for k, v in values.items() if v is None]
            why += [
                f"{k}={_shown(v)} is outside {describe(searched[k].distribution)}"
                for k, v in known_values.items()
                if not in_range(searched[k].distribution, v)
            ]
            if why:
                left_out.append(
                    f"the published point ({point.source}) is not run: {', '.join(why)}"
                )
            else:
                published.append(replace(point, values=known_values))
        return replace(
            self,
            scientific=scientific,
            nuisance=nuisance,
            fixed=constants,
            published=tuple(published),
            left_out=tuple(left_out),
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types, so that a report can be made far from this code."""
        return {
            "loss": self.loss,
            "paper": self.paper,
            "scientific": {k: _knob_to_dict(v) for k, v in self.scientific.items()},
            "nuisance": {k: _knob_to_dict(v) for k, v in self.nuisance.items()},
            "fixed": dict(self.fixed),
            "published": [
                {"source": p.source, "values": dict(p.values), "note": p.note}
                for p in self.published
            ],
            "claims": [claim_to_dict(claim) for claim in self.claims],
            "left_out": list(self.left_out),
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Space:
        """The inverse of `to_dict`."""
        return cls(
            loss=data["loss"],
            paper=data["paper"],
            scientific={k: _knob_from_dict(v) for k, v in data["scientific"].items()},
            nuisance={k: _knob_from_dict(v) for k, v in data["nuisance"].items()},
            fixed=dict(data["fixed"]),
            published=tuple(Published(**p) for p in data["published"]),
            claims=tuple(claim_from_dict(claim) for claim in data["claims"]),
            left_out=tuple(data.get("left_out", ())),
        )


def in_range(distribution: BaseDistribution, value: Value) -> bool:
    """Whether the value can be drawn; a bool is no number, a wrong type is simply outside."""
    if isinstance(distribution, CategoricalDistribution):
        return any(value == c and _alike(value, c) for c in distribution.choices)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    if isinstance(distribution, IntDistribution) and value != int(value):
        return False
    assert isinstance(distribution, FloatDistribution | IntDistribution)
    if not distribution.low <= value <= distribution.high:
        return False
    steps = (value - distribution.low) / distribution.step if distribution.step else 0.0
    return abs(steps - round(steps)) < 1e-8


def _alike(value: Value, choice: Any) -> bool:
    """Whether two equal values are of one kind: 32 is 32.0, but 1 is not true."""
    if isinstance(value, bool) or isinstance(choice, bool):
        return type(value) is type(choice)
    numbers = isinstance(value, int | float) and isinstance(choice, int | float)
    return numbers or type(value) is type(choice)


def describe(distribution: BaseDistribution) -> str:
    """A range as people write it: `[8, 128] log`, `{avg, max}`."""
    if isinstance(distribution, CategoricalDistribution):
        return "{" + ", ".join(str(c) for c in distribution.choices) + "}"
    assert isinstance(distribution, FloatDistribution | IntDistribution)
    text = f"[{distribution.low:g}, {distribution.high:g}]"
    whole = isinstance(distribution, IntDistribution) and distribution.step == 1
    if distribution.step and not whole:
        text += f" in steps of {distribution.step:g}"
    return text + (" log" if distribution.log else "")


def _shown(value: Value) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _knob_to_dict(knob: Knob) -> dict[str, Any]:
    return {
        "distribution": json.loads(distribution_to_json(knob.distribution)),
        "symbol": knob.symbol,
        "reason": knob.reason,
        "latex": knob.latex,
        "unit": knob.unit,
    }


def _knob_from_dict(data: Mapping[str, Any]) -> Knob:
    distribution = json_to_distribution(json.dumps(data["distribution"]))
    return Knob(**{**data, "distribution": distribution})
