"""Search space of one loss: hyperparameters by role, published points and claims."""

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

from search_spaces.claims import PaperClaim, claim_from_dict, claim_to_dict

Float = FloatDistribution
Int = IntDistribution
Choice = CategoricalDistribution

ParamValue = bool | int | float | str
ParamRole = Literal["scientific", "nuisance", "fixed"]


@dataclass(frozen=True)
class Hyperparameter:
    """One searched hyperparameter.

    Args:
        distribution: Range and sampling scale, as an Optuna distribution.
        symbol: The symbol of the paper, shown to users (`α`).
        reason: Why this range and this scale; `study losses` prints it.
        latex: The symbol for LaTeX tables (`\\alpha`); if empty, the hyperparameter's name.
        unit: Shown after values ("rad", "images"); empty for pure numbers.
    """

    distribution: BaseDistribution
    symbol: str
    reason: str
    latex: str = ""
    unit: str = ""


@dataclass(frozen=True)
class PublishedPoint:
    """A setting published by the authors, with a value for every searched hyperparameter.

    Args:
        source: Paper or repository, and the data set and backbone it was used for.
        values: One value for each searched hyperparameter of the space.
        note: What was translated (a different optimiser, a different unit), if anything.
    """

    source: str
    values: Mapping[str, ParamValue]
    note: str = ""


@dataclass(frozen=True)
class SearchSpace:
    """Hyperparameters of one loss by role, its published points and the claims of its paper.

    *Scientific* hyperparameters are the subject of the study; *nuisance* hyperparameters are tuned
    so that the comparison is fair; *fixed* ones are the conditions of the experiment. Every
    hyperparameter has one role.

    Raises:
        ValueError: A hyperparameter has two roles, or a published point lacks a hyperparameter,
            has an unknown one, or lies outside a range.
    """

    loss: str
    paper: str
    scientific: Mapping[str, Hyperparameter]
    nuisance: Mapping[str, Hyperparameter] = field(default_factory=dict)
    fixed: Mapping[str, ParamValue] = field(default_factory=dict)
    published: tuple[PublishedPoint, ...] = ()
    claims: tuple[PaperClaim, ...] = ()
    excluded_points: tuple[str, ...] = ()
    """Published points outside the searched ranges, one line each: the point and the reason."""

    def __post_init__(self) -> None:
        roles = [set(self.scientific), set(self.nuisance), set(self.fixed)]
        repeated = (roles[0] & roles[1]) | (roles[0] & roles[2]) | (roles[1] & roles[2])
        if repeated:
            raise ValueError(
                f"{self.loss}: a hyperparameter has one role, but these have two: "
                f"{', '.join(sorted(repeated))}"
            )
        for point in self.published:
            self.check_point(point.values)

    @property
    def searched_params(self) -> dict[str, Hyperparameter]:
        """Scientific hyperparameters, then nuisance hyperparameters."""
        return {**self.scientific, **self.nuisance}

    @property
    def distributions(self) -> dict[str, BaseDistribution]:
        """The search space as Optuna distributions by name."""
        return {name: param.distribution for name, param in self.searched_params.items()}

    def param_role(self, param: str) -> ParamRole:
        """Return the role of a hyperparameter; KeyError if it is not in this space."""
        if param in self.scientific:
            return "scientific"
        if param in self.nuisance:
            return "nuisance"
        if param in self.fixed:
            return "fixed"
        raise KeyError(param)

    def check_point(self, values: Mapping[str, ParamValue]) -> None:
        """Raise ValueError unless `values` are the searched hyperparameters, each in its range."""
        searched = self.distributions
        missing = sorted(set(searched) - set(values))
        unknown = sorted(set(values) - set(searched))
        if missing or unknown:
            raise ValueError(
                f"{self.loss}: a point must have exactly the searched hyperparameters; "
                f"missing {missing}, unknown {unknown}"
            )
        for name, value in values.items():
            if not in_range(searched[name], value):
                allowed = describe_distribution(searched[name])
                raise ValueError(f"{self.loss}: `{name}={value}` is outside {allowed}")

    @property
    def version_hash(self) -> str:
        """Short hash of everything that defines the search: equal hashes mean equal spaces."""
        content = self.to_dict()
        for key in ("claims", "paper", "left_out"):
            content.pop(key)
        text = json.dumps(content, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:8]

    def with_changes(
        self,
        *,
        search: Mapping[str, BaseDistribution] | None = None,
        fixed: Mapping[str, ParamValue] | None = None,
        hints: Mapping[str, Hyperparameter] | None = None,
    ) -> SearchSpace:
        """Return this space with some ranges replaced and some hyperparameters fixed or searched.

        Published points drop the values of hyperparameters that are no longer searched. For a newly
        searched hyperparameter a point takes the old fixed value; if there is none, or if it lies
        outside the new range, the point is dropped and listed in `excluded_points`.

        Args:
            search: Distributions of hyperparameters to search; they become scientific unless they
                are nuisance hyperparameters already.
            fixed: Values of hyperparameters that are no longer searched.
            hints: Symbols and reasons of hyperparameters that this space does not search.
        """
        search, fixed = dict(search or {}), dict(fixed or {})
        scientific, nuisance = dict(self.scientific), dict(self.nuisance)
        constants = {**self.fixed, **fixed}
        for name, distribution in search.items():
            group = nuisance if name in nuisance else scientific
            template = group.get(name) or (hints or {}).get(name)
            group[name] = (
                replace(template, distribution=distribution)
                if template is not None
                else Hyperparameter(distribution, symbol=name, reason="set in the study file")
            )
            constants.pop(name, None)
        for name in fixed:
            scientific.pop(name, None)
            nuisance.pop(name, None)
        searched = {**scientific, **nuisance}
        published, excluded_points = [], list(self.excluded_points)
        for point in self.published:
            values = {k: point.values.get(k, self.fixed.get(k)) for k in searched}
            known_values = {k: v for k, v in values.items() if v is not None}
            reasons = [f"it has no value of {k}" for k, v in values.items() if v is None]
            for k, v in known_values.items():
                distribution = searched[k].distribution
                if not in_range(distribution, v):
                    allowed = describe_distribution(distribution)
                    reasons.append(f"{k}={_format_value(v)} is outside {allowed}")
            if reasons:
                excluded_points.append(
                    f"the published point ({point.source}) is not run: {', '.join(reasons)}"
                )
            else:
                published.append(replace(point, values=known_values))
        return replace(
            self,
            scientific=scientific,
            nuisance=nuisance,
            fixed=constants,
            published=tuple(published),
            excluded_points=tuple(excluded_points),
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the space as plain JSON types, so that a report does not need this code."""
        return {
            "loss": self.loss,
            "paper": self.paper,
            "scientific": {k: _param_to_dict(v) for k, v in self.scientific.items()},
            "nuisance": {k: _param_to_dict(v) for k, v in self.nuisance.items()},
            "fixed": dict(self.fixed),
            "published": [
                {"source": p.source, "values": dict(p.values), "note": p.note}
                for p in self.published
            ],
            "claims": [claim_to_dict(claim) for claim in self.claims],
            "left_out": list(self.excluded_points),
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> SearchSpace:
        """Return the space from the dictionary that `to_dict` made."""
        return cls(
            loss=data["loss"],
            paper=data["paper"],
            scientific={k: _param_from_dict(v) for k, v in data["scientific"].items()},
            nuisance={k: _param_from_dict(v) for k, v in data["nuisance"].items()},
            fixed=dict(data["fixed"]),
            published=tuple(PublishedPoint(**p) for p in data["published"]),
            claims=tuple(claim_from_dict(claim) for claim in data["claims"]),
            excluded_points=tuple(data.get("left_out", ())),
        )


def in_range(distribution: BaseDistribution, value: ParamValue) -> bool:
    """Whether the distribution can draw the value; a value of the wrong type is outside."""
    if isinstance(distribution, CategoricalDistribution):
        return any(value == c and _same_kind(value, c) for c in distribution.choices)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    if isinstance(distribution, IntDistribution) and value != int(value):
        return False
    assert isinstance(distribution, FloatDistribution | IntDistribution)
    if not distribution.low <= value <= distribution.high:
        return False
    steps = (value - distribution.low) / distribution.step if distribution.step else 0.0
    return abs(steps - round(steps)) < 1e-8


def _same_kind(value: ParamValue, choice: Any) -> bool:
    """Whether two equal values have the same kind: 32 equals 32.0, but 1 does not equal True."""
    if isinstance(value, bool) or isinstance(choice, bool):
        return type(value) is type(choice)
    numbers = isinstance(value, int | float) and isinstance(choice, int | float)
    return numbers or type(value) is type(choice)


def describe_distribution(distribution: BaseDistribution) -> str:
    """Return a range as text: `[8, 128] log`, `{avg, max}`."""
    if isinstance(distribution, CategoricalDistribution):
        return "{" + ", ".join(str(c) for c in distribution.choices) + "}"
    assert isinstance(distribution, FloatDistribution | IntDistribution)
    text = f"[{distribution.low:g}, {distribution.high:g}]"
    any_integer = isinstance(distribution, IntDistribution) and distribution.step == 1
    if distribution.step and not any_integer:
        text += f" in steps of {distribution.step:g}"
    return text + (" log" if distribution.log else "")


def _format_value(value: ParamValue) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _param_to_dict(param: Hyperparameter) -> dict[str, Any]:
    return {
        "distribution": json.loads(distribution_to_json(param.distribution)),
        "symbol": param.symbol,
        "reason": param.reason,
        "latex": param.latex,
        "unit": param.unit,
    }


def _param_from_dict(data: Mapping[str, Any]) -> Hyperparameter:
    distribution = json_to_distribution(json.dumps(data["distribution"]))
    return Hyperparameter(**{**data, "distribution": distribution})


def range_endpoints(distribution: BaseDistribution) -> tuple[ParamValue, ...]:
    """Return both ends of a range, or every choice."""
    if isinstance(distribution, CategoricalDistribution):
        return tuple(distribution.choices)  # type: ignore[arg-type]
    assert isinstance(distribution, FloatDistribution | IntDistribution)
    return (distribution.low, distribution.high)
