"""Text formatting of hyperparameters, scores and probabilities, and the axes that show them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from optuna.distributions import BaseDistribution, CategoricalDistribution

from search_spaces.space import SearchSpace
from study.report.charts.spec import ChartAxis

_METRIC_LABELS = {
    "map_at_r": "MAP@R",
    "r_precision": "R-Precision",
    "loss": "training loss",
    "nmi": "NMI",
}

PAGE_COLUMN_NAMES = {"knob": "hyperparameter"}
"""Column names of the CSV and JSON files that the page writes out."""


def param_label(space: SearchSpace, param: str) -> str:
    """Return the paper's symbol and the hyperparameter's name: `α (alpha)`."""
    info = space.searched_params.get(param)
    if info is None or not info.symbol or info.symbol == param:
        return param
    return f"{info.symbol} ({param})"


def metric_label(name: str) -> str:
    """Return the usual name of a metric: R@1 for `recall_at_1`, MAP@R for `map_at_r`."""
    if name.startswith("recall_at_"):
        return f"R@{name.removeprefix('recall_at_')}"
    return _METRIC_LABELS.get(name, name)


def format_rounded_score(value: Any, digits: int = 3) -> str:
    """Format a score; a dash if there is none."""
    if value is None or not isinstance(value, int | float | np.floating | np.integer):
        return "–" if value is None or value == "" else str(value)
    if not math.isfinite(float(value)):
        return "–"
    size = abs(float(value))
    return f"{float(value):.{digits}f}" if size < 100 else f"{float(value):.4g}"


def format_value(value: Any) -> str:
    """Format the value of a hyperparameter with at most three digits."""
    if isinstance(value, bool | str) or value is None:
        return "–" if value is None else str(value)
    number = float(value)
    return f"{number:.3g}" if math.isfinite(number) else "–"


def format_percent(value: float) -> str:
    """Format a share without decimals; only 1 exactly is 100 %."""
    if not math.isfinite(value):
        return "–"
    if 0.995 <= value < 1:
        return "> 99%"
    return "< 1%" if 0 < value < 0.005 else f"{value:.0%}"


def format_probability(value: float) -> str:
    """Format a probability estimated from draws, which can show neither 0 % nor 100 %."""
    if not math.isfinite(value):
        return "–"
    return "> 99%" if value >= 0.995 else "< 1%" if value <= 0.005 else f"{value:.0%}"


def join_words(words: Sequence[str], *, last: str = "and") -> str:
    """Join words as `a, b and c`."""
    words = list(words)
    if len(words) < 2:
        return "".join(words)
    return f"{', '.join(words[:-1])} {last} {words[-1]}"


def param_axis(space: SearchSpace, param: str) -> ChartAxis:
    """Build the axis of a hyperparameter: logarithmic, linear, or one tick per choice."""
    distribution = space.distributions[param]
    unit = space.searched_params[param].unit
    label = param_label(space, param) + (f" [{unit}]" if unit else "")
    if isinstance(distribution, CategoricalDistribution):
        ticks = tuple((float(i), str(c)) for i, c in enumerate(distribution.choices))
        return ChartAxis(label, ticks=ticks, limits=(-0.5, len(ticks) - 0.5))
    low, high = float(distribution.low), float(distribution.high)  # type: ignore[attr-defined]
    if not getattr(distribution, "log", False):
        pad = 0.03 * (high - low)
        return ChartAxis(label, limits=(low - pad, high + pad))
    pad = (high / low) ** 0.03
    return ChartAxis(label, log=True, ticks=log_ticks(low, high), limits=(low / pad, high * pad))


def log_ticks(low: float, high: float) -> tuple[tuple[float, str], ...]:
    """Return a few round ticks: powers of ten, and 3 or 2 and 5 times these on short axes."""
    decades = range(math.floor(math.log10(low)) - 1, math.ceil(math.log10(high)) + 1)
    span = math.log10(high / low)
    steps = (1,) if span > 3 else (1, 3) if span > 1.9 else (1, 2, 5)
    values = [s * 10.0**k for k in decades for s in steps]
    inside = [v for v in values if low * 0.999 <= v <= high * 1.001]
    return tuple(
        (v, f"{v:g}" if 1e-3 <= v < 1e5 else f"{v:.0e}".replace("e-0", "e-")) for v in inside
    )


def axis_positions(
    distribution: BaseDistribution, values: Sequence[Any] | pd.Series
) -> list[float]:
    """Return values as numbers on the hyperparameter's axis; a choice becomes its index."""
    if not isinstance(distribution, CategoricalDistribution):
        return [float(v) for v in values]
    choices = list(distribution.choices)
    texts = [str(c) for c in choices]
    return [
        float(choices.index(v) if v in choices else texts.index(str(v)) if str(v) in texts else 0)
        for v in values
    ]
