"""How are knobs and numbers written for people?"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from optuna.distributions import BaseDistribution, CategoricalDistribution

from search_spaces.space import Space
from study.report.chart import Axis

_PRETTY = {
    "map_at_r": "MAP@R",
    "r_precision": "R-Precision",
    "loss": "training loss",
    "nmi": "NMI",
}


def knob_label(space: Space, knob: str) -> str:
    """The paper's letter and the knob's name: `α (alpha)`."""
    known = space.searched.get(knob)
    if known is None or not known.symbol or known.symbol == knob:
        return knob
    return f"{known.symbol} ({knob})"


def metric_label(name: str) -> str:
    """`recall_at_1` as R@1, `map_at_r` as MAP@R."""
    if name.startswith("recall_at_"):
        return f"R@{name.removeprefix('recall_at_')}"
    return _PRETTY.get(name, name)


def score(value: Any, digits: int = 3) -> str:
    """A score, or a dash where there is none."""
    if value is None or not isinstance(value, int | float | np.floating | np.integer):
        return "–" if value is None or value == "" else str(value)
    if not math.isfinite(float(value)):
        return "–"
    size = abs(float(value))
    return f"{float(value):.{digits}f}" if size < 100 else f"{float(value):.4g}"


def number(value: Any) -> str:
    """A knob's value in at most three digits."""
    if isinstance(value, bool | str) or value is None:
        return "–" if value is None else str(value)
    number = float(value)
    return f"{number:.3g}" if math.isfinite(number) else "–"


def percent(value: float) -> str:
    """A share without decimals; only certainty is 100 %."""
    if not math.isfinite(value):
        return "–"
    if 0.995 <= value < 1:
        return "> 99%"
    return "< 1%" if 0 < value < 0.005 else f"{value:.0%}"


def chance(value: float) -> str:
    """A probability estimated from draws, which can prove neither certainty."""
    if not math.isfinite(value):
        return "–"
    return "> 99%" if value >= 0.995 else "< 1%" if value <= 0.005 else f"{value:.0%}"


def listing(words: Sequence[str], *, last: str = "and") -> str:
    """`a, b and c`."""
    words = list(words)
    if len(words) < 2:
        return "".join(words)
    return f"{', '.join(words[:-1])} {last} {words[-1]}"


def knob_axis(space: Space, knob: str) -> Axis:
    """The axis of a knob: logarithmic, numeric, or one tick per choice."""
    distribution = space.distributions[knob]
    unit = space.searched[knob].unit
    label = knob_label(space, knob) + (f" [{unit}]" if unit else "")
    if isinstance(distribution, CategoricalDistribution):
        ticks = tuple((float(i), str(c)) for i, c in enumerate(distribution.choices))
        return Axis(label, ticks=ticks, limits=(-0.5, len(ticks) - 0.5))
    low, high = float(distribution.low), float(distribution.high)  # type: ignore[attr-defined]
    if not getattr(distribution, "log", False):
        pad = 0.03 * (high - low)
        return Axis(label, limits=(low - pad, high + pad))
    pad = (high / low) ** 0.03
    return Axis(label, log=True, ticks=log_ticks(low, high), limits=(low / pad, high * pad))


def log_ticks(low: float, high: float) -> tuple[tuple[float, str], ...]:
    """Few round ticks: powers of ten, with 2 and 5 between when there is room, or powers of two."""
    decades = range(math.floor(math.log10(low)) - 1, math.ceil(math.log10(high)) + 1)
    span = math.log10(high / low)
    steps = (1,) if span > 3 else (1, 3) if span > 1.9 else (1, 2, 5)
    values = [s * 10.0**k for k in decades for s in steps]
    inside = [v for v in values if low * 0.999 <= v <= high * 1.001]
    return tuple(
        (v, f"{v:g}" if 1e-3 <= v < 1e5 else f"{v:.0e}".replace("e-0", "e-")) for v in inside
    )


def places(distribution: BaseDistribution, values: Sequence[Any] | pd.Series) -> list[float]:
    """Values as numbers on the knob's axis: a choice is its index."""
    if not isinstance(distribution, CategoricalDistribution):
        return [float(v) for v in values]
    choices = list(distribution.choices)
    texts = [str(c) for c in choices]
    return [
        float(choices.index(v) if v in choices else texts.index(str(v)) if str(v) in texts else 0)
        for v in values
    ]
