"""Which losses are the same function?

On the unit sphere d^2 = 2 - 2 cos, so a softmax over squared distances is a softmax over cosines.
Each softmax-type loss has a canonical form, (cosine scale, margin). Losses that share the form at
every point must not be ranked against each other: the gap between them is the noise of the study.
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

from search_spaces.losses.synthesis import SYNTHESIS_SUFFIX
from search_spaces.space import ParamValue, describe_distribution


class CanonicalForm(NamedTuple):
    """Cross-entropy of scale * (cos - margin on the own class).

    Args:
        scale: Factor of the cosines.
        margin: On the own class's cosine ("cosine") or its angle ("angle", radians).
        kind: Which of the two; "cosine" where the margin is 0, since the two are equal there.
        other_params: Other hyperparameters that change the function, sorted by name; those at
            their neutral values are left out.
    """

    scale: float
    margin: float
    kind: str
    other_params: tuple[tuple[str, ParamValue], ...] = ()


class _Conversion(NamedTuple):
    """Conversion of a hyperparameter to the canonical scale or margin.

    Args:
        param: Name of the hyperparameter.
        factor: The canonical number is `factor * value`, or `factor / value` if `inverse`.
        inverse: Whether the hyperparameter is a temperature.
        default: The library's default, used where a study does not set the hyperparameter.
    """

    param: str
    factor: float = 1.0
    inverse: bool = False
    default: float | None = None

    def convert(self, value: ParamValue) -> float:
        """Return the canonical number, to 12 digits: 1 / 0.05 and 2 / 0.1 are equal."""
        assert isinstance(value, int | float)
        return float(f"{self.factor / value if self.inverse else self.factor * value:.12g}")

    def convert_range(self, distribution: BaseDistribution) -> BaseDistribution | str:
        """Return the distribution of the canonical number, or a description if Optuna has none."""
        if self.factor == 1.0 and not self.inverse:
            return distribution
        if isinstance(distribution, CategoricalDistribution):
            return CategoricalDistribution([self.convert(c) for c in distribution.choices])  # type: ignore[arg-type]
        assert isinstance(distribution, FloatDistribution | IntDistribution)
        if self.inverse and not (isinstance(distribution, FloatDistribution) and distribution.log):
            unscaled = _Conversion(self.param, 1.0 / self.factor).convert_range(distribution)
            assert isinstance(unscaled, BaseDistribution)
            return f"searched as the reciprocal of {describe_distribution(unscaled)}"
        low, high = sorted((self.convert(distribution.low), self.convert(distribution.high)))
        # Integers sampled on a logarithmic scale have no step once they are multiplied.
        step = (
            None if distribution.log or not distribution.step else distribution.step * self.factor
        )
        return FloatDistribution(low, high, log=distribution.log, step=step)


class _LossForm(NamedTuple):
    """How the hyperparameters of one loss give its canonical form.

    Args:
        scale: Conversion to the cosine scale.
        margin: Conversion to the margin; None for a loss without a margin.
        kind: As in `CanonicalForm`; "anchor" for Proxy-Anchor, which has a scale and a margin, but
            sums over the batch and is therefore not this cross-entropy.
        proxy_init: How the proxies are initialised.
    """

    scale: _Conversion
    margin: _Conversion | None = None
    kind: str = "cosine"
    proxy_init: str = "at length one"

    @property
    def conversions(self) -> tuple[_Conversion, ...]:
        """All conversions of the form."""
        return (self.scale,) if self.margin is None else (self.scale, self.margin)

    @property
    def defaults(self) -> dict[str, ParamValue]:
        """Defaults of the library, where it has any."""
        return {c.param: c.default for c in self.conversions if c.default is not None}

    def convert_margin(self, values: Mapping[str, ParamValue]) -> tuple[float | None, str]:
        """Return the margin (None if `values` do not set it) and its kind."""
        margin: float | None = 0.0
        if self.margin is not None:
            value = values.get(self.margin.param)
            margin = None if value is None else self.margin.convert(value)
        return margin, "cosine" if margin == 0 and self.kind == "angle" else self.kind


# pytorch-metric-learning's Proxy-NCA is a softmax over squared distances; its ArcFace margin is in
# degrees. Its losses initialise proxies differently, and no hyperparameter changes that.
_FORMS: Mapping[str, _LossForm] = {
    "norm_softmax": _LossForm(_Conversion("temperature", inverse=True)),
    "proxy_nca_pp": _LossForm(_Conversion("temperature", 2.0, inverse=True)),
    "am_softmax": _LossForm(_Conversion("gamma"), _Conversion("m")),
    "unified": _LossForm(_Conversion("gamma"), _Conversion("m")),
    "arcface": _LossForm(_Conversion("gamma"), _Conversion("m"), "angle"),
    "soft_triple": _LossForm(_Conversion("lambda_"), _Conversion("delta")),
    "proxy_anchor": _LossForm(_Conversion("alpha"), _Conversion("delta"), "anchor"),
    "pml:NormalizedSoftmaxLoss": _LossForm(
        _Conversion("temperature", inverse=True, default=0.05), proxy_init="as N(0, 1)"
    ),
    "pml:ProxyNCALoss": _LossForm(
        _Conversion("softmax_scale", 2.0, default=1.0),
        proxy_init="as N(0, 1), without samples of vanishing probability",
    ),
    "pml:CosFaceLoss": _LossForm(
        _Conversion("scale", default=64.0),
        _Conversion("margin", default=0.35),
        proxy_init="as N(0, 1)",
    ),
    "pml:ArcFaceLoss": _LossForm(
        _Conversion("scale", default=64.0),
        _Conversion("margin", math.radians(1.0), default=28.6),
        "angle",
        proxy_init="as N(0, 1)",
    ),
    "pml:ProxyAnchorLoss": _LossForm(
        _Conversion("alpha", default=32.0),
        _Conversion("margin", default=0.1),
        "anchor",
        proxy_init="by Kaiming's rule",
    ),
}

# Hyperparameters that change the function at equal scale and margin, with their neutral values.
_NEUTRAL_VALUES: Mapping[str, ParamValue] = {
    "label_smoothing": 0.0,
    "temperature_mode": "fixed",
    "proxies_per_class": 1,
    "synthesis_draw": "batch",
    "synthesis_path": "linear",
}
_SHAPE_PARAMS = {*_NEUTRAL_VALUES, "anneal_ratio", "synthesis_alpha", "synthesis_mu"}
_DEFAULT_ANNEAL_RATIO = 4.0


def canonical_form(loss: str, point: Mapping[str, ParamValue]) -> CanonicalForm | None:
    """Return the canonical form of a loss at a point; None for a loss that has none.

    `point` may contain training hyperparameters; they are ignored. Equal forms are equal functions
    of embeddings, labels and proxies. With `+synthesis` the hyperparameters of the plug-in are part
    of the form.
    """
    form = _find_form(loss, point)
    if form is None or form.kind == "anchor":
        return None
    point = {**form.defaults, **point}
    scale = form.scale.convert(point[form.scale.param])
    margin, kind = form.convert_margin(point)
    shape = _shape_values(point, synthesis=_has_synthesis(loss, point))
    return CanonicalForm(scale, margin or 0.0, kind, tuple(sorted(shape.items())))


def group_equivalent_losses(
    losses: Sequence[str],
    fixed: Mapping[str, Mapping[str, ParamValue]] | None = None,
    searched: Mapping[str, Collection[str]] | None = None,
) -> list[tuple[str, ...]]:
    """Return groups of two or more losses that are the same function of different hyperparameters.

    Args:
        losses: Names as in a study, including `HOST+synthesis`.
        fixed: Per loss, the hyperparameters that the study fixes at a value; a margin fixed at 0
            makes a margin loss the plain one.
        searched: Per loss, the hyperparameters that the study searches. A hyperparameter of a
            library loss that is neither fixed nor searched has its default value; without
            `searched` its value is unknown.

    Returns:
        Groups in the order of `losses`; a loss without an equivalent loss is in no group.
    """
    groups: dict[object, list[str]] = {}
    for loss in losses:
        values = (fixed or {}).get(loss, {})
        if searched is not None and loss in _FORMS:
            values = {**_FORMS[loss].defaults, **values}
        key = _equivalence_key(loss, values, (searched or {}).get(loss, ()))
        if key is not None:
            groups.setdefault(key, []).append(loss)
    return [tuple(group) for group in groups.values() if len(group) > 1]


def function_params(loss: str) -> set[str]:
    """Return the hyperparameters that shape a loss of canonical form; all others shape training."""
    host = loss.removesuffix(SYNTHESIS_SUFFIX)
    own = {conversion.param for conversion in _FORMS[host].conversions}
    if host == "soft_triple":
        own |= {"centers", "gamma", "tau"}
    return own | _SHAPE_PARAMS


def function_ranges(
    loss: str, distributions: Mapping[str, BaseDistribution]
) -> dict[str, BaseDistribution | str]:
    """Return the searched ranges of a loss of canonical form, in units that its names share.

    Two names of one function that are searched over different ranges are not the same search: the
    better range wins, and that gap is not noise.
    """
    form = _FORMS[loss.removesuffix(SYNTHESIS_SUFFIX)]
    ranges: dict[str, BaseDistribution | str] = {
        param: distribution
        for param, distribution in distributions.items()
        if param in _SHAPE_PARAMS
    }
    for name, conversion in zip(("cosine scale", "margin"), form.conversions, strict=False):
        if conversion.param in distributions:
            ranges[name] = conversion.convert_range(distributions[conversion.param])
    return ranges


def describe_proxy_init(loss: str) -> str:
    """Return how a loss of canonical form initialises its proxies, in words."""
    return _FORMS[loss.removesuffix(SYNTHESIS_SUFFIX)].proxy_init


def _find_form(loss: str, values: Mapping[str, ParamValue]) -> _LossForm | None:
    """Return the form of a loss; SoftTriple has one only with a single centre per class."""
    host = loss.removesuffix(SYNTHESIS_SUFFIX)
    if host == "soft_triple" and values.get("centers") != 1:
        return None
    return _FORMS.get(host)


def _has_synthesis(loss: str, values: Mapping[str, ParamValue]) -> bool:
    return loss.endswith(SYNTHESIS_SUFFIX) and values.get("synthesis_mu") != 0


def _equivalence_key(
    loss: str, fixed: Mapping[str, ParamValue], searched: Collection[str]
) -> object | None:
    """Return a key that two losses share if they are the same function at all searched points."""
    form = _find_form(loss, fixed)
    if form is None:
        return None
    fixed = {param: value for param, value in fixed.items() if param not in searched}
    synthesis = _has_synthesis(loss, fixed)
    shape = _shape_values(fixed, synthesis=synthesis)
    if "temperature_mode" in searched:
        shape["anneal_ratio"] = fixed.get("anneal_ratio", _DEFAULT_ANNEAL_RATIO)
    open_params = _SHAPE_PARAMS.intersection(searched)
    shape = {param: value for param, value in shape.items() if param not in open_params}
    return (
        form.convert_margin(fixed),
        form.scale.convert(fixed[form.scale.param]) if form.scale.param in fixed else None,
        synthesis,
        tuple(sorted(shape.items())),
        tuple(sorted(open_params)),
    )


def _shape_values(values: Mapping[str, ParamValue], *, synthesis: bool) -> dict[str, ParamValue]:
    """Return the values beside scale and margin that change the function."""
    shape = {
        param: value
        for param, value in values.items()
        if param in _SHAPE_PARAMS - {"anneal_ratio"}
        and value != _NEUTRAL_VALUES.get(param)
        and (synthesis or not param.startswith("synthesis_"))
    }
    if shape.get("temperature_mode") == "annealed":
        ratio = values.get("anneal_ratio", _DEFAULT_ANNEAL_RATIO)
        if ratio == 1:  # as a fixed temperature
            del shape["temperature_mode"]
        else:
            shape["anneal_ratio"] = ratio
    return shape
